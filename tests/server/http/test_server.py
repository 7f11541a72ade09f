"""The HTTP server on a real socket: misbehaving clients, shutdown, HEAD."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx
import pytest
from starlette.responses import StreamingResponse
from tests.server.conftest import sample_routes, slow_route
from tests.waiting import wait_until

from gpufleet.runtime.listening import address_of, bind
from gpufleet.server.app import Api, create_app
from gpufleet.server.health import Lifecycle
from gpufleet.server.http.middleware import Limits
from gpufleet.server.http.routing import Route, get, post
from gpufleet.server.http.server import Server
from gpufleet.server.limits.connection import MAX_HEAD_BYTES

CHUNKED = b"POST /api/workloads/a/reports HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n"
JSON = b"Content-Type: application/json\r\n\r\n"
CHUNKED += JSON


@asynccontextmanager
async def running(
    *routes: Route,
    limits: Limits = Limits(),  # noqa: B008  (frozen)
    grace: float = 10,
) -> AsyncIterator[tuple[str, int, Server]]:
    """Run a server in this process; yield its host, its port and itself."""
    lifecycle, started = Lifecycle(), asyncio.Event()
    app = create_app(Api(routes=routes, lifecycle=lifecycle, limits=limits))
    server = Server(app, lifecycle, grace)
    server.on_started = started.set
    with bind("127.0.0.1", 0) as listening:
        host, port = listening.getsockname()
        assert address_of(listening) == f"http://{host}:{port}"
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        await started.wait()
        try:
            yield host, port, server
        finally:
            server.stop()
            await serving


async def exchange(host: str, port: int, *pieces: bytes) -> bytes:
    """Send `pieces` one by one; return everything up to the end of the connection."""
    reader, writer = await asyncio.open_connection(host, port)
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        return await asyncio.wait_for(reader.read(), 30)
    except ConnectionError:
        return b""
    finally:
        writer.close()


@pytest.fixture
def waits_for_requests(caplog: pytest.LogCaptureFixture) -> Callable[[], bool]:
    """Return whether a server that stops waits for the requests in flight, as uvicorn logs it."""
    caplog.set_level("INFO", "uvicorn.error")
    return lambda: "Waiting for connections to close" in caplog.text


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
    async with running(*sample_routes()) as (host, port, _):
        received = await exchange(host, port, start, *[piece] * (4 * MAX_HEAD_BYTES // len(piece)))
    assert received == b"" or received.startswith(b"HTTP/1.1 400 ")


async def test_a_body_that_never_ends_gets_a_503_at_the_deadline() -> None:
    head = (
        b"POST /api/workloads/a/reports HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\nConnection: close\r\n"
        + JSON
    )
    async with running(*sample_routes(), limits=Limits(request_timeout=0.1)) as (host, port, _):
        received = await exchange(host, port, head, b"[")
    assert received.startswith(b"HTTP/1.1 503 ")
    assert b"took too long" in received


async def test_a_chunked_body_over_the_limit_is_a_413_in_its_envelope() -> None:
    async with running(*sample_routes(), limits=Limits(max_body_bytes=100)) as (host, port, _):
        received = await exchange(
            host,
            port,
            CHUNKED.replace(b"Host: a", b"Host: a\r\nConnection: close"),
            b"80\r\n" + b" " * 128 + b"\r\n",
        )
    assert received.startswith(b"HTTP/1.1 413 ")
    assert b'"code":413' in received


async def test_a_request_in_flight_is_finished_before_the_server_stops(
    waits_for_requests: Callable[[], bool],
) -> None:
    began, end = asyncio.Event(), asyncio.Event()
    async with running(slow_route(began, end)) as (host, port, server), httpx.AsyncClient() as http:
        request = asyncio.create_task(http.get(f"http://{host}:{port}/api/clusters/slow"))
        await began.wait()
        server.stop()
        await wait_until(waits_for_requests)
        with pytest.raises(OSError, match=r"[Cc]onnect"):
            await asyncio.open_connection(host, port)
        end.set()
        answer = await request
    assert answer.json()["data"] == "finished"


async def test_a_request_that_outlives_the_grace_period_gets_a_503() -> None:
    began, end = asyncio.Event(), asyncio.Event()
    async with running(slow_route(began, end), grace=0) as (host, port, server), httpx.AsyncClient() as http:
        request = asyncio.create_task(http.get(f"http://{host}:{port}/api/clusters/slow"))
        await began.wait()
        server.stop()
        answer = await request
    assert answer.status_code == 503
    assert answer.json()["message"] == "the server is shutting down; try again"


async def test_a_second_stop_cancels_requests_without_a_traceback(
    waits_for_requests: Callable[[], bool],
) -> None:
    began, end = asyncio.Event(), asyncio.Event()
    async with (
        running(slow_route(began, end), grace=600) as (host, port, server),
        httpx.AsyncClient() as http,
    ):
        request = asyncio.create_task(http.get(f"http://{host}:{port}/api/clusters/slow"))
        await began.wait()
        server.stop()
        await wait_until(waits_for_requests)
        server.stop()
        answer = await asyncio.wait_for(request, 30)
    assert answer.status_code == 503
    left = [task for task in asyncio.all_tasks() if "Lifespan" in repr(task.get_coro())]
    assert not left, "the end of the loop would cancel the application, and log that as a fault"


async def test_a_url_that_is_too_long_is_refused_in_an_envelope() -> None:
    request = b"GET /api/clusters/x?" + b"a" * 9000 + b" HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    async with running() as (host, port, _):
        received = await exchange(host, port, request)
    assert received.startswith(b"HTTP/1.1 414 ")
    assert b"x-trace-id: " in received
    assert b'"code":414' in received


async def test_bytes_that_are_not_http_get_a_400() -> None:
    async with running() as (host, port, _):
        received = await exchange(host, port, b"GARBAGE\r\n\r\n")
    assert received.startswith(b"HTTP/1.1 400 ")


async def test_an_unsupported_protocol_upgrade_is_answered_as_plain_http() -> None:
    async with running() as (host, port, _):
        received = await exchange(
            host,
            port,
            b"GET /livez HTTP/1.1\r\nHost: a\r\nConnection: close, Upgrade\r\nUpgrade: websocket\r\n\r\n",
        )
    assert received.startswith(b"HTTP/1.1 200 ")


async def test_head_sends_the_headers_of_get_and_no_body() -> None:
    async with running() as (host, port, _), httpx.AsyncClient() as http:
        answer = await http.head(f"http://{host}:{port}/api/healthz")
    assert answer.status_code == 200
    assert int(answer.headers["content-length"]) > 100
    assert answer.content == b""


async def test_a_head_request_for_a_stream_ends_with_its_headers() -> None:
    @get("/api/events", media_type="text/event-stream")
    async def events() -> StreamingResponse:
        """Send no event."""

        async def no_events() -> AsyncIterator[bytes]:
            await asyncio.Event().wait()
            yield b""

        return StreamingResponse(no_events(), media_type="text/event-stream")

    request = b"HEAD /api/events HTTP/1.1\r\nHost: a\r\n\r\nGET /livez HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
    async with running(events) as (host, port, _):
        received = await exchange(host, port, request)
    assert received.count(b"HTTP/1.1 200 ") == 2
    assert received.endswith(b"\r\n\r\nok\n")


async def test_a_client_that_disconnects_while_sending_its_body_is_a_400() -> None:
    @post("/api/clusters/rows")
    async def take(body: list[int]) -> int:
        """Count rows."""
        return len(body)

    async with running(take) as (host, port, _), httpx.AsyncClient() as http:
        _, writer = await asyncio.open_connection(host, port)
        writer.write(
            b"POST /api/clusters/rows HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
            b"Content-Length: 9\r\n\r\n[1, "
        )
        await writer.drain()
        writer.close()

        async def posts() -> list[str]:
            metrics = (await http.get(f"http://{host}:{port}/metrics")).text
            return [line for line in metrics.splitlines() if 'count{method="POST"' in line]

        counted = await wait_until(posts)
    assert 'route="/api/clusters/rows",status="400"' in counted[0]
