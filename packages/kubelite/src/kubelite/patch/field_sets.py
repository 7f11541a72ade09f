"""Field sets: the trees in `metadata.managedFields`.

A field set has the FieldsV1 form: `f:name` for a field, `k:{"name":"x"}` for an item of a list with
keys, `v:"x"` for a member of a set, `.` for the item itself. A leaf is an empty dict. The functions
build field sets from objects and from differences of objects, and combine them.
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from kubelite.json import Json
from kubelite.schema.tree import Node

Fields = dict[str, Any]
_LEAF: Fields = {}
_NO_PROPERTIES: dict[str, Node] = {}
_dump = msgspec.json.Encoder(order="sorted").encode


def item_key(node: Node, item: Any) -> str | None:
    """Return the key of a list item in a field set, or None if the item lacks its keys."""
    if node.list_type == "set":
        return "v:" + _dump(item).decode()
    if not isinstance(item, dict):
        return None
    keys: Json = {}
    for key in node.keys:
        if key in item:
            keys[key] = item[key]
        elif node.items is not None and (child := node.items.child(key)) is not None and child.has_default:
            keys[key] = child.default
    return "k:" + _dump(keys).decode() if keys else None


def is_granular(node: Node | None, value: Any) -> bool:
    """Return whether a value is owned field by field rather than as a whole."""
    if isinstance(value, dict):
        return node is None or not node.atomic
    return isinstance(value, list) and node is not None and node.list_type in ("map", "set")


def field_set(node: Node | None, value: Any, *, new: bool = False) -> Fields:
    """Return every field that a value sets. With `new`, a map such as labels counts as a field itself.

    Compare classes instead of calling isinstance: this runs over every created object.
    """
    if not value:
        return _LEAF
    if value.__class__ is dict:
        return _map_field_set(node, value, new)
    if value.__class__ is not list or node is None or node.list_type not in ("map", "set"):
        return _LEAF
    owned: Fields = {}
    for item in value:
        key = item_key(node, item)
        if key is None:
            return _LEAF
        owned[key] = {".": _LEAF, **field_set(node.items, item, new=new)} if key[0] == "k" else _LEAF
    return owned


def _map_field_set(node: Node | None, value: Json, new: bool) -> Fields:
    result: Fields = {}
    if node is None:
        properties, extra = _NO_PROPERTIES, None
    elif node.atomic:
        return _LEAF
    else:
        properties, extra = node.properties, node.extra
        if new and extra is not None:
            result["."] = _LEAF
    for name, item in value.items():
        kind = item.__class__
        if kind is dict or kind is list:
            result["f:" + name] = field_set(properties.get(name) or extra, item, new=new)
        else:
            result["f:" + name] = _LEAF
    return result


def compare(node: Node | None, old: Any, new: Any) -> tuple[Fields, Fields]:
    """Return the fields that were set or changed, and the fields that were removed."""
    if not (is_granular(node, old) and is_granular(node, new) and type(old) is type(new)):
        return {}, {}
    olds, news = _children(node, old), _children(node, new)
    if olds is None or news is None:
        return {}, {}
    changed: Fields = {}
    removed: Fields = {}
    for key, (child, value) in news.items():
        before = olds.get(key)
        if before is None:
            changed[key] = _whole(key, child, value)
        elif before[1] != value:
            deeper_changed, deeper_removed = compare(child, before[1], value)
            if deeper_changed:
                changed[key] = deeper_changed
            if deeper_removed:
                removed[key] = deeper_removed
            if not deeper_changed and not deeper_removed:
                changed[key] = {}
    for key, (child, value) in olds.items():
        if key not in news:
            removed[key] = _whole(key, child, value)
    return changed, removed


def _whole(key: str, child: Node | None, value: Any) -> Fields:
    below = field_set(child, value, new=True)
    return {".": _LEAF, **below} if key[0] == "k" else below


def _children(node: Node | None, value: Any) -> dict[str, tuple[Node | None, Any]] | None:
    if isinstance(value, dict):
        return {"f:" + name: (node.child(name) if node else None, item) for name, item in value.items()}
    assert node is not None
    found: dict[str, tuple[Node | None, Any]] = {}
    for item in value:
        key = item_key(node, item)
        if key is None:
            return None
        found[key] = (node.items, item)
    return found


def union(a: Fields, b: Fields) -> Fields:
    """Return the fields of either set."""
    result = dict(a)
    for key, below in b.items():
        result[key] = union(result[key], below) if key in result else below
    return result


def subtract(a: Fields, b: Fields) -> Fields:
    """Return the fields of `a` that are not in `b`. A leaf of `b` removes everything below it."""
    result: Fields = {}
    for key, below in a.items():
        other = b.get(key)
        if other is None:
            result[key] = below
        elif below and other:
            rest = subtract(below, other)
            if rest:
                result[key] = rest
        elif not below and other and "." not in other:
            result[key] = below
    return result


def intersect(a: Fields, b: Fields) -> Fields:
    """Return the fields of both sets. A leaf matches everything below it."""
    result: Fields = {}
    for key, below in a.items():
        other = b.get(key)
        if other is None:
            continue
        if below and other:
            both = intersect(below, other)
            if both:
                result[key] = both
        elif other and not below:
            if "." in other:
                result[key] = {}
        else:
            result[key] = below
    return result


def leaf_paths(fields: Fields, path: str = "") -> Iterator[str]:
    """Yield the paths of the leaves as messages show them: `.spec.containers[name="c"].image`."""
    for key, below in fields.items():
        here = path if key == "." else path + _step(key)
        if key == "." and len(fields) > 1:
            continue
        if below and set(below) != {"."}:
            yield from leaf_paths(below, here)
        else:
            yield here


def _step(key: str) -> str:
    kind, _, text = key.partition(":")
    if kind == "f":
        return f".{text}"
    if kind == "k":
        keys: Json = msgspec.json.decode(text)
        return "[" + ",".join(f"{name}={_dump(value).decode()}" for name, value in keys.items()) + "]"
    return f"[={text}]"
