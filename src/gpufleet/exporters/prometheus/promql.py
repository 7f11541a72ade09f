"""Write PromQL so that no value can break out of its matcher.

Every expression is built here, from metric names of our own table and from values escaped by
`literal`. A set of values becomes one regular expression of alternatives, each escaped for RE2 first
and then for the string literal around it.
"""

import re
from collections.abc import Collection, Iterable

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*", re.ASCII)
_SPECIAL = re.compile(r"([\\.+*?()|\[\]{}^$])")
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n"}


def literal(value: str) -> str:
    """Return `value` as a PromQL string literal."""
    # PromQL accepts only UTF-8; no stored label contains a lone surrogate.
    clean = value.encode("utf-8", "replace").decode("utf-8")
    return '"' + re.sub(r'[\\"\n]', lambda match: _ESCAPES[match[0]], clean) + '"'


def one_of(values: Collection[str], before: str = "", after: str = "") -> str:
    """Return a regular expression literal that matches exactly `values`, between two patterns."""
    alternatives = "|".join(_SPECIAL.sub(r"\\\1", value) for value in sorted(values))
    return literal(f"{before}({alternatives}){after}" if before or after else alternatives)


def names_selector(names: Collection[str]) -> str:
    """Return a selector for the series of any of these metrics."""
    for name in names:
        if not _NAME.fullmatch(name):
            raise ValueError(f"{name!r} is not the name of a metric")
    return f"{{__name__=~{one_of(names)}}}" if len(names) != 1 else next(iter(names))


def by(operator: str, labels: Iterable[str], expression: str) -> str:
    """Return `max by (a, b) (expression)`."""
    return f"{operator} by ({', '.join(labels)}) ({expression})"


def either(expressions: Iterable[str]) -> str:
    """Return the series of the first expression, and those of the others that it lacks."""
    return " or ".join(expressions)


def without(expression: str, labels: Iterable[str], others: Collection[str]) -> str:
    """Return the series of `expression` whose `labels` occur in none of `others`."""
    if not others:
        return expression
    return f"({expression}) unless on ({', '.join(labels)}) ({either(others)})"
