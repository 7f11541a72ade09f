"""Parse label and field selectors into predicates over objects.

Labels support `=`, `==`, `!=`, `in (…)`, `notin (…)`, `key` and `!key`. Fields support `=`, `==` and
`!=` on the paths that a kind offers. A selector that cannot be parsed is a 400.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from kubelite.errors import bad_request

Object = Mapping[str, Any]
Predicate = Callable[[Object], bool]
Labels = Mapping[str, str]
_Requirement = Callable[[Labels], bool]

_TOKEN = re.compile(r"\s*(?:(?P<op>==|!=|=|!|\(|\)|,)|(?P<word>[^\s=!(),]+))")
_OPERATORS = ("==", "!=", "=", "!", "(", ")", ",")
_EMPTY: Labels = {}


class _Tokens:
    def __init__(self, text: str) -> None:
        self.items: list[str] = []
        position = 0
        stripped = text.rstrip()
        while position < len(stripped):
            match = _TOKEN.match(stripped, position)
            if match is None:
                raise bad_request(f"unable to parse requirement: {stripped[position:]!r}")
            self.items.append(match.group("op") or match.group("word"))
            position = match.end()
        self.at = 0

    def peek(self) -> str:
        return self.items[self.at] if self.at < len(self.items) else ""

    def take(self) -> str:
        token = self.peek()
        self.at += 1
        return token

    def expect(self, expected: str, description: str) -> None:
        token = self.take()
        if token != expected:
            raise bad_request(f"found '{token}', expected: {description}")


def parse_labels(text: str) -> Callable[[Labels], bool] | None:
    """Return a predicate over labels, or None if every object matches."""
    if not text.strip():
        return None
    tokens = _Tokens(text)
    requirements: list[_Requirement] = []
    while True:
        requirements.append(_requirement(tokens))
        if tokens.at >= len(tokens.items):
            break
        tokens.expect(",", "',' or 'end of string'")
    if len(requirements) == 1:
        return requirements[0]
    return lambda labels: all(requirement(labels) for requirement in requirements)


def _requirement(tokens: _Tokens) -> _Requirement:
    if tokens.peek() == "!":
        tokens.take()
        absent = _word(tokens, "identifier")
        return lambda labels: absent not in labels
    key = _word(tokens, "identifier")
    operator = tokens.peek()
    if operator in ("", ","):
        return lambda labels: key in labels
    tokens.take()
    if operator in ("=", "=="):
        value = _value(tokens)
        return lambda labels: labels.get(key) == value
    if operator == "!=":
        value = _value(tokens)
        return lambda labels: labels.get(key) != value
    if operator in ("in", "notin"):
        values = _values(tokens)
        if operator == "in":
            return lambda labels: labels.get(key) in values
        return lambda labels: labels.get(key) not in values
    raise bad_request(f"found '{operator}', expected: in, notin, =, ==, !=, gt, lt")


def _word(tokens: _Tokens, description: str) -> str:
    token = tokens.take()
    if not token or token in _OPERATORS:
        raise bad_request(f"found '{token}', expected: {description}")
    return token


def _value(tokens: _Tokens) -> str:
    """Return a value, which may be empty: `a=` selects labels with an empty value."""
    return "" if tokens.peek() in ("", ",") else _word(tokens, "identifier")


def _values(tokens: _Tokens) -> frozenset[str]:
    tokens.expect("(", "'('")
    values: set[str] = set()
    while tokens.peek() != ")":
        if tokens.peek() == ",":
            values.add("")
        else:
            values.add(_word(tokens, "identifier"))
        if tokens.peek() == ",":
            tokens.take()
        elif tokens.peek() != ")":
            raise bad_request(f"found '{tokens.peek()}', expected: ',' or ')'")
    tokens.take()
    return frozenset(values)


def match_label_selector(selector: Mapping[str, Any] | None, labels: Labels) -> bool:
    """Return whether a `LabelSelector` (matchLabels, matchExpressions) matches labels."""
    if not selector:
        return True
    for key, value in (selector.get("matchLabels") or {}).items():
        if labels.get(key) != value:
            return False
    return all(_expression(e, labels) for e in selector.get("matchExpressions") or ())


def _expression(expression: Mapping[str, Any], labels: Labels) -> bool:
    key, operator = expression.get("key", ""), expression.get("operator")
    if operator == "Exists":
        return key in labels
    if operator == "DoesNotExist":
        return key not in labels
    values = expression.get("values") or ()
    return (labels.get(key) in values) == (operator == "In")


def parse_fields(text: str, offered: Sequence[str]) -> Predicate | None:
    """Return a predicate for the field paths that a kind offers, or None if every object matches."""
    if not text.strip():
        return None
    checks: list[tuple[tuple[str, ...], str, bool]] = []
    for part in text.split(","):
        if not part.strip():
            continue
        match = re.fullmatch(r"\s*([^=!\s]+)\s*(==|=|!=)\s*(.*?)\s*", part)
        if match is None:
            raise bad_request(f"invalid field selector: {part!r}; can't understand it")
        path, operator, value = match.groups()
        if path not in offered:
            raise bad_request(f"field label not supported: {path}")
        checks.append((tuple(path.split(".")), value.replace("\\,", ","), operator != "!="))
    return lambda item: all((field_text(item, path) == value) is expected for path, value, expected in checks)


def field_text(item: Object, path: Sequence[str]) -> str:
    """Return the value at a path as text, empty if absent."""
    value: Any = item
    for step in path:
        value = value.get(step) if isinstance(value, dict) else None
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def both(labels: Callable[[Labels], bool] | None, fields: Predicate | None) -> Predicate | None:
    """Combine both selectors into one predicate, or None if everything matches."""
    if labels is None:
        return fields
    expected = labels

    def by_labels(item: Object) -> bool:
        return expected(item["metadata"].get("labels") or _EMPTY)

    if fields is None:
        return by_labels
    also = fields
    return lambda item: by_labels(item) and also(item)
