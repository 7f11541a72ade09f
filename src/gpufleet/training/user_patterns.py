"""Compile the log patterns of the settings: regular expressions whose named groups are metrics.

    [training]
    patterns = ['^update (?P<step>\\d+) xent=(?P<loss>[\\d.]+)']

They run on RE2, which takes time linear in the length of a line whatever the pattern is. Python's own
engine backtracks: a pattern such as `(a|aa)+$` would stop the agent on some lines.
"""

from collections.abc import Sequence

import re2

from gpufleet.errors import SettingsError
from gpufleet.training.log_patterns import LogPattern
from gpufleet.training.metric_names import is_metric_name

MAX_PATTERNS = 50
MAX_PATTERN_LENGTH = 1000


def compile_user_patterns(expressions: Sequence[str]) -> tuple[LogPattern, ...]:
    """Compile the setting `training.patterns`; raise SettingsError for an invalid pattern."""
    if len(expressions) > MAX_PATTERNS:
        raise SettingsError(
            f"setting training.patterns: at most {MAX_PATTERNS} patterns are allowed, found {len(expressions)}"
        )
    options = re2.Options()
    options.log_errors = False  # to standard error
    return tuple(_pattern(expression, options) for expression in expressions)


def _pattern(expression: str, options: re2.Options) -> LogPattern:
    try:
        if len(expression) > MAX_PATTERN_LENGTH:
            raise ValueError(f"longer than {MAX_PATTERN_LENGTH} characters")
        compiled = re2.compile(expression, options)
    except re2.error as error:
        reason = error.args[0].decode(errors="replace")
        raise SettingsError(
            f"setting training.patterns: {expression[:80]!r}: {reason} (RE2 syntax: no lookaround, no "
            "backreferences)"
        ) from None
    except ValueError as error:
        raise SettingsError(f"setting training.patterns: {expression[:80]!r}: {error}") from None
    names = compiled.groupindex.keys() - {"rank"}
    if not names or not all(is_metric_name(name) for name in names):
        raise SettingsError(
            f"setting training.patterns: {expression[:80]!r}: needs a named group for each metric, "
            "such as (?P<loss>[\\d.]+)"
        )
    return LogPattern("user", "", compiled)  # has the methods of re.Pattern that the log reader uses
