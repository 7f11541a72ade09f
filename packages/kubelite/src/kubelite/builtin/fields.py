"""Parse `fields.txt`, the compact table of the built-in types.

`node` returns the schema tree that the server walks, `component` the OpenAPI component for
kubectl. The table holds what validation, merging and `kubectl explain` need; the OpenAPI
document of Kubernetes is a hundred times as long.
"""

import copy
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

import msgspec

from kubelite.json import Json
from kubelite.schema.tree import Node, summarise

PLAIN: dict[str, Json] = {
    "str": {"type": "string"},
    "int": {"type": "integer", "format": "int64"},
    "num": {"type": "number"},
    "bool": {"type": "boolean"},
    "time": {"type": "string", "format": "date-time"},
    "bytes": {"type": "string", "format": "byte"},
    "quantity": {"x-kubernetes-int-or-string": True},
    "intstr": {"x-kubernetes-int-or-string": True},
    "any": {"x-kubernetes-preserve-unknown-fields": True},
}
OF_LIST = re.compile(r"\[([^/\]]+)(?:/(.+))?\]")
OF_MAP = re.compile(r"\{(.+)\}(/atomic)?")


@dataclass(frozen=True)
class BuiltinType:
    """One type of the table."""

    name: str
    fields: dict[str, str]
    required: tuple[str, ...]
    atomic: bool
    open: bool
    numbers: dict[str, tuple[int, ...]]


@cache
def builtin_types() -> dict[str, BuiltinType]:
    """Return every type of the table by name."""
    text = (files(__package__) / "fields.txt").read_text("utf-8")
    found: dict[str, list[str]] = {}
    words: list[str] = []
    for line in text.splitlines():
        if line.startswith("#"):
            continue
        if not line.startswith(" "):
            words = found.setdefault(line.strip(), [])
        else:
            words += line.split()
    return {name: _parse_type(name, words) for name, words in found.items()}


def _parse_type(name: str, words: list[str]) -> BuiltinType:
    fields: dict[str, str] = {}
    required: list[str] = []
    numbers: dict[str, tuple[int, ...]] = {}
    for word in words:
        if word.startswith("@"):
            continue
        field, _, kind = word.partition(":")
        field, _, number = field.partition("#")
        if number:
            numbers[field.rstrip("!")] = tuple(int(part) for part in number.split("."))
        if field.endswith("!"):
            field = field[:-1]
            required.append(field)
        fields[field] = kind
    return BuiltinType(name, fields, tuple(required), "@atomic" in words, "@open" in words, numbers)


def _list_extensions(mark: str) -> Json:
    keep = mark.endswith("+retainKeys")
    mark = mark.removesuffix("+retainKeys")
    strategy = "merge,retainKeys" if keep else "merge"
    if not mark:
        return {"x-kubernetes-list-type": "atomic"}
    if mark in ("set", "-set"):
        extensions: Json = {"x-kubernetes-list-type": "set"}
        return extensions if mark == "-set" else {**extensions, "x-kubernetes-patch-strategy": strategy}
    keys = mark.lstrip("-~").split(",")
    extensions = (
        {} if mark.startswith("~") else {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": keys}
    )
    if mark == "~set":
        return {"x-kubernetes-patch-strategy": strategy}
    if not mark.startswith("-"):
        extensions |= {"x-kubernetes-patch-strategy": strategy, "x-kubernetes-patch-merge-key": keys[0]}
    return extensions


@cache
def node(kind: str) -> Node:
    """Return the compiled schema of a type expression. Shared types are compiled once."""
    kind, default = _split_default(kind)
    if default:
        result = copy.copy(node(kind))
        result.has_default, result.default = True, default["default"]
        return result
    if kind in PLAIN:
        return Node(PLAIN[kind])
    if match := OF_LIST.fullmatch(kind):
        result = Node({"type": "array", **_list_extensions(match[2] or "")})
        result.items = node(match[1])
    elif match := OF_MAP.fullmatch(kind):
        result = Node({"type": "object", **({"x-kubernetes-map-type": "atomic"} if match[2] else {})})
        result.extra = node(match[1])
    else:
        builtin_type = builtin_types()[kind]
        result = Node(_object_schema(builtin_type))
        result.properties = {field: node(expression) for field, expression in builtin_type.fields.items()}
    summarise(result)
    return result


def _object_schema(builtin_type: BuiltinType) -> Json:
    schema: Json = {"type": "object"}
    if builtin_type.required:
        schema["required"] = list(builtin_type.required)
    if builtin_type.atomic:
        schema["x-kubernetes-map-type"] = "atomic"
    if builtin_type.open:
        schema["x-kubernetes-preserve-unknown-fields"] = True
    return schema


def reference(name: str) -> Json:
    """Return a reference to a component of an OpenAPI v3 document."""
    return {"$ref": f"#/components/schemas/{name}"}


def _split_default(kind: str) -> tuple[str, Json]:
    kind, equals, text = kind.partition("=")
    if not equals:
        return kind, {}
    try:
        return kind, {"default": msgspec.json.decode(text)}
    except msgspec.DecodeError:
        return kind, {"default": text}


def _expression_schema(kind: str) -> Json:
    kind, default = _split_default(kind)
    if kind in PLAIN:
        return {**PLAIN[kind], **default}
    if match := OF_LIST.fullmatch(kind):
        return {"type": "array", **_list_extensions(match[2] or ""), "items": _expression_schema(match[1])}
    if match := OF_MAP.fullmatch(kind):
        return {"type": "object", "additionalProperties": _expression_schema(match[1])}
    return {"allOf": [reference(kind)], "default": {}, **default}


def component(name: str) -> Json:
    """Return a type as an OpenAPI v3 component that refers to other types."""
    builtin_type = builtin_types()[name]
    properties: dict[str, Any] = {
        field: {"description": field_description(name, field), **_expression_schema(expression)}
        for field, expression in builtin_type.fields.items()
    }
    return {"description": type_description(name), **_object_schema(builtin_type), "properties": properties}


def referenced_types(name: str) -> set[str]:
    """Return the type and all types that it refers to, directly or indirectly."""
    seen: set[str] = set()
    waiting = [name]
    while waiting:
        current = waiting.pop()
        if current in seen:
            continue
        seen.add(current)
        for expression in builtin_types()[current].fields.values():
            inner = expression.partition("=")[0]
            while match := OF_LIST.fullmatch(inner) or OF_MAP.fullmatch(inner):
                inner = match[1]
            if inner not in PLAIN:
                waiting.append(inner)
    return seen


_COMMON = {
    "metadata": "Standard object metadata: name, namespace, labels, annotations, owners.",
    "spec": "The desired state.",
    "status": "The observed state. Written by controllers.",
}


def field_description(type_name: str, field: str) -> str:
    """Return the text of `kubectl explain` for a field."""
    return _COMMON.get(field) or f"{_words(field)} of the {_words(type_name)}."


def type_description(type_name: str) -> str:
    """Return the text of `kubectl explain` for a type."""
    return f"{type_name}: a built-in type, with the fields that kubelite supports."


def _words(name: str) -> str:
    return re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()
