"""The three response envelopes of the API.

Each path prefix has one envelope, for success and for errors. An envelope is stored as the bytes
before and after the data, so that data encoded once is reused for every caller.

    clusters      {"code":0,"message":"success","data":…,"traceId":…}
    aggregation   {"code":200,"message":"success","data":…}
    live          {"success":true,"data":…,"message":…,"error":null}

The response to a caller who is limited to namespaces ends in `"scope":{"namespaces":[…]}`.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import lru_cache
from http import HTTPStatus
from typing import Any

import msgspec

Schema = dict[str, Any]

_encode = msgspec.json.Encoder().encode
_TRACE_ID = {"type": "string", "pattern": "^[0-9a-f]{32}$", "description": "The request's trace id."}
_STATUS = {"type": "integer", "minimum": 400, "maximum": 599, "description": "The HTTP status."}
_TEXT = {"type": "string"}
_NULL = {"type": "null"}
_SCOPE = {
    "type": "object",
    "properties": {"namespaces": {"type": "array", "items": {"type": "string"}}},
    "required": ["namespaces"],
    "description": "The namespaces that the data is limited to; absent for callers who may see every namespace.",
}


@dataclass(frozen=True)
class Envelope:
    """One envelope: its bytes, and its schema for OpenAPI."""

    name: str
    description: str
    head: bytes
    tail: Callable[[str | None, str], bytes]
    """Build the bytes after the data from the response's message and the trace id."""
    error: Callable[[int, str, str], bytes]
    """Build an error body from status, message and trace id."""
    success_schema: Callable[[Schema], Schema]
    error_schema: Schema
    prefixes: tuple[str, ...] = ()


@lru_cache(1024)
def envelope_of(path: str) -> Envelope:
    """Return the envelope for `path`; paths without a prefix of their own use the live envelope."""
    for envelope in (CLUSTERS, AGGREGATION, MCP):
        if any(path == prefix or path.startswith(prefix + "/") for prefix in envelope.prefixes):
            return envelope
    return LIVE


def scoped_tail(tail: bytes, namespaces: frozenset[str]) -> bytes:
    """Return the bytes after the data with the namespaces that the data is limited to."""
    return tail[:-1] + b',"scope":' + _encode({"namespaces": sorted(namespaces)}) + b"}"


def _reason(status: int) -> str:
    return "Invalid request parameters" if status == HTTPStatus.BAD_REQUEST else HTTPStatus(status).phrase


def _object(**properties: Schema) -> Schema:
    return {"type": "object", "properties": properties, "required": list(properties)}


def _success(**properties: Schema) -> Schema:
    schema = _object(**properties)
    return {**schema, "properties": {**properties, "scope": _SCOPE}}


CLUSTERS = Envelope(
    name="clusters",
    description="Clusters and workloads",
    prefixes=(
        "/api/clusters",
        "/api/workloads",
        "/api/workloadMetadata",
        "/api/nodes",
        "/api/gpus",
        "/api/pods",
        "/api/claims",
        "/api/queue",
        "/api/queues",
        "/api/forecast",
        "/api/findings",
        "/api/repairs",
        "/api/stragglers",
        "/api/leases",
        "/api/events",
        "/api/occupancy",
    ),
    head=b'{"code":0,"message":"success","data":',
    tail=lambda _message, trace: b',"traceId":"' + trace.encode() + b'"}',
    error=lambda status, message, trace: _encode({"code": status, "message": message, "traceId": trace}),
    success_schema=lambda data: _success(code={"const": 0}, message=_TEXT, data=data, traceId=_TRACE_ID),
    error_schema=_object(code=_STATUS, message=_TEXT, traceId=_TRACE_ID),
)

AGGREGATION = Envelope(
    name="aggregation",
    description="Aggregated statistics",
    prefixes=("/api/v1/gpu-aggregation",),
    head=b'{"code":200,"message":"success","data":',
    tail=lambda _message, _trace: b"}",
    error=lambda status, message, _trace: _encode(
        {"code": status, "message": _reason(status), "error": message}
    ),
    success_schema=lambda data: _success(code={"const": 200}, message=_TEXT, data=data),
    error_schema=_object(code=_STATUS, message=_TEXT, error=_TEXT),
)

LIVE = Envelope(
    name="live",
    description="Live GPUs and this server",
    head=b'{"success":true,"data":',
    tail=lambda message, _trace: b',"message":' + _encode(message) + b',"error":null}',
    error=lambda _status, message, _trace: _encode(
        {"success": False, "error": message, "message": None, "data": None}
    ),
    success_schema=lambda data: _success(
        success={"const": True}, data=data, message={"type": ["string", "null"]}, error=_NULL
    ),
    error_schema=_object(success={"const": False}, error=_TEXT, message=_NULL, data=_NULL),
)

MCP = replace(
    LIVE,
    name="mcp",
    prefixes=("/mcp",),
    error=lambda status, message, _trace: _encode(
        {
            "jsonrpc": "2.0",
            "id": None,
            "error": {"code": -32600 if status < 500 else -32603, "message": message},
        }
    ),
)
"""The errors of `/mcp` that are found before the protocol reads the request: those of JSON-RPC."""

ENVELOPES = (CLUSTERS, AGGREGATION, LIVE)
