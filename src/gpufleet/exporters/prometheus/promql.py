"""Write PromQL so that no value can break out of its matcher.

Every expression that the adapter asks is put together here, from names in our own table and
from values that went through `literal`. A set of values becomes one regular expression of
alternatives, each escaped for RE2 first and then for the string literal around it.
"""

import re
from collections.abc import Collection, Iterable, Mapping

_NAME = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*", re.ASCII)
_SPECIAL = re.compile(r"([\\.+*?()|\[\]{}^$])")
_ESCAPES = {"\\": "\\\\", '"': '\\"', "\n": "\\n"}

Matchers = Mapping[str, Collection[str]]
"""Label → the values that it may have."""


def literal(value: str) -> str:
    """A PromQL string literal that means exactly `value`."""
    # PromQL takes UTF-8 only; a lone surrogate can be in no stored label, nor can NUL be told apart.
    clean = value.encode("utf-8", "replace").decode("utf-8")
    return '"' + re.sub(r'[\\"\n]', lambda match: _ESCAPES[match[0]], clean) + '"'


def one_of(values: Collection[str], before: str = "", after: str = "") -> str:
    """A literal whose regular expression matches exactly `values`; `before` and `after` are patterns around them."""
    alternatives = "|".join(_SPECIAL.sub(r"\\\1", value) for value in sorted(values))
    return literal(f"{before}({alternatives}){after}" if before or after else alternatives)


def selector(name: str, matchers: Matchers) -> str:
    """`name{label=~"a|b",…}`."""
    _check(name)
    return f"{name}{{{','.join(_matcher(label, values) for label, values in matchers.items())}}}"


def names_selector(names: Collection[str]) -> str:
    """Series of any of the metrics named."""
    for name in names:
        _check(name)
    return f"{{__name__=~{one_of(names)}}}" if len(names) != 1 else next(iter(names))


def by(operator: str, labels: Iterable[str], expression: str) -> str:
    """`max by (a, b) (expression)`."""
    return f"{operator} by ({', '.join(labels)}) ({expression})"


def either(expressions: Iterable[str]) -> str:
    """All series of the first expression, and those of the others that it lacks."""
    return " or ".join(expressions)


def without(expression: str, labels: Iterable[str], others: Collection[str]) -> str:
    """The series of `expression` whose `labels` none of `others` has."""
    if not others:
        return expression
    return f"({expression}) unless on ({', '.join(labels)}) ({either(others)})"


def _matcher(label: str, values: Collection[str]) -> str:
    _check(label)
    if len(values) == 1:
        return f"{label}={literal(next(iter(values)))}"
    return f"{label}=~{one_of(values)}"


def _check(name: str) -> None:
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of a metric or label")
