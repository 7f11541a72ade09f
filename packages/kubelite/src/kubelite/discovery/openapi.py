"""OpenAPI v3: one document per group version.

`kubectl apply` checks here whether the server validates fields (the `fieldValidation` parameter of
PATCH), and `kubectl explain` reads the components. Documents are built on demand and cached until
the registry changes.
"""

import hashlib

from kubelite.builtin import fields
from kubelite.json import Json, encode
from kubelite.kinds import Kind, Registry

_QUERY = ("dryRun", "fieldManager", "fieldValidation", "pretty")


class OpenApi:
    """The OpenAPI documents of a registry."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._made: dict[str, bytes] = {}
        self._changes = -1

    def index(self) -> bytes:
        """Return the index at `/openapi/v3`. URLs contain a hash so that clients can cache documents."""
        paths = {}
        for group, versions in self._registry.group_versions().items():
            for version in versions:
                path = f"apis/{group}/{version}" if group else f"api/{version}"
                document = self.document(group, version) or b""
                digest = hashlib.sha256(document).hexdigest().upper()
                paths[path] = {"serverRelativeURL": f"/openapi/v3/{path}?hash={digest}"}
        return encode({"paths": paths})

    def document(self, group: str, version: str) -> bytes | None:
        """Return the document of a group version, or None if it is not served."""
        if self._changes != self._registry.changes:
            self._made.clear()
            self._changes = self._registry.changes
        name = f"{group}/{version}"
        if name not in self._made:
            kinds = self._registry.of(group, version)
            if not kinds:
                return None
            self._made[name] = encode(_document(kinds))
        return self._made[name]


def _document(kinds: list[Kind]) -> Json:
    schemas: Json = {"DeleteOptions": fields.component("DeleteOptions")}
    paths: Json = {}
    for kind in kinds:
        for needed in (
            fields.referenced_types(kind.type_name)
            if kind.type_name
            else fields.referenced_types("ObjectMeta")
        ):
            schemas.setdefault(needed, fields.component(needed))
        name = component_name(kind)
        schemas[name] = _described(kind)
        paths |= _paths(kind, name)
    return {
        "openapi": "3.0.0",
        "info": {"title": "kubelite", "version": "v1.36.0"},
        "paths": paths,
        "components": {"schemas": schemas},
    }


def component_name(kind: Kind) -> str:
    """Return the component name of a kind."""
    if kind.custom:
        return ".".join([*reversed(kind.group.split(".")), kind.version, kind.kind])
    return kind.type_name


def _gvk(kind: Kind) -> Json:
    return {"group": kind.group, "kind": kind.kind, "version": kind.version}


def _described(kind: Kind) -> Json:
    common = {
        "apiVersion": {"type": "string", "description": "The group and version of this object."},
        "kind": {"type": "string", "description": "The kind of this object."},
    }
    schema = dict(kind.source) if kind.custom else fields.component(kind.type_name)
    properties = {**schema.get("properties", {}), **common}
    if kind.custom:
        metadata = {
            "description": fields.field_description(kind.kind, "metadata"),
            "allOf": [fields.reference("ObjectMeta")],
        }
        properties["metadata"] = metadata
        schema.setdefault("type", "object")
    return {**schema, "properties": properties, "x-kubernetes-group-version-kind": [_gvk(kind)]}


def _paths(kind: Kind, component: str) -> Json:
    root = f"/apis/{kind.group}/{kind.version}" if kind.group else f"/api/{kind.version}"
    base = f"{root}/namespaces/{{namespace}}/{kind.plural}" if kind.namespaced else f"{root}/{kind.plural}"
    body = {"content": {"application/json": {"schema": fields.reference(component)}}}
    parameters = [
        {"name": name, "in": "query", "schema": {"type": "string", "uniqueItems": True}} for name in _QUERY
    ]
    paths: Json = {base: {"post": _operation("post", kind, body, parameters)}}
    if kind.stored:
        paths[base]["get"] = _operation("list", kind, None, [])
        paths[f"{base}/{{name}}"] = {
            "get": _operation("get", kind, None, []),
            "put": _operation("put", kind, body, parameters),
            "patch": _operation("patch", kind, body, parameters),
            "delete": _operation("delete", kind, None, parameters[:1]),
        }
    return paths


def _operation(action: str, kind: Kind, body: Json | None, parameters: list[Json]) -> Json:
    operation: Json = {
        "x-kubernetes-action": action,
        "x-kubernetes-group-version-kind": _gvk(kind),
        "responses": {"200": {"description": "OK"}},
        "parameters": parameters,
    }
    if body is not None:
        operation["requestBody"] = body
    return operation
