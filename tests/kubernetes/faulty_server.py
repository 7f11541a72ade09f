"""A small API server with resource versions that fails on demand.

It serves one flat set of objects under any collection path, which is enough for the client. Faults
are queued by the kind of request that they affect and used one by one; `requests` records what
arrived.
"""

import asyncio
import json
import ssl
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

from gpufleet.kubernetes import Backoff, Connection, KubeClient, Retries, WatchTimings
from gpufleet.kubernetes.client.client import MAX_CACHE_BYTES, MAX_OBJECTS
from gpufleet.kubernetes.client.transport import MAX_RESPONSE_BYTES

FAST = WatchTimings(
    backoff=Backoff(initial=0.002, maximum=0.02), duration=30.0, idle_timeout=20.0, healthy_after=0.5
)
QUICK = Retries(attempts=4, backoff=Backoff(initial=0.002, maximum=0.01))

Object = dict[str, Any]
Fault = Callable[["FaultyServer", web.Request], Awaitable[web.StreamResponse]]


class FaultyServer:
    def __init__(self) -> None:
        self.objects: dict[str, Object] = {}
        self.version = 100
        self.compacted = 0
        self.history: list[tuple[int, str, Object]] = []
        self.faults: dict[str, deque[Fault]] = defaultdict(deque)
        self.requests: list[tuple[str, str]] = []
        self.headers: list[dict[str, str]] = []
        self.refuse: Callable[[web.Request], web.Response | None] = lambda request: None
        self.changed = asyncio.Condition()
        self.url = ""

    # Actions of users

    async def put(self, name: str, **fields: Any) -> Object:
        old = self.objects.get(name)
        self.version += 1
        meta = {
            "name": name,
            "namespace": "default",
            "uid": old["metadata"]["uid"] if old else f"uid-{self.version}",
            "resourceVersion": str(self.version),
            "labels": {"at": str(self.version)},
        }
        item = {**fields, "metadata": meta}
        self.objects[name] = item
        await self._record("MODIFIED" if old else "ADDED", item)
        return item

    async def remove(self, name: str) -> None:
        if (item := self.objects.pop(name, None)) is not None:
            self.version += 1
            meta = {**item["metadata"], "resourceVersion": str(self.version)}
            await self._record("DELETED", {**item, "metadata": meta})

    def compact(self) -> None:
        self.compacted = self.version
        self.history.clear()

    def truth(self) -> dict[str, str]:
        return {name: item["metadata"]["resourceVersion"] for name, item in self.objects.items()}

    async def _record(self, kind: str, item: Object) -> None:
        self.history.append((self.version, kind, item))
        async with self.changed:
            self.changed.notify_all()

    # The API

    async def handle(self, request: web.Request) -> web.StreamResponse:
        verb = "WATCH" if "watch" in request.query else request.method
        self.requests.append((verb, request.path_qs))
        self.headers.append(dict(request.headers))
        if (refusal := self.refuse(request)) is not None:
            return refusal
        if self.faults[verb]:
            return await self.faults[verb].popleft()(self, request)
        name = request.path.rpartition("/")[2]
        if request.method == "POST":
            return await self._create(await request.json())
        if request.method == "PUT":
            return await self._replace(name, await request.json())
        if request.method == "DELETE":
            await self.remove(name)
            return web.json_response({"kind": "Status", "status": "Success"})
        if verb == "WATCH":
            return await self.watch(request)
        if name in self.objects or name.startswith("one-"):
            return web.json_response(self.objects[name]) if name in self.objects else status(404, "NotFound")
        return self.list(request)

    def list(self, request: web.Request) -> web.Response:
        names = sorted(self.objects)
        start, version = 0, self.version
        if token := request.query.get("continue"):
            last, at = token.split("@")
            if int(at) < self.compacted:
                return status(410, "Expired")
            start, version = sum(name <= last for name in names), int(at)
        limit = int(request.query.get("limit", "0")) or len(names) + 1
        page = names[start : start + limit]
        meta: Object = {"resourceVersion": str(version)}
        if start + limit < len(names):
            meta["continue"] = f"{page[-1]}@{version}"
        return web.json_response({"metadata": meta, "items": [self.objects[name] for name in page]})

    async def watch(self, request: web.Request) -> web.StreamResponse:
        at = int(request.query["resourceVersion"])
        if at < self.compacted:
            return status(410, "Expired")
        response = await opened(request)
        while at >= self.compacted:
            if events := [event for event in self.history if event[0] > at]:
                await response.write(b"".join(line(kind, item) for _, kind, item in events))
                at = events[-1][0]
            else:
                await self._news_after(at)
        await response.write(line("ERROR", {"code": 410, "reason": "Expired", "message": "too old"}))
        return response

    async def _news_after(self, version: int) -> None:
        async with self.changed:
            await self.changed.wait_for(lambda: self.version > version)

    async def _create(self, item: Object) -> web.Response:
        name = item["metadata"]["name"]
        if name in self.objects:
            return status(409, "AlreadyExists")
        return web.json_response(await self.put(name, **_rest(item)), status=201)

    async def _replace(self, name: str, item: Object) -> web.Response:
        if name not in self.objects:
            return status(404, "NotFound")
        if item["metadata"]["resourceVersion"] != self.objects[name]["metadata"]["resourceVersion"]:
            return status(409, "Conflict")
        return web.json_response(await self.put(name, **_rest(item)))

    @asynccontextmanager
    async def serving(self, tls: ssl.SSLContext | None = None, port: int = 0) -> AsyncIterator[str]:
        app = web.Application(client_max_size=1 << 24)
        app.router.add_route("*", "/{path:.*}", self.handle)
        # Watches don't end on their own: a stopping server must close them.
        server = TestServer(app, host="127.0.0.1", port=port, scheme="https" if tls else "http")
        await server.start_server(ssl=tls, shutdown_timeout=0.01)
        self.url = f"{server.scheme}://127.0.0.1:{server.port}"
        try:
            yield self.url
        finally:
            await server.close()

    @asynccontextmanager
    async def client(
        self,
        within: float = 5.0,
        max_response_bytes: int = MAX_RESPONSE_BYTES,
        max_objects: int = MAX_OBJECTS,
        max_cache_bytes: int = MAX_CACHE_BYTES,
        **options: Any,
    ) -> AsyncIterator[KubeClient]:
        async with KubeClient(
            Connection(self.url, **options),
            timeout=within,
            retries=QUICK,
            requests_per_second=1e6,
            burst=1000,
            max_response_bytes=max_response_bytes,
            max_objects=max_objects,
            max_cache_bytes=max_cache_bytes,
        ) as client:
            yield client


def _rest(item: Object) -> Object:
    return {key: value for key, value in item.items() if key != "metadata"}


def line(kind: str, item: Object) -> bytes:
    return json.dumps({"type": kind, "object": item}).encode() + b"\n"


def status(code: int, reason: str, **headers: str) -> web.Response:
    body = {"kind": "Status", "code": code, "reason": reason, "message": f"{reason} on demand"}
    return web.json_response(
        body, status=code, headers={key.replace("_", "-"): v for key, v in headers.items()}
    )


async def opened(request: web.Request) -> web.StreamResponse:
    response = web.StreamResponse()
    await response.prepare(request)
    return response


# Faults


def answer(code: int, reason: str, **headers: str) -> Fault:
    async def fault(server: FaultyServer, request: web.Request) -> web.StreamResponse:
        return status(code, reason, **headers)

    return fault


async def cut(server: FaultyServer, request: web.Request) -> web.StreamResponse:
    """Break the connection before a response."""
    assert request.transport is not None
    request.transport.abort()
    return web.Response()


async def hang(server: FaultyServer, request: web.Request) -> web.StreamResponse:
    """Accept the request and never respond."""
    await asyncio.sleep(60)
    return web.Response()


async def fall_silent(server: FaultyServer, request: web.Request) -> web.StreamResponse:
    """Open a watch that stays silent."""
    response = await opened(request)
    await asyncio.sleep(60)
    return response


async def end_at_once(server: FaultyServer, request: web.Request) -> web.StreamResponse:
    return await opened(request)


async def half_a_line(server: FaultyServer, request: web.Request) -> web.StreamResponse:
    """Send half of an event, then break the connection."""
    at = int(request.query["resourceVersion"])
    response = await opened(request)
    item = next((item for version, _, item in server.history if version > at), {"metadata": {"name": "x"}})
    whole = line("MODIFIED", item)
    await response.write(whole[: len(whole) // 2])
    assert request.transport is not None
    request.transport.close()
    return response


async def garbage(server: FaultyServer, request: web.Request) -> web.StreamResponse:
    response = await opened(request)
    await response.write(b"<html>Bad gateway</html>\n")
    return response


async def gone_in_the_middle(server: FaultyServer, request: web.Request) -> web.StreamResponse:
    """Deliver one event, then report an expired version."""
    response = await _one_event(server, request)
    await response.write(
        line("ERROR", {"code": 410, "reason": "Expired", "message": "too old resource version"})
    )
    return response


async def one_event_then_cut(server: FaultyServer, request: web.Request) -> web.StreamResponse:
    response = await _one_event(server, request)
    assert request.transport is not None
    request.transport.abort()
    return response


async def _one_event(server: FaultyServer, request: web.Request) -> web.StreamResponse:
    response = await opened(request)
    at = int(request.query["resourceVersion"])
    known = at >= server.compacted
    for _, kind, item in [event for event in server.history if known and event[0] > at][:1]:
        await response.write(line(kind, item))
    return response
