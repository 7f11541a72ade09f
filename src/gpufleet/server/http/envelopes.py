"""The three envelopes, one for each family of paths, on success and on error alike.

An envelope is kept as the bytes before and after the data, so that an answer is its encoded
data between two constants: nothing is encoded twice, and bytes that were encoded once for a
thousand callers get the right envelope for each of them.

    clusters      {"code":0,"message":"success","data":…,"traceId":…}
    aggregation   {"code":200,"message":"success","data":…}
    live          {"success":true,"data":…,"message":…,"error":null}
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from http import HTTPStatus
from typing import Any

import msgspec

Schema = dict[str, Any]

_encode = msgspec.json.Encoder().encode
_TRACE_ID = {"type": "string", "pattern": "^[0-9a-f]{32}$", "description": "The request's trace id."}


@dataclass(frozen=True)
class Envelope:
    """One envelope: how it looks in bytes, and how OpenAPI describes it."""

    name: str
    head: bytes
    tail: Callable[[str | None, str], bytes]
    """What follows the data, from the answer's message and the trace id."""
    error: Callable[[int, str, str], bytes]
    """The whole body of an error, from status, sentence and trace id."""
    success_schema: Callable[[Schema], Schema]
    error_schema: Schema
    prefixes: tuple[str, ...] = ()


@lru_cache(1024)
def family_of(path: str) -> Envelope:
    """The family that answers on `path`; paths of no family are answered as the third."""
    for family in (CLUSTERS, AGGREGATION):
        for prefix in family.prefixes:
            if path.startswith(prefix) and path[len(prefix) : len(prefix) + 1] in ("", "/"):
                return family
    return LIVE


def status_words(status: int) -> str:
    """A status in words, for the envelope that has both a message and an error."""
    if status == HTTPStatus.BAD_REQUEST:
        return "Invalid request parameters"
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Error"


def _object(properties: Schema, optional: tuple[str, ...] = ()) -> Schema:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required}


def _status_schema() -> Schema:
    return {"type": "integer", "minimum": 400, "maximum": 599, "description": "The HTTP status."}


CLUSTERS = Envelope(
    name="clusters",
    prefixes=(
        "/api/clusters",
        "/api/workloads",
        "/api/workloadMetadata",
        "/api/nodes",
        "/api/claims",
        "/api/leases",
        "/api/events",
    ),
    head=b'{"code":0,"message":"success","data":',
    tail=lambda _message, trace: b',"traceId":"' + trace.encode() + b'"}',
    error=lambda status, sentence, trace: _encode({"code": status, "message": sentence, "traceId": trace}),
    success_schema=lambda data: _object(
        {"code": {"const": 0}, "message": {"type": "string"}, "data": data, "traceId": _TRACE_ID}
    ),
    error_schema=_object({"code": _status_schema(), "message": {"type": "string"}, "traceId": _TRACE_ID}),
)

AGGREGATION = Envelope(
    name="aggregation",
    prefixes=("/api/v1/gpu-aggregation",),
    head=b'{"code":200,"message":"success","data":',
    tail=lambda _message, _trace: b"}",
    error=lambda status, sentence, _trace: _encode(
        {"code": status, "message": status_words(status), "error": sentence}
    ),
    success_schema=lambda data: _object(
        {"code": {"const": 200}, "message": {"type": "string"}, "data": data}
    ),
    error_schema=_object(
        {"code": _status_schema(), "message": {"type": "string"}, "error": {"type": "string"}}
    ),
)

LIVE = Envelope(
    name="live",
    head=b'{"success":true,"data":',
    tail=lambda message, _trace: b',"message":' + _encode(message) + b',"error":null}',
    error=lambda _status, sentence, _trace: _encode(
        {"success": False, "error": sentence, "message": None, "data": None}
    ),
    success_schema=lambda data: _object(
        {
            "success": {"const": True},
            "data": data,
            "message": {"type": ["string", "null"]},
            "error": {"type": "null"},
        }
    ),
    error_schema=_object(
        {
            "success": {"const": False},
            "error": {"type": "string"},
            "message": {"type": "null"},
            "data": {"type": "null"},
        }
    ),
)

FAMILIES = (CLUSTERS, AGGREGATION, LIVE)
