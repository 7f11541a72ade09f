"""Compile the log patterns of the settings: regular expressions whose named groups are metrics.

    [training]
    patterns = ['^update (?P<step>\\d+) xent=(?P<loss>[\\d.]+)']

Python's regex engine backtracks. A repeat within a repeat, such as `(a+)+`, takes exponential time on
some lines, so such patterns are refused when the settings are read. All others take polynomial time,
which is acceptable because the log reader cuts lines.
"""

import re
import warnings
from collections.abc import Sequence
from typing import Any

from gpufleet.errors import SettingsError
from gpufleet.training.log_patterns import LogPattern
from gpufleet.training.metric_names import is_metric_name

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    # The parser is not public, but only the parsed form shows nested repeats reliably.
    from re import _constants as constants
    from re import _parser as parser

MAX_PATTERNS = 50
MAX_PATTERN_LENGTH = 1000
_HARMLESS_REPEATS = 16
"""A repeat with at most this upper bound may be nested."""


def compile_user_patterns(expressions: Sequence[str]) -> tuple[LogPattern, ...]:
    """Compile the setting `training.patterns`; raise SettingsError for an invalid pattern."""
    if len(expressions) > MAX_PATTERNS:
        raise SettingsError(
            f"setting training.patterns: at most {MAX_PATTERNS} patterns are allowed, found {len(expressions)}"
        )
    return tuple(_pattern(expression) for expression in expressions)


def _pattern(expression: str) -> LogPattern:
    try:
        if len(expression) > MAX_PATTERN_LENGTH:
            raise ValueError(f"longer than {MAX_PATTERN_LENGTH} characters")
        compiled = re.compile(expression)
        _refuse_nested_repeats(parser.parse(expression), inside=False)
    except (re.error, ValueError, RecursionError) as error:
        raise SettingsError(f"setting training.patterns: {expression[:80]!r}: {error}") from None
    names = compiled.groupindex.keys() - {"rank"}
    if not names or not all(is_metric_name(name) for name in names):
        raise SettingsError(
            f"setting training.patterns: {expression[:80]!r}: needs a named group for each metric, "
            "such as (?P<loss>[\\d.]+)"
        )
    return LogPattern("user", "", compiled)


def _refuse_nested_repeats(parsed: Any, *, inside: bool) -> None:
    for kind, argument in parsed:
        repeats = kind in (constants.MAX_REPEAT, constants.MIN_REPEAT)
        many = repeats and argument[1] > _HARMLESS_REPEATS
        if many and inside:
            raise ValueError("a repeat within a repeat, as in (a+)+, may take forever; remove one of them")
        for child in _children(kind, argument):
            _refuse_nested_repeats(child, inside=inside or many)


def _children(kind: Any, argument: Any) -> list[Any]:
    if kind in (constants.MAX_REPEAT, constants.MIN_REPEAT, constants.POSSESSIVE_REPEAT):
        return [argument[2]]
    if kind is constants.SUBPATTERN:
        return [argument[3]]
    if kind is constants.BRANCH:
        return list(argument[1])
    if kind in (constants.ASSERT, constants.ASSERT_NOT):
        return [argument[1]]
    if kind is constants.ATOMIC_GROUP:
        return [argument]
    if kind is constants.GROUPREF_EXISTS:
        return [child for child in argument[1:] if child is not None]
    return []
