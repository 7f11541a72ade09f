"""Build kinds from CustomResourceDefinitions and validate custom resources.

A definition yields one `Kind` per served version. Its schema is compiled three times: into the
tree that prunes and adds defaults, into a jsonschema-rs validator, and into CEL programs. Validation
errors are worded like those of kube-apiserver.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import jsonschema_rs
import msgspec

from kubelite.builtin import fields
from kubelite.custom_resources.cel_rules import compile_rules, rule_violations
from kubelite.errors import Cause
from kubelite.json import Json
from kubelite.kinds import SELECTABLE, Column, Kind, Scale
from kubelite.patch.field_sets import item_key
from kubelite.schema.tree import compile_schema

_AGE = Column("Age", "date", ".metadata.creationTimestamp")
_SKIPPED = ("apiVersion", "kind", "metadata")
_MAX_ERRORS = 100


def kinds_from(definition: Json) -> list[Kind]:
    """Return a kind for each served version of a definition. Raise ValueError if a schema is invalid."""
    spec = definition["spec"]
    return [_kind(spec, version) for version in spec["versions"] if version.get("served")]


def _kind(spec: Json, version: Json) -> Kind:
    names = spec["names"]
    source = (version.get("schema") or {}).get("openAPIV3Schema") or {}
    node = compile_schema(source)
    for name in ("apiVersion", "kind"):
        node.properties[name] = fields.node("str")
    node.properties["metadata"] = fields.node("ObjectMeta")
    subresources = version.get("subresources") or {}
    scale = subresources.get("scale")
    selectable = tuple(field["jsonPath"].lstrip(".") for field in version.get("selectableFields") or ())
    try:
        validator = jsonschema_rs.Draft4Validator(_to_json_schema(source, top=True), validate_formats=True)
    except (ValueError, jsonschema_rs.ValidationError) as error:
        raise ValueError(f"spec.versions[{version['name']}].schema.openAPIV3Schema: {error}") from error
    return Kind(
        group=spec["group"],
        version=version["name"],
        kind=names["kind"],
        plural=names["plural"],
        singular=names.get("singular") or names["kind"].lower(),
        list_kind=names.get("listKind") or f"{names['kind']}List",
        namespaced=spec["scope"] == "Namespaced",
        schema=node,
        short_names=tuple(names.get("shortNames") or ()),
        categories=tuple(names.get("categories") or ()),
        status="status" in subresources,
        scale=None
        if scale is None
        else Scale(
            scale["specReplicasPath"], scale["statusReplicasPath"], scale.get("labelSelectorPath", "")
        ),
        fields=SELECTABLE + selectable,
        columns=_columns(version.get("additionalPrinterColumns")),
        collection=f"{spec['group']}/{names['plural']}",
        custom=True,
        unconditional_update=False,
        generation=True,
        source=source,
        validator=validator,
        rules=compile_rules(node, f"spec.versions[{version['name']}].schema.openAPIV3Schema"),
        warning=version.get("deprecationWarning") or "" if version.get("deprecated") else "",
    )


def _columns(given: list[Json] | None) -> tuple[Column, ...]:
    if not given:
        return (_AGE,)
    return tuple(
        Column(
            one["name"],
            one["type"],
            one["jsonPath"],
            one.get("format", ""),
            one.get("priority", 0),
            one.get("description", ""),
        )
        for one in given
    )


def _to_json_schema(schema: Mapping[str, Any], *, top: bool = False) -> Json:
    """Translate a structural schema to plain JSON Schema."""
    plain: Json = {}
    for name, value in schema.items():
        if name in ("properties", "patternProperties"):
            plain[name] = {
                key: _to_json_schema(one) for key, one in value.items() if not (top and key in _SKIPPED)
            }
        elif name in ("items", "additionalProperties", "not") and isinstance(value, Mapping):
            plain[name] = _to_json_schema(value)
        elif name in ("allOf", "anyOf", "oneOf"):
            plain[name] = [_to_json_schema(one) for one in value]
        elif not name.startswith("x-") and name not in (
            "nullable",
            "default",
            "example",
            "description",
            "title",
            "externalDocs",
        ):
            plain[name] = value
    if top and "required" in plain:
        plain["required"] = [name for name in plain["required"] if name not in _SKIPPED]
        if not plain["required"]:
            del plain["required"]
    if schema.get("x-kubernetes-int-or-string"):
        plain.pop("anyOf", None)
        plain["type"] = ["integer", "string"]
    if schema.get("nullable") and isinstance(plain.get("type"), str):
        plain["type"] = [plain["type"], "null"]
        if "enum" in plain:
            plain["enum"] = [*plain["enum"], None]
    return plain


def custom_resource_errors(kind: Kind, item: Json, old: Json | None) -> list[Cause]:
    """Return the errors in a custom resource. Rules run only if all values are valid."""
    errors: list[Cause] = []
    for error in kind.validator.iter_errors(item):
        errors.append(_cause_of(error))
        if len(errors) >= _MAX_ERRORS:
            break
    if errors:
        return errors
    return list(rule_violations(kind.rules, kind.schema, item, old)) + list(_duplicates(kind, item))


def _duplicates(kind: Kind, item: Json) -> Iterator[Cause]:
    waiting: list[tuple[Any, Any, str]] = [(kind.schema, item, "")]
    while waiting:
        node, value, path = waiting.pop()
        if isinstance(value, dict):
            waiting += [
                (child, one, f"{path}.{name}" if path else name)
                for name, one in value.items()
                if (child := node.child(name))
            ]
        elif isinstance(value, list) and node.items is not None:
            seen: set[str] = set()
            for at, one in enumerate(value):
                key = item_key(node, one) if node.list_type != "atomic" else None
                if key is not None and key in seen:
                    yield Cause(f"{path}[{at}]", f"Duplicate value: {key[2:]}", "FieldValueDuplicate")
                if key is not None:
                    seen.add(key)
                waiting.append((node.items, one, f"{path}[{at}]"))


def _cause_of(error: Any) -> Cause:
    path = "".join(
        f"[{step}]" if isinstance(step, int) else f".{step}" for step in error.instance_path
    ).lstrip(".")
    violation, value = error.kind, error.instance
    shown = (
        msgspec.json.encode(value).decode()
        if not isinstance(value, dict | list)
        else f'"{_type_name(value)}"'
    )
    match violation.name:
        case "required":
            return Cause(f"{path}.{violation.property}".lstrip("."), "Required value", "FieldValueRequired")
        case "enum":
            names = ", ".join(msgspec.json.encode(option).decode() for option in violation.options)
            return Cause(
                path, f"Unsupported value: {shown}: supported values: {names}", "FieldValueNotSupported"
            )
        case "type":
            expected = ",".join(name for name in violation.types if name != "null")
            text = f'Invalid value: "{_type_name(value)}": {path} in body must be of type {expected}: "{_type_name(value)}"'
            return Cause(path, text, "FieldValueTypeInvalid")
        case "minimum":
            return Cause(
                path,
                f"Invalid value: {shown}: {path} in body should be greater than or equal to {violation.limit}",
            )
        case "maximum":
            return Cause(
                path,
                f"Invalid value: {shown}: {path} in body should be less than or equal to {violation.limit}",
            )
        case "pattern":
            return Cause(path, f"Invalid value: {shown}: {path} in body should match '{violation.pattern}'")
        case "maxLength":
            return Cause(path, f"Too long: may not be more than {violation.limit} bytes", "FieldValueTooLong")
        case "maxItems":
            return Cause(
                path,
                f"Too many: {len(value)}: must have at most {violation.limit} items",
                "FieldValueTooMany",
            )
    return Cause(path, f"Invalid value: {shown}: {path} in body: {error.message}")


def _type_name(value: Any) -> str:
    names = {str: "string", bool: "boolean", int: "integer", float: "number", dict: "object", list: "array"}
    return names.get(type(value), "null")
