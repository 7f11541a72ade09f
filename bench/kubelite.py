"""Measure kubelite: creates and gets over HTTP, lists, and watch events.

The server runs in its own process on one core. Rates are per second of its CPU time, so they do not
depend on the client or on other load.
"""

import asyncio
import multiprocessing
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from multiprocessing.connection import Connection

import aiohttp
import uvloop

from bench.result import Result
from kubelite import KubeLite

_OBJECTS = 6_000
_CONCURRENCY = 32
_PODS = "/api/v1/namespaces/default/pods"


def measure() -> Iterator[Result]:
    """Start a server, measure it, stop it."""
    pipe, server_pipe = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_serve, args=(server_pipe,), daemon=True)
    process.start()
    try:
        url, headers = pipe.recv()
        _pin(1)
        yield from uvloop.run(_measure(url, headers, _Meter(pipe)))
    finally:
        pipe.send("stop")
        process.join(10)
        _pin(0, 1)


def _serve(pipe: Connection) -> None:
    _pin(0)

    async def run() -> None:
        async with KubeLite() as server:
            pipe.send((server.url, server.headers))
            while await asyncio.to_thread(pipe.recv) != "stop":
                pipe.send(time.process_time())

    uvloop.run(run())


class _Meter:
    """Read the CPU seconds of the server."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe = pipe

    async def read(self) -> float:
        """Return the CPU seconds used so far."""
        self._pipe.send("cpu")
        seconds: float = await asyncio.to_thread(self._pipe.recv)
        return seconds


def _pin(*cores: int) -> None:
    available = sorted(os.sched_getaffinity(0) | set(range(os.cpu_count() or 1)))
    if len(available) > 1:
        os.sched_setaffinity(0, {available[core] for core in cores if core < len(available)})


def _pod(number: int) -> dict[str, object]:
    limits = {"limits": {"nvidia.com/gpu": "2", "cpu": "8", "memory": "64Gi"}}
    container = {
        "name": "train",
        "image": "example/train:1",
        "resources": limits,
        "env": [{"name": "A", "value": "1"}],
    }
    labels = {"app": "bench", "number": str(number)}
    return {"metadata": {"name": f"pod-{number:05}", "labels": labels}, "spec": {"containers": [container]}}


async def _measure(url: str, headers: dict[str, str], meter: _Meter) -> list[Result]:
    connector = aiohttp.TCPConnector(limit=_CONCURRENCY)
    async with aiohttp.ClientSession(url, connector=connector, headers=headers) as session:

        async def create(number: int) -> None:
            async with session.post(_PODS, json=_pod(number)) as response:
                assert response.status == 201
                await response.read()

        async def get(number: int) -> None:
            async with session.get(f"{_PODS}/pod-{number:05}") as response:
                assert response.status == 200
                await response.read()

        creates, gets = await _rate(create, meter), await _rate(get, meter)
        started = time.perf_counter()
        async with session.get(_PODS, headers={"Accept-Encoding": "identity"}) as response:
            size = len(await response.read())
        listed = time.perf_counter() - started
        events = await _events(url, session)
    return [
        Result("pods created over HTTP", creates, "per core s", at_least=2000),
        Result("pods read over HTTP", gets, "per core s", at_least=3000),
        Result(f"{_OBJECTS} pods listed ({size / 1e6:.0f} MB)", listed, "s"),
        Result("events sent to 50 watchers", events, "1/s"),
    ]


async def _rate(request: Callable[[int], Awaitable[None]], meter: _Meter) -> float:
    numbers = iter(range(_OBJECTS))

    async def worker() -> None:
        for number in numbers:
            await request(number)

    started = await meter.read()
    await asyncio.gather(*(worker() for _ in range(_CONCURRENCY)))
    return _OBJECTS / (await meter.read() - started)


async def _events(url: str, session: aiohttp.ClientSession, watchers: int = 50, changes: int = 300) -> float:
    async with session.get(_PODS, params={"limit": "1"}) as response:
        version = (await response.json())["metadata"]["resourceVersion"]
    query = {"watch": "true", "resourceVersion": version}

    async def watch(watching: aiohttp.ClientSession) -> None:
        async with watching.get(_PODS, params=query) as stream:
            for _ in range(changes):
                await stream.content.readline()

    async with aiohttp.ClientSession(
        url,
        connector=aiohttp.TCPConnector(limit=watchers),
        read_bufsize=2**20,
        headers=session.headers,
    ) as watching:
        tasks = [asyncio.create_task(watch(watching)) for _ in range(watchers)]
        await asyncio.sleep(0.5)
        started = time.perf_counter()
        for number in range(changes):
            headers = {"Content-Type": "application/merge-patch+json"}
            body = b'{"metadata":{"labels":{"round":"2"}}}'
            async with session.patch(f"{_PODS}/pod-{number:05}", data=body, headers=headers) as response:
                assert response.status == 200
        await asyncio.gather(*tasks)
        return watchers * changes / (time.perf_counter() - started)
