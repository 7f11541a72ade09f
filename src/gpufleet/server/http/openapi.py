"""Build `/openapi.json` (OpenAPI 3.1) from the routes.

Starlette has no generator of its own. msgspec, which encodes and decodes the types, also describes
them, so the schemas are always those of the wire.
"""

import inspect
import json
from collections.abc import Sequence
from typing import Any

import msgspec
from starlette.convertors import IntegerConvertor

from gpufleet.server.auth.gate import PUBLIC
from gpufleet.server.http.envelopes import ENVELOPES, Envelope, envelope_of
from gpufleet.server.http.routing import Route

Schema = dict[str, Any]

_REF = "#/components/schemas/{name}"
_TRACE = "0af7651916cd43dd8448eb211c80319c"
_TEXT = {"schema": {"type": "string"}}
_ERRORS = ("400", "401", "403", "404", "429", "500", "503", "default")
_DESCRIPTION = """
Every response has the envelope of its path, errors included, and the HTTP status says the same as
the body. The header `X-Trace-Id` carries the request's trace id. An unknown query parameter is
ignored and named in a `Warning` header; a wrong value is a 400 that says which values are valid.
""".strip()
_HEADERS = {
    "X-Trace-Id": {
        "description": "The request's trace id; log lines carry it.",
        "schema": {"type": "string", "pattern": "^[0-9a-f]{32}$"},
    },
    "Warning": {"description": "Names query parameters that were ignored.", **_TEXT},
    "X-Gpufleet-Scope": {
        "description": "The namespaces that the data is limited to, percent-encoded and separated by commas; "
        "absent for callers who may see every namespace.",
        **_TEXT,
    },
    "ETag": {"description": "Send it as If-None-Match to get a 304 while nothing changed.", **_TEXT},
}


def openapi(routes: Sequence[Route], version: str, *, login: bool) -> bytes:
    """Return the document for `routes`; `login` says whether callers need a token."""
    described = [route for route in routes if route.include_in_schema]
    types = [each for route in described for each in (route.data, route.body) if each is not None]
    made, components = msgspec.json.schema_components(types, ref_template=_REF)
    schemas = {id(each): schema for each, schema in zip(types, made, strict=True)}
    paths: dict[str, Schema] = {}
    for route in described:
        paths.setdefault(route.path_format, {})[route.method.lower()] = _operation(route, schemas)
    document = {
        "openapi": "3.1.0",
        "info": {
            "title": "gpufleet",
            "version": version,
            "description": _DESCRIPTION,
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "tags": [{"name": each.name, "description": each.description} for each in ENVELOPES],
        "security": [{"bearer": []}] if login else [],
        "paths": paths,
        "components": {
            "schemas": components | {_error_name(each): each.error_schema for each in ENVELOPES},
            "responses": {_error_name(each): _error_response(each) for each in ENVELOPES},
            "headers": _HEADERS,
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer"}},
        },
    }
    return msgspec.json.encode(document)


def _operation(route: Route, schemas: dict[int, Schema]) -> Schema:
    envelope = envelope_of(route.path_format)
    summary, _, description = (inspect.getdoc(route.handler) or route.path_format).partition("\n")
    operation: Schema = {
        "operationId": route.name,
        "tags": [envelope.name],
        "summary": summary.rstrip("."),
        "description": description.strip(),
        "parameters": _parameters(route),
        "responses": _responses(route, envelope, schemas),
    }
    if route.path in PUBLIC:
        operation["security"] = []
    if route.body is not None:
        content: Schema = {"schema": schemas[id(route.body)]}
        if route.body_example is not None:
            content["example"] = msgspec.to_builtins(route.body_example)
        operation["requestBody"] = {"required": True, "content": {"application/json": content}}
    return operation


def _parameters(route: Route) -> list[Schema]:
    in_path = [
        {
            "name": name,
            "in": "path",
            "required": True,
            "schema": {"type": "integer"}
            if isinstance(convertor, IntegerConvertor)
            else {"type": "string", "minLength": 1},
        }
        for name, convertor in route.param_convertors.items()
    ]
    in_query = [
        {
            "name": name,
            "in": "query",
            "required": route.query.fields[name].required,
            "description": schema.get("description", ""),
            "schema": {key: value for key, value in schema.items() if key != "description"},
        }
        for name, schema in route.query.schemas.items()
    ]
    return in_path + in_query


def _responses(route: Route, envelope: Envelope, schemas: dict[int, Schema]) -> Schema:
    statuses = _ERRORS if route.body is None else (*_ERRORS, "413", "415")
    error = {"$ref": f"#/components/responses/{_error_name(envelope)}"}
    not_modified = {"304": {"description": "Not modified."}} if route.method == "GET" else {}
    return {"200": _success(route, envelope, schemas), **not_modified, **dict.fromkeys(statuses, error)}


def _success(route: Route, envelope: Envelope, schemas: dict[int, Schema]) -> Schema:
    content: Schema = {"schema": {}} if route.media_type == "application/json" else _TEXT
    if route.data is not None:
        content = {"schema": envelope.success_schema(schemas[id(route.data)])}
        if route.example is not None:
            encoded = msgspec.json.encode(route.example)
            content["example"] = json.loads(envelope.head + encoded + envelope.tail(None, _TRACE))
    return {
        "description": "Success.",
        "headers": _header_refs(*_HEADERS),
        "content": {route.media_type: content, **dict.fromkeys(route.extra_media_types, _TEXT)},
    }


def _error_name(envelope: Envelope) -> str:
    return f"{envelope.name.capitalize()}Error"


def _error_response(envelope: Envelope) -> Schema:
    message = "parameter pageNum: '0' is not valid; it takes a whole number"
    content = {
        "schema": {"$ref": _REF.format(name=_error_name(envelope))},
        "example": json.loads(envelope.error(400, message, _TRACE)),
    }
    return {
        "description": "Failure; the message says why.",
        "headers": _header_refs("X-Trace-Id"),
        "content": {"application/json": content},
    }


def _header_refs(*names: str) -> Schema:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in names}
