"""Send one result: envelope, entity tag, compression, headers.

`Reply` is an ASGI response that Litestar passes on as it is. A list goes out as CSV, without an
envelope, to those who send `Accept: text/csv`.
"""

import asyncio
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from litestar.types import Receive, Scope, Send

from gpufleet.server.http.answers import (
    GZIP_FROM_BYTES,
    STORED_BLOCK_BYTES,
    Answer,
    OpenGzip,
    Prepared,
    Raw,
    encoded,
    etag_of,
    matches,
    takes_gzip,
)
from gpufleet.server.http.csv import as_csv, wants_csv
from gpufleet.server.http.request_context import Header, RequestContext, call_of

P = ParamSpec("P")
T = TypeVar("T")
_JSON = (b"content-type", b"application/json")
_NO_CACHE = (b"cache-control", b"private, no-cache")
_VARY = (b"vary", b"accept, accept-encoding")
_GZIP = (b"content-encoding", b"gzip")
_IN_A_THREAD_FROM_BYTES = 256 * 1024


class Reply:
    """What a handler returned, on its way out."""

    __slots__ = ("result", "status")

    def __init__(self, result: Any, status: int = 200) -> None:
        self.result = result
        self.status = status

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        call = call_of(scope)
        if isinstance(self.result, Raw):
            await _send_raw(self.result, call, send)
            return
        extra: tuple[Header, ...] = ()
        status = self.status
        if isinstance(self.result, Answer):
            extra = tuple(self.result.headers)
            status = self.result.status if self.result.status != 200 else status
        prepared = await encoded(self.result)
        if wants_csv(call.accept) and status == 200:
            rows = await _large(len(prepared.encoded), as_csv, prepared.encoded)
            if rows is not None:
                await _send_raw(Raw(rows, b"text/csv; charset=utf-8", headers=extra), call, send)
                return
        headers = [_JSON, _NO_CACHE, _VARY, (b"etag", prepared.etag), *extra]
        if status == 200 and call.if_none_match and matches(call.if_none_match, prepared.etag):
            await send_whole(send, call, 304, headers[1:], b"")
            return
        body = await _entity(prepared, call, headers)
        await send_whole(send, call, status, headers, body)


async def send_whole(
    send: Send, call: RequestContext, status: int, headers: list[Header], body: bytes
) -> None:
    """Send a response whose body is all there."""
    if status not in (204, 304):
        headers.append((b"content-length", b"%d" % len(body)))
    if call.at_once is not None and call.at_once(status, [*headers, *call.headers], body):
        call.status = status
        return
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


async def _entity(prepared: Prepared[Any], call: RequestContext, headers: list[Header]) -> bytes:
    """The body in the caller's envelope and, if it pays and is taken, compressed."""
    tail = call.family.tail(prepared.message, call.trace)
    size = len(prepared.encoded)
    if size < GZIP_FROM_BYTES or len(tail) > STORED_BLOCK_BYTES or not takes_gzip(call.accept_encoding):
        return b"".join((call.family.head, prepared.encoded, tail))
    headers.append(_GZIP)
    if prepared.compressed(call.family):
        return prepared.gzip(call.family).ended(tail)
    return (await _large(size, prepared.gzip, call.family)).ended(tail)


async def _large(size: int, make: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Make something of so many bytes; a large one in a thread, so that it does not hold up the small ones."""
    if size < _IN_A_THREAD_FROM_BYTES:
        return make(*args, **kwargs)
    return await asyncio.to_thread(make, *args, **kwargs)


async def _send_raw(raw: Raw, call: RequestContext, send: Send) -> None:
    headers: list[Header] = [(b"content-type", raw.media_type), *raw.headers]
    if raw.status == 200:
        etag = etag_of(raw.body, None)
        headers += [_NO_CACHE, _VARY, (b"etag", etag)]
        if call.if_none_match and matches(call.if_none_match, etag):
            await send_whole(send, call, 304, headers[1:], b"")
            return
    body = raw.body
    if len(body) >= GZIP_FROM_BYTES and raw.compress and takes_gzip(call.accept_encoding):
        headers.append(_GZIP)
        body = (await _large(len(body), OpenGzip.of, body)).ended(b"")
    await send_whole(send, call, raw.status, headers, body)
