"""The empty server's requests per second, beside a bare msgspec application in the same run.

Both run on uvicorn (uvloop, httptools) in a process of their own; a third process asks over 32
kept-alive connections and does nothing with an answer but count it. Requests are counted per
second of the server's own processor time: that is what a busy core would do, and the same on a
machine with other work. The two servers take turns, and the median of their ratios counts.

    /api/healthz          all layers; a health check's log line is below the level
    /api/clusters/ping    all layers and a log line, in JSON, for each request
"""

import asyncio
import contextlib
import multiprocessing
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from multiprocessing.connection import Connection
from typing import Any

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
    with _server(_bare) as bare, _server(_gpufleet) as ours:
        for path, name, budget in (
            ("/api/healthz", "healthz", 0.4),
            ("/api/clusters/ping", "a route with its log line", None),
        ):
            ratios, rates = [], []
            for _ in range(_TURNS):
                baseline = _rate(bare, "/")
                rates.append(_rate(ours, path))
                ratios.append(rates[-1] / baseline)
            yield Result(f"{name}, beside bare msgspec", statistics.median(ratios), "ratio", at_least=budget)
            yield Result(f"{name}", statistics.median(rates), "requests/s")
        for encoding in ("gzip", "identity"):
            yield Result(
                f"10,000 prepared GPU rows, {encoding}",
                _rate(ours, "/api/v1/gpu/metrics", f"Accept-Encoding: {encoding}\r\n", connections=4),
                "requests/s",
                at_least=100,
            )


def _bare(ready: Connection) -> None:
    encode = msgspec.json.Encoder().encode

    async def app(scope: Any, receive: Any, send: Any) -> None:
        body = encode(Pong("healthy", time.time(), "1"))
        headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": body})

    _run(
        uvicorn.Server(
            uvicorn.Config(app, http="httptools", lifespan="off", log_config=None, access_log=False)
        ),
        ready,
    )


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
    """A server's port and process id."""
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
    """Requests per second of the server's processor time."""
    ours, theirs = _spawn.Pipe()
    process = _spawn.Process(target=_ask, args=(theirs, *server, path, headers, connections), daemon=True)
    process.start()
    rate: float = ours.recv()
    process.join(10)
    return rate


def _ask(report: Connection, port: int, pid: int, path: str, headers: str, connections: int) -> None:
    report.send(uvloop.run(_load(port, psutil.Process(pid), path, headers, connections)))


async def _load(port: int, server: psutil.Process, path: str, headers: str, connections: int) -> float:
    request = f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n{headers}\r\n".encode()
    loop = asyncio.get_running_loop()
    askers = [_Asker(request) for _ in range(connections)]
    for asker in askers:
        await _connect(loop, asker, port)
    await asyncio.sleep(0.3)
    before, started = sum(asker.answers for asker in askers), sum(server.cpu_times()[:2])
    await asyncio.sleep(_SECONDS)
    answered = sum(asker.answers for asker in askers) - before
    seconds: float = sum(server.cpu_times()[:2]) - started
    for asker in askers:
        asker.transport.abort()
    return answered / seconds


async def _connect(loop: asyncio.AbstractEventLoop, asker: "_Asker", port: int) -> None:
    for _ in range(200):
        try:
            await loop.create_connection(lambda: asker, "127.0.0.1", port)
            return
        except ConnectionRefusedError:
            await asyncio.sleep(0.1)
    raise TimeoutError("the server did not start")


class _Asker(asyncio.Protocol):
    """Asks again as soon as the answer is complete."""

    transport: asyncio.Transport

    def __init__(self, request: bytes) -> None:
        self._request = request
        self._missing = 0
        self.answers = 0

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
            self.answers += 1
            self.transport.write(self._request)
