"""Structural schemas, compiled into a tree.

The tree drops unknown fields, adds defaults, and holds the list keys for server-side apply and
strategic merge patches. It is built from the OpenAPI form of CustomResourceDefinitions; `builtin`
brings built-in kinds into the same form. jsonschema-rs validates values of custom resources.
"""

from collections.abc import Mapping
from typing import Any

from kubelite.json import Json


class Node:
    """The schema of one place in an object."""

    __slots__ = (
        "atomic",
        "default",
        "defaulted",
        "defaults_below",
        "embedded",
        "extra",
        "has_default",
        "items",
        "keys",
        "list_type",
        "nullable",
        "open",
        "patch_key",
        "patch_merge",
        "properties",
        "rules_below",
        "schema",
        "type",
    )

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.schema = schema
        self.type: str = schema.get("type", "")
        if schema.get("x-kubernetes-int-or-string"):
            self.type = "intstr"
        self.open = bool(schema.get("x-kubernetes-preserve-unknown-fields"))
        self.embedded = bool(schema.get("x-kubernetes-embedded-resource"))
        self.nullable = bool(schema.get("nullable"))
        self.atomic = schema.get("x-kubernetes-map-type") == "atomic"
        self.list_type: str = schema.get("x-kubernetes-list-type", "atomic")
        self.keys: tuple[str, ...] = tuple(schema.get("x-kubernetes-list-map-keys", ()))
        strategy = schema.get("x-kubernetes-patch-strategy", "").split(",")
        self.patch_merge = "merge" in strategy
        self.patch_key: str = schema.get("x-kubernetes-patch-merge-key", "")
        self.has_default = "default" in schema
        self.default: Any = schema.get("default")
        self.properties: dict[str, Node] = {}
        self.extra: Node | None = None
        self.items: Node | None = None
        self.defaulted: tuple[tuple[str, Any], ...] = ()
        self.defaults_below = False
        self.rules_below = False

    def child(self, name: str) -> "Node | None":
        """Return the node of a field, or None if the schema does not describe it."""
        return self.properties.get(name) or self.extra


def compile_schema(schema: Mapping[str, Any]) -> Node:
    """Compile a schema in OpenAPI v3 form."""
    node = Node(schema)
    node.properties = {name: compile_schema(s) for name, s in schema.get("properties", {}).items()}
    extra = schema.get("additionalProperties")
    if isinstance(extra, Mapping):
        node.extra = compile_schema(extra)
    elif extra is True:
        node.open = True
    items = schema.get("items")
    if isinstance(items, Mapping):
        node.items = compile_schema(items)
    summarise(node)
    return node


def summarise(node: Node) -> None:
    """Record whether defaults or rules lie below a node, so that walks can skip the rest."""
    below = [*node.properties.values()]
    below += [child for child in (node.extra, node.items) if child is not None]
    node.defaults_below = any(child.has_default or child.defaults_below for child in below)
    node.defaulted = tuple(
        (name, fill_defaults(child, child.default))
        for name, child in node.properties.items()
        if child.has_default
    )
    node.rules_below = bool(node.schema.get("x-kubernetes-validations")) or any(
        child.rules_below for child in below
    )


def prune(node: Node, value: Any, unknown: list[str], path: str = "") -> Any:
    """Return the value without unknown fields and append their paths to `unknown`.

    Return the same object if nothing was dropped, so that the common case copies nothing.
    """
    if isinstance(value, dict):
        return _prune_map(node, value, unknown, path)
    if isinstance(value, list) and node.items is not None:
        item_node = node.items
        kept = [prune(item_node, item, unknown, f"{path}[{at}]") for at, item in enumerate(value)]
        return value if all(a is b for a, b in zip(kept, value, strict=True)) else kept
    return value


def _prune_map(node: Node, value: Json, unknown: list[str], path: str) -> Json:
    properties, extra = node.properties, node.extra
    if not properties and extra is None:
        if node.open or node.type != "object":
            return value
        unknown.extend(f"{path}.{name}" if path else name for name in value)
        return {} if value else value
    changed: Json | None = None
    for name, item in value.items():
        child = properties.get(name) or extra
        if child is None:
            if not node.open and not (node.embedded and name in ("apiVersion", "kind", "metadata")):
                unknown.append(f"{path}.{name}" if path else name)
                changed = dict(value) if changed is None else changed
                del changed[name]
            continue
        if isinstance(item, dict | list):
            kept = prune(child, item, unknown, f"{path}.{name}" if path else name)
            if kept is not item:
                changed = dict(value) if changed is None else changed
                changed[name] = kept
    return value if changed is None else changed


def fill_defaults(node: Node, value: Any) -> Any:
    """Return the value with defaults for fields that are absent, or null and not nullable."""
    if not node.defaults_below:
        return value
    if isinstance(value, list):
        items = node.items
        return value if items is None else [fill_defaults(items, item) for item in value]
    if not isinstance(value, dict):
        return value
    filled = dict(value)
    for name, child in node.properties.items():
        if child.has_default and (name not in filled or (filled[name] is None and not child.nullable)):
            filled[name] = child.default
        if child.defaults_below and filled.get(name) is not None:
            filled[name] = fill_defaults(child, filled[name])
    if node.extra is not None and node.extra.defaults_below:
        for name in filled:
            if name not in node.properties:
                filled[name] = fill_defaults(node.extra, filled[name])
    return filled


class WrongType(ValueError):
    """A value of a built-in kind has the wrong JSON type."""


_PLAIN: dict[str, tuple[type, ...]] = {
    "string": (str,),
    "boolean": (bool,),
    "integer": (int,),
    "number": (int, float),
    "intstr": (int, str, float),
}
_GO_NAMES = {
    "string": "string",
    "boolean": "bool",
    "integer": "int64",
    "intstr": "string",
    "number": "float64",
}
_JSON_NAMES = {str: "string", bool: "bool", dict: "object", list: "array", int: "number", float: "number"}


def decode_typed(node: Node, value: Json, unknown: list[str], path: str = "") -> Json:
    """Decode a built-in object: check types, drop nulls and unknown fields, add defaults.

    One walk does all four, because every write of a built-in object takes it.
    """
    properties, extra = node.properties, node.extra
    if not properties and extra is None:
        return value
    result: Json = {}
    for name, item in value.items():
        if item is None:
            continue
        child = properties.get(name) or extra
        if child is None:
            if node.open:
                result[name] = item
            else:
                unknown.append(f"{path}.{name}" if path else name)
            continue
        expected = child.type
        if expected == "object" or expected == "array":
            item = _read_inner(child, item, unknown, f"{path}.{name}" if path else name)
        elif expected and item.__class__ not in _PLAIN[expected]:
            raise _mismatch(expected, item, f"{path}.{name}" if path else name)
        result[name] = item
    for name, default in node.defaulted:
        if name not in result:
            result[name] = default
    return result


def _read_inner(node: Node, value: Any, unknown: list[str], path: str) -> Any:
    if node.type == "object":
        if value.__class__ is not dict:
            raise _mismatch("object", value, path)
        return decode_typed(node, value, unknown, path)
    if value.__class__ is not list:
        raise _mismatch("array", value, path)
    items = node.items
    if items is None or not items.type:
        return value
    if items.type == "object" or items.type == "array":
        return [_read_inner(items, item, unknown, f"{path}[{at}]") for at, item in enumerate(value)]
    plain = _PLAIN[items.type]
    for item in value:
        if item.__class__ not in plain:
            raise _mismatch(items.type, item, path)
    return value


def _mismatch(kind: str, value: Any, path: str) -> WrongType:
    got = _JSON_NAMES.get(type(value), "null")
    return WrongType(
        f"json: cannot unmarshal {got} into Go struct field {path} of type {_GO_NAMES.get(kind, kind)}"
    )
