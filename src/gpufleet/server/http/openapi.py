"""`/openapi.json`, made from the routes themselves.

Types are described by msgspec, which also encodes and decodes them, so the schemas are true. Made
here and not by Litestar, because each route's parameters are one struct and its data goes into
its family's envelope, of which Litestar's generator knows nothing.
"""

import inspect
import json
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from litestar.handlers import HTTPRouteHandler

from gpufleet.server.auth.gate import PUBLIC
from gpufleet.server.http.envelopes import FAMILIES, Envelope, family_of
from gpufleet.server.http.routing import Declaration, route_of

Schema = dict[str, Any]

_REF = "#/components/schemas/{name}"
_TRACE = "0af7651916cd43dd8448eb211c80319c"
_PATH_TYPES: dict[str, Schema] = {"str": {"type": "string", "minLength": 1}, "int": {"type": "integer"}}
_TAGS = {
    "clusters": "Clusters and workloads",
    "aggregation": "Aggregated statistics",
    "live": "Live GPUs and this server",
}
_INTRODUCTION = """
Every answer is in the envelope of its family, errors included, and the HTTP status says the same
as the body. The request's trace id is in the header `X-Trace-Id`. An unknown query parameter is
ignored and named in a `Warning` header; a wrong value is a 400 that says what is taken.
""".strip()


def openapi(handlers: Sequence[HTTPRouteHandler], version: str, *, login: bool) -> bytes:
    """The document for `handlers`; `login` says whether callers must log in."""
    routes = [route for route in map(route_of, handlers) if route is not None and not route.hidden]
    schemas, components = _schemas(routes)
    document = {
        "openapi": "3.1.0",
        "info": {
            "title": "gpufleet",
            "version": version,
            "description": _INTRODUCTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "tags": [{"name": family.name, "description": _TAGS[family.name]} for family in FAMILIES],
        "security": [{"bearer": []}] if login else [],
        "paths": _paths(routes, schemas),
        "components": {
            "schemas": components | {_error_name(family): family.error_schema for family in FAMILIES},
            "responses": {_error_name(family): _error_response(family) for family in FAMILIES},
            "headers": _headers(),
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }
    return msgspec.json.encode(document)


def _schemas(routes: Iterable[Declaration]) -> tuple[dict[int, Schema], dict[str, Schema]]:
    """The schema of each data and body type by its identity, and the named ones among them."""
    types = [each for route in routes for each in (route.data, route.body) if each is not None]
    made, components = msgspec.json.schema_components(types, ref_template=_REF)
    return {id(each): schema for each, schema in zip(types, made, strict=True)}, components


def _paths(routes: Iterable[Declaration], schemas: dict[int, Schema]) -> dict[str, Schema]:
    paths: dict[str, Schema] = {}
    for route in routes:
        paths.setdefault(route.template, {})[route.method.lower()] = _operation(route, schemas)
    return paths


def _operation(route: Declaration, schemas: dict[int, Schema]) -> Schema:
    family = family_of(route.template)
    summary, _, description = (inspect.getdoc(route.handler) or route.template).partition("\n")
    operation: Schema = {
        "operationId": route.handler.__name__,
        "tags": [family.name],
        "summary": summary.rstrip("."),
        "description": description.strip(),
        "parameters": [*_path_parameters(route), *_query_parameters(route)],
        "responses": _responses(route, family, schemas),
    }
    if route.template in PUBLIC:
        operation["security"] = []
    if route.body is not None:
        content: Schema = {"schema": schemas[id(route.body)]}
        if route.body_example is not None:
            content["example"] = msgspec.to_builtins(route.body_example)
        operation["requestBody"] = {"required": True, "content": {"application/json": content}}
    return operation


def _path_parameters(route: Declaration) -> list[Schema]:
    return [
        {"name": name, "in": "path", "required": True, "schema": _PATH_TYPES[kind]}
        for name, kind in route.path_parameters
    ]


def _query_parameters(route: Declaration) -> list[Schema]:
    if route.query is None:
        return []
    return [
        {
            "name": name,
            "in": "query",
            "required": route.query.fields[name].required,
            "description": schema.get("description", ""),
            "schema": {key: value for key, value in schema.items() if key != "description"},
        }
        for name, schema in route.query.schemas.items()
    ]


def _responses(route: Declaration, family: Envelope, schemas: dict[int, Schema]) -> Schema:
    statuses = ["400", "401", "403", "404", "429", "500", "503", "default"]
    if route.body is not None:
        statuses += ["413", "415"]
    error = {"$ref": f"#/components/responses/{_error_name(family)}"}
    return {
        str(route.status): _success(route, family, schemas),
        **({"304": {"description": "The caller has it already."}} if route.method == "GET" else {}),
        **dict.fromkeys(statuses, error),
    }


def _success(route: Declaration, family: Envelope, schemas: dict[int, Schema]) -> Schema:
    if route.data is None:
        content: Schema = {"schema": {} if route.media_type == "application/json" else {"type": "string"}}
    else:
        content = {"schema": family.success_schema(schemas[id(route.data)])}
        if route.example is not None:
            encoded = msgspec.json.encode(route.example)
            content["example"] = json.loads(family.head + encoded + family.tail(None, _TRACE))
    return {
        "description": "It worked.",
        "headers": _header_references("X-Trace-Id", "Warning", "ETag"),
        "content": {
            route.media_type: content,
            **{text: {"schema": {"type": "string"}} for text in route.texts},
        },
    }


def _error_name(family: Envelope) -> str:
    return f"{family.name.capitalize()}Error"


def _error_response(family: Envelope) -> Schema:
    example = json.loads(
        family.error(400, "parameter pageNum: '0' is not valid; it takes a whole number", _TRACE)
    )
    return {
        "description": "It did not work; the sentence says why.",
        "headers": _header_references("X-Trace-Id"),
        "content": {
            "application/json": {
                "schema": {"$ref": _REF.format(name=_error_name(family))},
                "example": example,
            }
        },
    }


def _headers() -> dict[str, Schema]:
    return {
        "X-Trace-Id": {
            "description": "The request's trace id; log lines carry it.",
            "schema": {"type": "string", "pattern": "^[0-9a-f]{32}$"},
        },
        "Warning": {
            "description": "Names query parameters that were ignored.",
            "schema": {"type": "string"},
        },
        "ETag": {
            "description": "Send it back as If-None-Match to get a 304 while nothing changed.",
            "schema": {"type": "string"},
        },
    }


def _header_references(*names: str) -> Schema:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}
