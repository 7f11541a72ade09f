"""From what a client sent to what may be stored: types, unknown fields, defaults, rules.

Built-in kinds are read as the real server's typed decoder reads them (wrong type: 400, null:
absent); custom resources by their schema (wrong value: 422). Unknown fields are dropped, and
the client is told as its `fieldValidation` asks: not at all, by a warning, or by a refusal.
"""

from typing import Any

from kubelite.builtin import fields
from kubelite.builtin.defaults import complete
from kubelite.builtin.validation import birth_faults, change_faults
from kubelite.custom_resources.kinds import custom_faults, kinds_of
from kubelite.errors import Cause, bad_request, invalid
from kubelite.json import Json
from kubelite.kinds import Kind
from kubelite.objects.context import Asking
from kubelite.objects.metadata import metadata_faults
from kubelite.schema.tree import WrongType, fill_defaults, prune, read_typed


def conform(kind: Kind, body: Any, asking: Asking) -> Json:
    """The object as the schema knows it, with the schema's defaults."""
    if not isinstance(body, dict):
        raise bad_request(f"a {kind.kind} is a JSON object")
    _check_type(kind, body)
    metadata = body.get("metadata")
    if metadata is not None and not isinstance(metadata, dict):
        raise bad_request("metadata is not an object")
    unknown: list[str] = []
    item = _read_custom(kind, body, unknown) if kind.custom else _read_builtin(kind, body, unknown)
    if unknown:
        _tell(kind, unknown, asking)
    return {**item, "apiVersion": kind.api_version, "kind": kind.kind}


def _read_builtin(kind: Kind, body: Json, unknown: list[str]) -> Json:
    try:
        item = read_typed(kind.schema, body, unknown)
    except WrongType as fault:
        where = f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}'
        raise bad_request(f"{where}: {fault}") from fault
    item.setdefault("metadata", {})
    return item


def _read_custom(kind: Kind, body: Json, unknown: list[str]) -> Json:
    try:
        metadata = read_typed(fields.node("ObjectMeta"), body.get("metadata") or {}, unknown, "metadata")
    except WrongType as fault:
        raise bad_request(str(fault)) from fault
    item = prune(kind.schema, {**body, "metadata": metadata}, unknown)
    return {**fill_defaults(kind.schema, item), "metadata": metadata}


def _check_type(kind: Kind, body: Json) -> None:
    version, name = body.get("apiVersion"), body.get("kind")
    if version and version != kind.api_version:
        raise bad_request(
            f"the API version in the data ({version}) does not match the expected API version ({kind.api_version})"
        )
    if name and name != kind.kind:
        raise bad_request(f'{name} in version "{kind.version}" cannot be handled as a {kind.kind}')


def _tell(kind: Kind, unknown: list[str], asking: Asking) -> None:
    if asking.field_validation == "Ignore":
        return
    sentences = [f'unknown field "{path}"' for path in sorted(unknown)]
    if asking.field_validation == "Strict":
        prefix = (
            ""
            if kind.custom
            else f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: '
        )
        raise bad_request(f"{prefix}strict decoding error: {', '.join(sentences)}")
    asking.warnings.extend(sentences)


def finish(kind: Kind, item: Json) -> Json:
    """What the kind derives from its own fields, filled in."""
    return item if kind.custom else complete(kind.plural, item)


def check(kind: Kind, item: Json, old: Json | None, subresource: str = "") -> None:
    """422 with every reason if the object must not be stored like this."""
    faults: list[Cause] = metadata_faults(kind, item["metadata"])
    if kind.custom:
        faults += custom_faults(kind, item, old)
    elif not subresource:
        faults += birth_faults(kind.plural, item)
        if old is not None:
            faults += change_faults(kind.plural, old, item)
        if kind.plural == "customresourcedefinitions" and not faults:
            faults += _definition_faults(item)
    if faults:
        raise invalid(kind.group, kind.kind, item["metadata"].get("name", ""), faults)


def _definition_faults(item: Json) -> list[Cause]:
    try:
        kinds_of(item)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return [Cause("spec.versions", f"Invalid value: {error}")]
    return []


def same_content(a: Json, b: Json) -> bool:
    """Whether two states of an object differ only in what the server notes about writes."""
    if a is b:
        return True
    for name in {*a, *b}:
        if name == "metadata":
            if _noted(a["metadata"]) != _noted(b["metadata"]):
                return False
        elif a.get(name) != b.get(name):
            return False
    return True


def _noted(metadata: Json) -> tuple[Json, list[Any]]:
    rest = {
        name: value for name, value in metadata.items() if name not in ("managedFields", "resourceVersion")
    }
    managers = [
        (entry.get("manager"), entry.get("operation"), entry.get("subresource"), entry.get("fieldsV1"))
        for entry in metadata.get("managedFields") or ()
    ]
    return rest, managers
