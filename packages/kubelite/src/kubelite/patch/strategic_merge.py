"""Strategic merge patch: a merge patch that merges lists by key.

The schema names the merge key of each list. The directives of kubectl are supported:
`$patch: delete|replace|merge`, `$deleteFromPrimitiveList/…`, `$setElementOrder/…` and `$retainKeys`.
Custom resources have no merge keys; the server answers 415 for them.
"""

from typing import Any

from kubelite.errors import bad_request
from kubelite.json import Json
from kubelite.schema.tree import Node

_DELETE_FROM, _ORDER = "$deleteFromPrimitiveList/", "$setElementOrder/"


def strategic_merge(node: Node | None, target: Json, patch: Json) -> Json:
    """Return the target with a strategic merge patch applied."""
    directive = patch.get("$patch")
    if directive == "replace":
        plain: Json = _plain({name: value for name, value in patch.items() if name != "$patch"})
        return plain
    if directive == "delete":
        return {}
    if directive not in (None, "merge"):
        raise bad_request(f"unknown $patch directive {directive!r}; it takes replace, delete or merge")
    result = dict(target)
    if "$retainKeys" in patch:
        keep = set(patch["$retainKeys"])
        result = {name: value for name, value in result.items() if name in keep}
    orders: dict[str, list[Any]] = {}
    for name, value in patch.items():
        if name.startswith(_ORDER):
            orders[name.removeprefix(_ORDER)] = value
        elif name.startswith(_DELETE_FROM):
            field = name.removeprefix(_DELETE_FROM)
            result[field] = [item for item in result.get(field) or [] if item not in value]
        elif name not in ("$patch", "$retainKeys"):
            _merge_field(node.child(name) if node else None, result, name, value)
    for field, order in orders.items():
        child = node.child(field) if node else None
        if isinstance(result.get(field), list):
            result[field] = _ordered(result[field], order, child.patch_key if child else "")
    return result


def _merge_field(node: Node | None, result: Json, name: str, value: Any) -> None:
    present = result.get(name)
    if value is None:
        result.pop(name, None)
    elif isinstance(value, dict):
        result[name] = strategic_merge(node, present if isinstance(present, dict) else {}, value)
    elif isinstance(value, list) and node is not None and node.patch_merge:
        result[name] = _merge_list(node, present if isinstance(present, list) else [], value)
    else:
        result[name] = _plain(value)


def _merge_list(node: Node, target: list[Any], patch: list[Any]) -> list[Any]:
    key = node.patch_key
    if not key:
        return target + [item for item in patch if item not in target]
    result = list(target)
    if any(isinstance(item, dict) and item.get("$patch") == "replace" for item in patch):
        return [_plain(item) for item in patch if item.get("$patch") != "replace" or len(item) > 1]
    for item in patch:
        if not isinstance(item, dict) or key not in item:
            raise bad_request(f"map: {item} does not contain declared merge key: {key}")
        at = next((i for i, old in enumerate(result) if old.get(key) == item[key]), None)
        if item.get("$patch") == "delete":
            result = [old for old in result if old.get(key) != item[key]]
        elif at is None:
            result.append(strategic_merge(node.items, {}, item))
        else:
            result[at] = strategic_merge(node.items, result[at], item)
    return result


def _ordered(items: list[Any], order: list[Any], key: str) -> list[Any]:
    """Sort the items named in `order`; the others keep their positions."""
    ranks: dict[Any, int] = {}
    for rank, expected in enumerate(order):
        ranks[expected.get(key) if isinstance(expected, dict) else expected] = rank
    named = [item for item in items if _identity(item, key) in ranks]
    named.sort(key=lambda item: ranks[_identity(item, key)])
    replacements = iter(named)
    return [next(replacements) if _identity(item, key) in ranks else item for item in items]


def _identity(item: Any, key: str) -> Any:
    return item.get(key) if isinstance(item, dict) else item


def _plain(value: Any) -> Any:
    """Return a value without directives and nulls, for places without a merge target."""
    if isinstance(value, dict):
        return {
            name: _plain(item)
            for name, item in value.items()
            if item is not None and not name.startswith("$")
        }
    if isinstance(value, list):
        return [_plain(item) for item in value]
    return value
