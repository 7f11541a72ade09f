"""Patterns of users, from the settings: regular expressions whose named groups are numbers.

    [training]
    patterns = ['^update (?P<step>\\d+) xent=(?P<loss>[\\d.]+)']

Python's engine tries alternatives one after another, and an expression in which a repeat repeats
a repeat, such as `(a+)+`, may take a lifetime for one line. Such expressions are refused when the
settings are read; lines are cut short, so that what is left takes polynomial time of a small number.
"""

import re
import warnings
from collections.abc import Sequence
from typing import Any

from gpufleet.errors import SettingsError
from gpufleet.training.names import is_name
from gpufleet.training.patterns import Pattern

with warnings.catch_warnings():
    warnings.simplefilter("ignore", DeprecationWarning)
    # The parsed form of an expression is not public, but the only sure way to see its repeats.
    from re import _constants as constants
    from re import _parser as parser

MOST_PATTERNS = 50
LONGEST_PATTERN = 1000
_MOST_TIMES = 16
"""A repeat of at most so many times does not count as one."""


def own_patterns(expressions: Sequence[str]) -> tuple[Pattern, ...]:
    """The patterns of the setting `training.patterns`; SettingsError says what is wrong with one."""
    if len(expressions) > MOST_PATTERNS:
        raise SettingsError(
            f"setting training.patterns: at most {MOST_PATTERNS} are taken, not {len(expressions)}"
        )
    return tuple(_pattern(expression) for expression in expressions)


def _pattern(expression: str) -> Pattern:
    try:
        if len(expression) > LONGEST_PATTERN:
            raise ValueError(f"longer than {LONGEST_PATTERN} characters")
        compiled = re.compile(expression)
        _refuse_nested(parser.parse(expression), inside=False)
    except (re.error, ValueError, RecursionError) as error:
        raise SettingsError(f"setting training.patterns: {expression[:80]!r}: {error}") from None
    names = compiled.groupindex.keys() - {"rank"}
    if not names or not all(is_name(name) for name in names):
        raise SettingsError(
            f"setting training.patterns: {expression[:80]!r}: needs a named group for each number, "
            "such as (?P<loss>[\\d.]+)"
        )
    return Pattern("own", "", compiled)


def _refuse_nested(parsed: Any, *, inside: bool) -> None:
    for kind, argument in parsed:
        repeats = kind in (constants.MAX_REPEAT, constants.MIN_REPEAT)
        many = repeats and argument[1] > _MOST_TIMES
        if many and inside:
            raise ValueError("a repeat within a repeat, as in (a+)+, may never end; write it without")
        for part in _parts(kind, argument):
            _refuse_nested(part, inside=inside or many)


def _parts(kind: Any, argument: Any) -> list[Any]:
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
        return [part for part in argument[1:] if part is not None]
    return []
