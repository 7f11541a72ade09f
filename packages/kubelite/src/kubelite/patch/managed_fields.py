"""Server-side apply and `metadata.managedFields`.

Each field manager (`fieldManager`, or the program name from the User-Agent) owns the fields that
it set last. A plain write takes ownership of what it changes. An apply states all fields of its
manager: it conflicts if it would change a field of another manager, unless forced, and removes
fields that the manager stated before if no other manager owns them.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

from kubelite.errors import apply_conflict
from kubelite.json import Json
from kubelite.kinds import Kind
from kubelite.patch.field_sets import (
    Fields,
    compare,
    field_set,
    intersect,
    is_granular,
    item_key,
    leaf_paths,
    subtract,
    union,
)
from kubelite.schema.tree import Node

_NEVER_OWNED = frozenset(
    f"f:{name}"
    for name in (
        "name",
        "namespace",
        "creationTimestamp",
        "selfLink",
        "uid",
        "generation",
        "managedFields",
        "resourceVersion",
    )
)

LAST_APPLIED = "kubectl.kubernetes.io/last-applied-configuration"


@dataclass(frozen=True)
class Writer:
    """The manager, time and subresource of a write."""

    manager: str
    time: str
    subresource: str = ""
    operation: str = "Update"


def owned_fields(kind: Kind, item: Json) -> Fields:
    """Return the fields of an object that a manager can own."""
    return _strip(field_set(kind.schema, item))


def _strip(fields: Fields) -> Fields:
    result = {key: below for key, below in fields.items() if key not in ("f:apiVersion", "f:kind")}
    metadata = result.get("f:metadata")
    if metadata is not None:
        kept = {key: below for key, below in metadata.items() if key not in _NEVER_OWNED}
        if kept:
            result["f:metadata"] = kept
        else:
            del result["f:metadata"]
    return result


def update_managed_fields(kind: Kind, old: Json | None, new: Json, writer: Writer) -> list[Json]:
    """Return the managedFields of `new` after a plain write over `old`."""
    if old is None:
        fields = _strip(field_set(kind.schema, new, new=True))
        return [_entry(kind, writer, fields)] if fields else []
    entries = _previous_entries(old, new)
    changed, removed = compare(kind.schema, _without_managed_fields(old), _without_managed_fields(new))
    changed, removed = _strip(changed), _strip(removed)
    if not changed and not removed:
        return entries
    lost = union(changed, removed)
    result: list[Json] = []
    mine: Fields = {}
    for entry in entries:
        if _belongs_to(entry, writer):
            mine = subtract(entry.get("fieldsV1", {}), removed)
            continue
        rest = subtract(entry.get("fieldsV1", {}), lost)
        if rest:
            result.append(entry if rest == entry.get("fieldsV1") else {**entry, "fieldsV1": rest})
    mine = union(mine, changed)
    if mine:
        result.append(_entry(kind, writer, mine))
    return result


def _previous_entries(old: Json, new: Json) -> list[Json]:
    """Return the entries to update. A client may replace them, or clear them with one empty entry."""
    given = new["metadata"].get("managedFields")
    if given is None:
        return list(old["metadata"].get("managedFields") or [])
    return [entry for entry in given if entry.get("manager")]


def _without_managed_fields(item: Json) -> Json:
    metadata = {name: value for name, value in item["metadata"].items() if name != "managedFields"}
    return {**item, "metadata": metadata}


def _belongs_to(entry: Json, writer: Writer) -> bool:
    return (
        entry.get("manager") == writer.manager
        and entry.get("operation") == writer.operation
        and entry.get("subresource", "") == writer.subresource
    )


def _entry(kind: Kind, writer: Writer, fields: Fields) -> Json:
    entry: Json = {
        "manager": writer.manager,
        "operation": writer.operation,
        "apiVersion": kind.api_version,
        "time": writer.time,
        "fieldsType": "FieldsV1",
        "fieldsV1": fields,
    }
    if writer.subresource:
        entry["subresource"] = writer.subresource
    return entry


def apply(kind: Kind, live: Json | None, intent: Json, writer: Writer, *, force: bool) -> Json:
    """Return the object after an apply, with its managedFields. Raise 409 on conflict unless forced."""
    mine = owned_fields(kind, intent)
    if live is None:
        entries = [_entry(kind, writer, mine)] if mine else []
        return {**intent, "metadata": {**intent["metadata"], "managedFields": entries}}
    entries = list(live["metadata"].get("managedFields") or [])
    others = [entry for entry in entries if not _belongs_to(entry, writer)]
    before: Fields = next((entry["fieldsV1"] for entry in entries if _belongs_to(entry, writer)), {})
    bare = _without_managed_fields(live)
    merged: Json = _merge(kind.schema, bare, intent)
    changed, _ = compare(kind.schema, bare, merged)
    taken = _strip(changed)
    if writer.manager == "kubectl" and not force:
        force = _migrates_from_client_side(kind, bare, others, taken)
    others = _remove_contested(others, taken, force=force)
    abandoned = subtract(before, mine)
    for entry in others:
        abandoned = subtract(abandoned, entry.get("fieldsV1", {}))
    if abandoned:
        merged = _without(kind.schema, merged, abandoned)
    if mine == before and merged == bare:
        return live
    if mine:
        others.append(_entry(kind, writer, mine))
    return {**merged, "metadata": {**merged["metadata"], "managedFields": others}}


def _migrates_from_client_side(kind: Kind, live: Json, others: list[Json], taken: Fields) -> bool:
    """Return whether kubectl takes over fields that it applied on the client side, which is no conflict."""
    text = (live["metadata"].get("annotations") or {}).get(LAST_APPLIED)
    if not text:
        return False
    try:
        last = msgspec.json.decode(text, type=dict[str, Any])
    except msgspec.DecodeError:
        return False
    if not isinstance(last.get("metadata"), dict):
        return False
    changed_since, removed_since = compare(kind.schema, last, live)
    own = subtract(owned_fields(kind, last), removed_since)
    own = subtract(own, intersect(own, changed_since))
    return not any(subtract(intersect(entry.get("fieldsV1", {}), taken), own) for entry in others)


def _remove_contested(others: list[Json], changed: Fields, *, force: bool) -> list[Json]:
    """Return the entries of the other managers without the changed fields. Raise 409 unless forced."""
    conflicts: list[tuple[str, str]] = []
    kept: list[Json] = []
    for entry in others:
        fields = entry.get("fieldsV1", {})
        contested = intersect(fields, changed)
        if not contested:
            kept.append(entry)
            continue
        conflicts += [(_words(entry), path) for path in leaf_paths(contested)]
        rest = subtract(fields, contested)
        if rest:
            kept.append({**entry, "fieldsV1": rest})
    if conflicts and not force:
        raise apply_conflict(conflicts)
    return kept


def _words(entry: Json) -> str:
    text = f'"{entry.get("manager", "")}"'
    if entry.get("subresource"):
        text += f' with subresource "{entry["subresource"]}"'
    if entry.get("operation") == "Update":
        text += f" using {entry.get('apiVersion', '')}"
        if entry.get("time"):
            text += f" at {entry['time']}"
    return text


def _merge(node: Node | None, live: Any, intent: Any) -> Any:
    if not (is_granular(node, live) and is_granular(node, intent) and type(live) is type(intent)):
        return intent
    if isinstance(intent, dict):
        result = dict(live)
        for name, value in intent.items():
            child = node.child(name) if node else None
            result[name] = _merge(child, live[name], value) if name in live else value
        return result
    assert node is not None
    return _merge_items(node, live, intent)


def _merge_items(node: Node, live: list[Any], intent: list[Any]) -> list[Any]:
    olds = {item_key(node, item): item for item in live}
    news = {item_key(node, item): item for item in intent}
    if None in olds or None in news:
        return intent
    order: Iterable[Any] = news if all(key in news for key in olds) else {**olds, **news}
    return [
        _merge(node.items, olds[key], news[key])
        if key in olds and key in news
        else news.get(key, olds.get(key))
        for key in order
    ]


def _without(node: Node | None, value: Any, fields: Fields) -> Any:
    """Return a value without the given fields and without maps that become empty."""
    if isinstance(value, dict):
        result = dict(value)
        for key, below in fields.items():
            name = key[2:]
            if not key.startswith("f:") or name not in result:
                continue
            if below:
                result[name] = _without(node.child(name) if node else None, result[name], below)
                if not result[name]:
                    del result[name]
            else:
                del result[name]
        return result
    if isinstance(value, list) and node is not None:
        return [
            _without(node.items, item, fields.get(key, {}))
            for item in value
            if (key := item_key(node, item) or "") not in fields or (fields[key] and "." not in fields[key])
        ]
    return value
