"""Build the HTTP response for what a handler returned: envelope, entity tag, CSV, compression.

Starlette's GZipMiddleware compresses ordinary responses. A `Prepared` brings its own gzip form, which the
middleware leaves alone. A list is sent as CSV, without an envelope, for `Accept: text/csv`.
"""

import asyncio
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from starlette.responses import Response, StreamingResponse

from gpufleet.server.csv import as_csv, wants_csv
from gpufleet.server.http.answers import (
    GZIP_MIN_BYTES,
    Answer,
    Raw,
    encode,
    etag_matches,
    etag_of,
)
from gpufleet.server.http.envelopes import scoped_tail
from gpufleet.server.http.request_context import RequestContext

P = ParamSpec("P")
T = TypeVar("T")
_CACHING = {"cache-control": "private, no-cache", "vary": "accept, accept-encoding"}
_THREAD_MIN_BYTES = 256 * 1024


async def respond(result: Any, context: RequestContext, *, head: bool = False) -> Response:
    """Return the response for a handler's `result`. A stream requested with HEAD has no body."""
    if isinstance(result, StreamingResponse) and head:
        return Response(status_code=result.status_code, headers=result.headers)
    if isinstance(result, Response):
        return result
    if isinstance(result, Raw):
        return _raw(result, context)
    extra = result.headers if isinstance(result, Answer) else {}
    prepared = await encode(result)
    if wants_csv(context.accept):
        rows = await _in_thread_if_large(len(prepared.encoded), as_csv, prepared.encoded)
        if rows is not None:
            return _raw(Raw(rows, "text/csv", headers=extra), context)
    etag = _scoped(prepared.etag, context)
    headers = {**_CACHING, "etag": etag, **extra}
    if _is_cached(context, etag):
        return Response(status_code=304, headers=headers)
    envelope = context.envelope
    tail = envelope.tail(prepared.message, context.trace)
    if context.scope is not None:
        tail = scoped_tail(tail, context.scope)
    if prepared is result and _accepts_gzip(context) and len(prepared.encoded) >= GZIP_MIN_BYTES:
        size = 0 if prepared.is_compressed(envelope) else len(prepared.encoded)
        body = (await _in_thread_if_large(size, prepared.gzip, envelope)).close(tail)
        headers["content-encoding"] = "gzip"
    else:
        body = b"".join((envelope.head, prepared.encoded, tail))
    return Response(body, headers=headers, media_type="application/json")


def _raw(raw: Raw, context: RequestContext) -> Response:
    headers = raw.headers
    if raw.status == 200:
        etag = _scoped(etag_of(raw.body), context)
        headers = {**_CACHING, "etag": etag, **headers}
        if _is_cached(context, etag):
            return Response(status_code=304, headers=headers)
    return Response(raw.body, raw.status, headers, raw.media_type)


def _scoped(etag: str, context: RequestContext) -> str:
    """Return the entity tag for the caller's scope, which is a part of the response."""
    if context.scope is None:
        return etag
    return etag_of(etag.encode(), ",".join(sorted(context.scope)))


def _is_cached(context: RequestContext, etag: str) -> bool:
    if_none_match = context.headers.get(b"if-none-match")
    return if_none_match is not None and etag_matches(if_none_match, etag)


def _accepts_gzip(context: RequestContext) -> bool:
    return b"gzip" in context.headers.get(b"accept-encoding", b"")  # as GZipMiddleware decides it


async def _in_thread_if_large(size: int, make: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Call `make` on `size` bytes; in a thread if they are many, so that small requests are not delayed."""
    if size < _THREAD_MIN_BYTES:
        return make(*args, **kwargs)
    return await asyncio.to_thread(make, *args, **kwargs)
