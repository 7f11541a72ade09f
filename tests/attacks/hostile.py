"""An upstream that sends more than anybody needs, in a process of its own.

    python -m tests.attacks.hostile UPSTREAM

It prints its port, and runs until its standard input ends. `GET /attacked` returns how many times it attacked.
"""

import asyncio
import itertools
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Any

from aiohttp import web

MB = 1024 * 1024
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
_numbers = itertools.count(1)


async def _stream(request: web.Request, chunks: AsyncIterator[bytes]) -> web.StreamResponse:
    response = web.StreamResponse()
    response.content_type = "application/json"
    await response.prepare(request)
    with suppress(ConnectionError):
        async for chunk in chunks:
            await response.write(chunk)
    return response


async def _repeat(chunk: bytes, first: bytes = b"") -> AsyncIterator[bytes]:
    yield first
    while True:
        yield chunk


# Kubernetes


def _object(size: int = 0) -> dict[str, Any]:
    number = next(_numbers)
    meta = {"name": f"object-{number}", "namespace": "a", "uid": f"uid-{number}", "resourceVersion": "7"}
    return {"metadata": {**meta, "annotations": {"a": "x" * size}}}


def _list(items: list[dict[str, Any]], token: str = "") -> web.Response:
    meta = {"resourceVersion": "7", "continue": token}
    return web.json_response({"metadata": meta, "items": items})


async def _events(size: int, count: int) -> AsyncIterator[bytes]:
    while True:
        events = ({"type": "ADDED", "object": _object(size)} for _ in range(count))
        yield b"".join(json.dumps(event).encode() + b"\n" for event in events)


async def endless_list(request: web.Request) -> web.StreamResponse:
    return _list([_object() for _ in range(int(request.query.get("limit", "500")))], f"{next(_numbers)}")


async def repeated_token(request: web.Request) -> web.StreamResponse:
    return _list([_object()], "same")


async def large_objects(request: web.Request) -> web.StreamResponse:
    count = min(30, int(request.query.get("limit", "30")))
    return _list([_object(MB) for _ in range(count)], f"{next(_numbers)}")


async def endless_page(request: web.Request) -> web.StreamResponse:
    return await _stream(request, _repeat(b" " * MB, b'{"items":['))


def _watched(events: Callable[[], AsyncIterator[bytes]]) -> Handler:
    async def handle(request: web.Request) -> web.StreamResponse:
        return await _stream(request, events()) if "watch" in request.query else _list([])

    return handle


# Prometheus

_NAMES = ["DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_GPU_TEMP"]
_RESULT = b'{"status":"success","data":{"resultType":"vector","result":['


def _answers(body: Callable[[], AsyncIterator[bytes]]) -> Handler:
    """Return the names of metrics, and `body` for each query."""

    async def handle(request: web.Request) -> web.StreamResponse:
        if request.path.endswith("/values"):
            return web.json_response({"status": "success", "data": _NAMES})
        return await _stream(request, body())

    return handle


async def _series(separator: bytes, total: int) -> AsyncIterator[bytes]:
    """Yield a valid response of `total` bytes with as many series as possible."""
    yield _RESULT
    one = b'{"metric":{},"value":[0,"1"]}' + separator
    for _ in range(total // MB):
        yield one * (MB // len(one))
    yield b'{"metric":{},"value":[0,"1"]}]}}'


async def _points(total: int) -> AsyncIterator[bytes]:
    """Yield a valid response of `total` bytes with one series of as many points as possible."""
    yield _RESULT + b'{"metric":{},"value":[0,"1"],"values":['
    for _ in range(total // MB):
        yield b'[0,"1"],' * (MB // 8)
    yield b'[0,"1"]]}]}}'


async def many_names(request: web.Request) -> web.StreamResponse:
    return await _stream(request, _name_list())


async def _name_list() -> AsyncIterator[bytes]:
    yield b'{"status":"success","data":['
    for _ in range(120):
        yield b'"a",' * (MB // 4)
    yield b'"a"]}'


# Slurm, Docker


async def endless_json(request: web.Request) -> web.StreamResponse:
    return await _stream(request, _repeat(b'{"name":"a"},' * (MB // 13), b'{"jobs":['))


async def many_jobs(request: web.Request) -> web.StreamResponse:
    if request.path.endswith("/nodes"):
        return web.json_response({"nodes": []})
    return await _stream(
        request, _large_list(b'{"jobs":[', b'{"job_id":1},', b'{"job_id":1}],"nodes":[],"errors":[]}')
    )


async def many_containers(request: web.Request) -> web.StreamResponse:
    if not request.path.endswith("/containers/json"):
        return web.json_response({})
    return await _stream(request, _large_list(b"[", b'{"Id":"1"},', b'{"Id":"1"}]'))


async def endless_docker_events(request: web.Request) -> web.StreamResponse:
    if request.path.endswith("/events"):
        return await _stream(request, _docker_events())
    return web.json_response([] if request.path.endswith("/containers/json") else {})


async def _docker_events() -> AsyncIterator[bytes]:
    while True:
        ids = (next(_numbers) for _ in range(1000))
        yield b"".join(b'{"Actor":{"ID":"%064d"}}\n' % each for each in ids)


async def _large_list(head: bytes, one: bytes, tail: bytes) -> AsyncIterator[bytes]:
    yield head
    for _ in range(60):
        yield one * (MB // len(one))
    yield tail


def _each(attacks: dict[str, Handler], key: Callable[[web.Request], str]) -> Handler:
    """Use one attack per kind of request; requests of other kinds get the last one."""

    async def handle(request: web.Request) -> web.StreamResponse:
        name = key(request)
        return await attacks.get(name, next(reversed(attacks.values())))(request)

    return handle


KUBERNETES: dict[str, Handler] = {
    "nodes": endless_list,
    "pods": large_objects,
    "leases": _watched(lambda: _events(0, 1000)),
    "gpuclaims": _watched(lambda: _events(0, 1000)),  # without a spec, so they can't be decoded
    "statefulsets": _watched(lambda: _events(MB, 1)),
    "daemonsets": _watched(lambda: _repeat(b"x" * MB, b'{"type":"ADDED","object":{"a":"')),
    "deployments": repeated_token,
    "jobs": endless_page,
}
PROMETHEUS: dict[str, Handler] = {
    "endless": _answers(lambda: _repeat(b" " * MB, _RESULT)),
    "many_series": _answers(lambda: _series(b",", 120 * MB)),
    "many_series_in_one_piece": _answers(lambda: _series(b", ", 120 * MB)),
    "many_points": _answers(lambda: _points(120 * MB)),
    "many_names": many_names,
}
UPSTREAMS: dict[str, Handler] = {
    "kubernetes": _each(KUBERNETES, lambda request: request.path.rpartition("/")[2]),
    "slurm": many_jobs,
    "slurm-endless": endless_json,
    "docker": many_containers,
    "docker-events": endless_docker_events,
    "docker-endless": endless_json,
    **{f"prometheus-{name}": attack for name, attack in PROMETHEUS.items()},
}


async def main(upstream: str) -> None:
    attacked = 0

    async def count(request: web.Request) -> web.Response:
        return web.json_response(attacked)

    async def handle(request: web.Request) -> web.StreamResponse:
        nonlocal attacked
        attacked += 1
        return await UPSTREAMS[upstream](request)

    app = web.Application()
    app.router.add_get("/attacked", count)
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, shutdown_timeout=0.1, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    print(runner.addresses[0][1], flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await runner.cleanup()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
