"""The HTTP server on a real socket, with clients that misbehave."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from tests.server.conftest import sample_routes

from gpufleet.runtime.listening import bind
from gpufleet.server.app import Api, create_app
from gpufleet.server.health import Lifecycle
from gpufleet.server.http.connection import MAX_HEAD_BYTES
from gpufleet.server.http.middleware import Limits
from gpufleet.server.http.server import Server

CHUNKED = b"POST /api/workloads/a/reports HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n"
JSON = b"Content-Type: application/json\r\n\r\n"
CHUNKED += JSON


@asynccontextmanager
async def running(limits: Limits) -> AsyncIterator[tuple[str, int]]:
    """Run a server; yield its host and port."""
    lifecycle, started = Lifecycle(), asyncio.Event()
    app = create_app(Api(routes=sample_routes(), lifecycle=lifecycle, limits=limits))
    server = Server(app, lifecycle, 1)
    server.on_started = started.set
    with bind("127.0.0.1", 0) as listening:
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        await started.wait()
        try:
            yield listening.getsockname()
        finally:
            server.stop()
            await serving


async def answer(place: tuple[str, int], *pieces: bytes) -> bytes:
    """Send `pieces` one by one; return everything up to the end of the connection."""
    reader, writer = await asyncio.open_connection(*place)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        return await asyncio.wait_for(reader.read(), 30)
    except ConnectionError:
        return b""
    finally:
        writer.close()


@pytest.mark.parametrize(
    ("start", "piece"),
    [
        (b"GET / HTTP/1.1\r\nX: ", b"a" * 4096),
        (b"GET / HTTP/1.1\r\n", b"X-A: b\r\n" * 512),
        (CHUNKED + b"0\r\nX: ", b"a" * 4096),
        (CHUNKED + b"1;", b"a" * 4096),
    ],
    ids=["header", "headers", "trailer", "chunk extension"],
)
async def test_an_endless_head_or_trailer_ends_the_connection(start: bytes, piece: bytes) -> None:
    async with running(Limits()) as place:
        received = await answer(place, start, *[piece] * (4 * MAX_HEAD_BYTES // len(piece)))
    assert received == b"" or received.startswith(b"HTTP/1.1 400 ")


async def test_a_body_that_never_ends_gets_a_503_at_the_deadline() -> None:
    head = (
        b"POST /api/workloads/a/reports HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\nConnection: close\r\n"
        + JSON
    )
    async with running(Limits(request_timeout=0.1)) as place:
        received = await answer(place, head, b"[")
    assert received.startswith(b"HTTP/1.1 503 ")
    assert b"took too long" in received


async def test_a_chunked_body_over_the_limit_is_a_413_in_its_envelope() -> None:
    async with running(Limits(max_body_bytes=100)) as place:
        received = await answer(
            place,
            CHUNKED.replace(b"Host: a", b"Host: a\r\nConnection: close"),
            b"80\r\n" + b" " * 128 + b"\r\n",
        )
    assert received.startswith(b"HTTP/1.1 413 ")
    assert b'"code":413' in received
