"""Measure requests per second of an empty server, compared with a bare msgspec application in the same run.

Both run on uvicorn with the same parser (h11) in their own processes; a third process sends requests over
32 keep-alive connections. Requests are counted per second of the server's CPU time, which does not depend on
other work on the machine. The servers take turns, and the median of their ratios counts. A bare application
on httptools shows what the faster parser, which does not bound heads and trailers, would gain.

    /api/healthz          all layers; the log line of a probe is below the log level
    /api/clusters/ping    all layers and a JSON log line for each request
"""

import asyncio
import contextlib
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection
from typing import Any, Literal

import msgspec
import psutil
import uvicorn
import uvloop

from bench.result import Result
from gpufleet.runtime.listening import bind
from gpufleet.runtime.logs import configure_logs
from gpufleet.server.app import Api, create_app
from gpufleet.server.health import Lifecycle
from gpufleet.server.http.answers import Prepared
from gpufleet.server.http.routing import get
from gpufleet.server.http.server import Server

_CONNECTIONS = 32
_SECONDS = 1.5
_TURNS = 3
_spawn = multiprocessing.get_context("spawn")


class Pong(msgspec.Struct):
    status: str
    timestamp: float
    version: str


class Gpu(msgspec.Struct):
    node_name: str
    gpu_index: int
    gpu_name: str
    utilization: float
    memory_used: float
    memory_total: float
    memory_free: float
    memory_utilization: float
    temperature: float
    timestamp: str


def measure() -> Iterable[Result]:
    with _server(_bare) as bare, _server(_bare_httptools) as httptools, _server(_gpufleet) as ours:
        for path, name, budget in (
            ("/api/healthz", "healthz", 0.25),
            ("/api/clusters/ping", "a route with its log line", None),
        ):
            turns = [(_rate(ours, path), _rate(bare, "/"), _rate(httptools, "/")) for _ in range(_TURNS)]
            ratio = statistics.median(rate / baseline for rate, baseline, _ in turns)
            yield Result(f"{name} / bare msgspec", ratio, "ratio", at_least=budget)
            ratio = statistics.median(rate / baseline for rate, _, baseline in turns)
            yield Result(f"{name} / bare msgspec on httptools", ratio, "ratio")
            yield Result(name, statistics.median(rate for rate, _, _ in turns), "requests/s")
        for encoding in ("gzip", "identity"):
            yield Result(
                f"10,000 prepared GPU rows, {encoding}",
                _rate(ours, "/api/v1/gpu/metrics", f"Accept-Encoding: {encoding}\r\n", connections=4),
                "requests/s",
                at_least=100,
            )


def _bare(ready: Connection, parser: Literal["h11", "httptools"] = "h11") -> None:
    encode = msgspec.json.Encoder().encode

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body = encode(Pong("healthy", time.time(), "1"))
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    _run(
        uvicorn.Server(uvicorn.Config(app, http=parser, lifespan="off", log_config=None, access_log=False)),
        ready,
    )


def _bare_httptools(ready: Connection) -> None:
    _bare(ready, "httptools")


def _gpufleet(ready: Connection) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    configure_logs("info", "json")
    rows: Prepared[list[Gpu]] = Prepared.of(
        [
            Gpu(
                f"node-{n // 8}",
                n % 8,
                "NVIDIA H100",
                n % 100 + 0.5,
                8.0,
                80.0,
                72.0,
                10.0,
                65.0,
                "2026-01-01T00:00:00Z",
            )
            for n in range(10_000)
        ]
    )

    @get("/api/clusters/ping")
    async def ping() -> Pong:
        return Pong("healthy", time.time(), "1")

    @get("/api/v1/gpu/metrics")
    async def metrics() -> Prepared[list[Gpu]]:
        return rows

    lifecycle = Lifecycle()
    _run(Server(create_app(Api(routes=[ping, metrics], lifecycle=lifecycle)), lifecycle, 1), ready)


def _run(server: uvicorn.Server, ready: Connection) -> None:
    listening = bind("127.0.0.1", 0)
    ready.send(listening.getsockname()[1])
    uvloop.run(server.serve(sockets=[listening]))


@contextlib.contextmanager
def _server(run: Callable[[Connection], None]) -> Iterator[tuple[int, int]]:
    """Start a server; yield its port and process id."""
    ours, theirs = _spawn.Pipe()
    process = _spawn.Process(target=run, args=(theirs,), daemon=True)
    process.start()
    try:
        assert process.pid is not None
        yield ours.recv(), process.pid
    finally:
        process.terminate()
        process.join(10)


def _rate(server: tuple[int, int], path: str, headers: str = "", connections: int = _CONNECTIONS) -> float:
    """Return requests per second of the server's CPU time."""
    ours, theirs = _spawn.Pipe()
    process = _spawn.Process(
        target=_send_load, args=(theirs, *server, path, headers, connections), daemon=True
    )
    process.start()
    rate: float = ours.recv()
    process.join(10)
    return rate


def _send_load(report: Connection, port: int, pid: int, path: str, headers: str, connections: int) -> None:
    report.send(uvloop.run(_load(port, psutil.Process(pid), path, headers, connections)))


async def _load(port: int, server: psutil.Process, path: str, headers: str, connections: int) -> float:
    request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{headers}\r\n".encode()
    loop = asyncio.get_running_loop()
    clients = [_Client(request) for _ in range(connections)]
    for client in clients:
        await _connect(loop, client, port)
    await asyncio.sleep(0.3)
    before, started = sum(client.responses for client in clients), sum(server.cpu_times()[:2])
    await asyncio.sleep(_SECONDS)
    received = sum(client.responses for client in clients) - before
    seconds: float = sum(server.cpu_times()[:2]) - started
    for client in clients:
        client.transport.abort()
    return received / seconds


async def _connect(loop: asyncio.AbstractEventLoop, client: "_Client", port: int) -> None:
    for _ in range(200):
        try:
            await loop.create_connection(lambda: client, "127.0.0.1", port)
            return
        except ConnectionRefusedError:
            await asyncio.sleep(0.1)
    raise TimeoutError("the server did not start")


class _Client(asyncio.Protocol):
    """Send the next request as soon as the response is complete."""

    transport: asyncio.Transport

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._missing = 0
        self.responses = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self.transport = transport  # type: ignore[assignment]
        self.transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if not self._missing:
            head, _, rest = data.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 "), head
            length = head.partition(b"content-length: ")[2].partition(b"\r\n")[0]
            self._missing, data = int(length), rest
        self._missing -= len(data)
        if not self._missing:
            self.responses += 1
            self.transport.write(self._request)
