"""CEL expressions: `x-kubernetes-validations` of custom resources and `matchConditions` of webhooks.

Expressions are compiled when a definition arrives, so an invalid one is refused with the definition.
A rule that uses `oldSelf` is a transition rule and runs only on updates. Of the Kubernetes function
libraries only the common list and string functions are available; other functions raise an error.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import cel

from kubelite.errors import Cause
from kubelite.json import Json
from kubelite.patch.field_sets import item_key
from kubelite.schema.tree import Node

_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "lowerAscii": lambda text: text.lower(),
    "upperAscii": lambda text: text.upper(),
    "trim": lambda text: text.strip(),
    "isSorted": lambda items: all(a <= b for a, b in pairwise(items)),
    "sum": lambda items: sum(items),
    "indexOf": lambda items, item: items.index(item) if item in items else -1,
    "join": lambda items, separator="": separator.join(items),
    "split": lambda text, separator: text.split(separator),
    "replace": lambda text, old, new: text.replace(old, new),
}


@dataclass(frozen=True)
class Rule:
    """A compiled rule."""

    program: cel.Program
    source: str
    is_transition_rule: bool
    message: str
    message_program: cel.Program | None
    reason: str
    field: str


def compile_expression(source: str) -> cel.Program:
    """Compile an expression. Raise ValueError with the parser's message if it is invalid."""
    return cel.compile(source)


def evaluate(program: cel.Program, variables: dict[str, Any]) -> Any:
    """Evaluate an expression. Raise ValueError if the evaluation fails."""
    context = cel.Context(variables=variables, functions=_FUNCTIONS)
    try:
        return program.execute(context)
    except (RuntimeError, KeyError, TypeError, ValueError, IndexError) as error:
        raise ValueError(f"{program.source}: {error}") from error


def compile_rules(node: Node, path: str = "") -> dict[int, tuple[Rule, ...]]:
    """Compile the rules of a schema, by node. Raise ValueError with the path of an invalid rule."""
    found: dict[int, tuple[Rule, ...]] = {}
    for here, below in _walk(node, path):
        texts = here.schema.get("x-kubernetes-validations") or ()
        if texts:
            found[id(here)] = tuple(
                _rule(text, f"{below}.x-kubernetes-validations[{at}].rule") for at, text in enumerate(texts)
            )
    return found


def _walk(node: Node, path: str) -> Iterator[tuple[Node, str]]:
    if not node.rules_below:
        return
    yield node, path
    for name, child in node.properties.items():
        yield from _walk(child, f"{path}.properties[{name}]")
    if node.extra is not None:
        yield from _walk(node.extra, f"{path}.additionalProperties")
    if node.items is not None:
        yield from _walk(node.items, f"{path}.items")


def _rule(text: Json, path: str) -> Rule:
    try:
        program = compile_expression(text["rule"])
        message = compile_expression(text["messageExpression"]) if text.get("messageExpression") else None
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path}: compilation failed: {error}") from error
    return Rule(
        program=program,
        source=text["rule"],
        is_transition_rule="oldSelf" in program.variables() and not text.get("optionalOldSelf"),
        message=text.get("message", ""),
        message_program=message,
        reason=text.get("reason", "FieldValueInvalid"),
        field=text.get("fieldPath", ""),
    )


def rule_violations(
    rules: dict[int, tuple[Rule, ...]], node: Node, value: Any, old: Any, path: str = ""
) -> Iterator[Cause]:
    """Yield a cause for each violated rule."""
    if not node.rules_below or value is None:
        return
    for rule in rules.get(id(node), ()):
        if rule.is_transition_rule and old is None:
            continue
        cause = _violation(rule, value, old, path)
        if cause is not None:
            yield cause
    if isinstance(value, dict):
        before = old if isinstance(old, dict) else {}
        for name, item in value.items():
            child = node.child(name)
            if child is not None:
                yield from rule_violations(
                    rules, child, item, before.get(name), f"{path}.{name}" if path else name
                )
    elif isinstance(value, list) and node.items is not None:
        items = node.items
        keyed = (
            {item_key(node, item): item for item in old}
            if isinstance(old, list) and node.list_type == "map"
            else {}
        )
        for at, item in enumerate(value):
            yield from rule_violations(
                rules, items, item, keyed.get(item_key(node, item)) if keyed else None, f"{path}[{at}]"
            )


def _violation(rule: Rule, value: Any, old: Any, path: str) -> Cause | None:
    variables = {"self": value} if old is None else {"self": value, "oldSelf": old}
    field = path + rule.field
    try:
        if evaluate(rule.program, variables) is True:
            return None
        message = str(evaluate(rule.message_program, variables)) if rule.message_program else rule.message
    except ValueError as error:
        return Cause(field, f"Invalid value: {_describe(value)}: rule could not be evaluated: {error}")
    text = message or f"failed rule: {rule.source}"
    label = {"FieldValueForbidden": "Forbidden", "FieldValueRequired": "Required value"}.get(rule.reason)
    return Cause(
        field, f"{label}: {text}" if label else f"Invalid value: {_describe(value)}: {text}", rule.reason
    )


def _describe(value: Any) -> str:
    if isinstance(value, dict):
        return '"object"'
    if isinstance(value, list):
        return '"array"'
    if isinstance(value, str):
        return f'"{value}"'
    return str(value).lower() if isinstance(value, bool) else str(value)
