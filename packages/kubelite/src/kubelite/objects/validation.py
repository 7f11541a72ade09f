"""Turn what a client sent into what may be stored: types, unknown fields, defaults, validation.

Built-in kinds are decoded like Go structs: a wrong type is a 400, null counts as absent. Custom
resources follow their schema: a wrong value is a 422. Unknown fields are dropped, and
`fieldValidation` decides whether the client gets nothing, a warning or an error.
"""

from typing import Any

from kubelite.builtin import fields
from kubelite.builtin.defaults import add_derived_fields
from kubelite.builtin.validation import object_errors, update_errors
from kubelite.custom_resources.kinds import custom_resource_errors, kinds_from
from kubelite.errors import Cause, bad_request, invalid
from kubelite.json import Json
from kubelite.kinds import Kind
from kubelite.objects.context import WriteContext
from kubelite.objects.metadata import metadata_errors
from kubelite.schema.tree import WrongType, decode_typed, fill_defaults, prune


def normalize(kind: Kind, body: Any, context: WriteContext) -> Json:
    """Return the object with unknown fields dropped and the defaults of its schema added."""
    if not isinstance(body, dict):
        raise bad_request(f"a {kind.kind} is a JSON object")
    _check_type(kind, body)
    metadata = body.get("metadata")
    if metadata is not None and not isinstance(metadata, dict):
        raise bad_request("metadata is not an object")
    unknown: list[str] = []
    item = _read_custom(kind, body, unknown) if kind.custom else _read_builtin(kind, body, unknown)
    if unknown:
        _report_unknown_fields(kind, unknown, context)
    return {**item, "apiVersion": kind.api_version, "kind": kind.kind}


def _read_builtin(kind: Kind, body: Json, unknown: list[str]) -> Json:
    try:
        item = decode_typed(kind.schema, body, unknown)
    except WrongType as error:
        where = f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}'
        raise bad_request(f"{where}: {error}") from error
    item.setdefault("metadata", {})
    return item


def _read_custom(kind: Kind, body: Json, unknown: list[str]) -> Json:
    try:
        metadata = decode_typed(fields.node("ObjectMeta"), body.get("metadata") or {}, unknown, "metadata")
    except WrongType as error:
        raise bad_request(str(error)) from error
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


def _report_unknown_fields(kind: Kind, unknown: list[str], context: WriteContext) -> None:
    if context.field_validation == "Ignore":
        return
    sentences = [f'unknown field "{path}"' for path in sorted(unknown)]
    if context.field_validation == "Strict":
        prefix = (
            ""
            if kind.custom
            else f'{kind.kind} in version "{kind.version}" cannot be handled as a {kind.kind}: '
        )
        raise bad_request(f"{prefix}strict decoding error: {', '.join(sentences)}")
    context.warnings.extend(sentences)


def add_derived(kind: Kind, item: Json) -> Json:
    """Return the object with the fields that its kind derives from others."""
    return item if kind.custom else add_derived_fields(kind.plural, item)


def validate(kind: Kind, item: Json, old: Json | None, subresource: str = "") -> None:
    """Raise 422 with all causes if the object is invalid."""
    errors: list[Cause] = metadata_errors(kind, item["metadata"])
    if kind.custom:
        errors += custom_resource_errors(kind, item, old)
    elif not subresource:
        errors += object_errors(kind.plural, item)
        if old is not None:
            errors += update_errors(kind.plural, old, item)
        if kind.plural == "customresourcedefinitions" and not errors:
            errors += _definition_errors(item)
    if errors:
        raise invalid(kind.group, kind.kind, item["metadata"].get("name", ""), errors)


def _definition_errors(item: Json) -> list[Cause]:
    try:
        kinds_from(item)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return [Cause("spec.versions", f"Invalid value: {error}")]
    return []


def same_content(a: Json, b: Json) -> bool:
    """Return whether two states are equal apart from resource version and times of managed fields."""
    if a is b:
        return True
    for name in {*a, *b}:
        if name == "metadata":
            if _comparable_metadata(a["metadata"]) != _comparable_metadata(b["metadata"]):
                return False
        elif a.get(name) != b.get(name):
            return False
    return True


def _comparable_metadata(metadata: Json) -> tuple[Json, list[Any]]:
    rest = {
        name: value for name, value in metadata.items() if name not in ("managedFields", "resourceVersion")
    }
    managers = [
        (entry.get("manager"), entry.get("operation"), entry.get("subresource"), entry.get("fieldsV1"))
        for entry in metadata.get("managedFields") or ()
    ]
    return rest, managers
