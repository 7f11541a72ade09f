"""`/api/events`: what changes, told as it happens (server-sent events).

Each event is a change of a workload, a node, a GPU's health or a claim. A caller that reads too
slowly loses the oldest changes and is told that it did; memory stays bounded. A comment every 15
seconds keeps proxies from closing the connection. A stream ends when the server does, so that
nobody who listens holds up its end.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import StreamingResponse

from gpufleet.fleet.changes import Change
from gpufleet.fleet.clusters import Cluster, Clusters
from gpufleet.server.health import Lifecycle
from gpufleet.server.http.routing import Route, get
from gpufleet.server.routes.params import ClusterParams

MOST_LISTENERS = 200
KEPT_FOR_A_LISTENER = 1000
HEARTBEAT = 15.0
REPLAYED = 50
"""Changes before the connection that are told first, so that a page has something to show."""


def event_routes(clusters: Clusters, lifecycle: Lifecycle, heartbeat: float = HEARTBEAT) -> list[Route]:
    """The stream of changes."""
    listening = 0

    @get("/api/events", media_type="text/event-stream")
    async def events(query: ClusterParams) -> StreamingResponse:
        """Changes of workloads, nodes, GPU health and claims, as they happen (server-sent events)."""
        nonlocal listening
        cluster = clusters.get(query.cluster)
        if listening >= MOST_LISTENERS:
            raise HTTPException(503, f"{MOST_LISTENERS} listeners are connected already", {"retry-after": "5"})

        async def told() -> AsyncIterator[bytes]:
            nonlocal listening
            listening += 1
            try:
                async for event in _tell(cluster, lifecycle, heartbeat):
                    yield event
            finally:
                listening -= 1

        return StreamingResponse(told(), media_type="text/event-stream", headers={"cache-control": "no-store"})

    return [events]


async def _tell(cluster: Cluster, lifecycle: Lifecycle, heartbeat: float) -> AsyncIterator[bytes]:
    waiting: deque[Change] = deque(maxlen=KEPT_FOR_A_LISTENER)
    news = asyncio.Event()
    heard = 0

    def hear(change: Change) -> None:
        nonlocal heard
        heard += 1
        waiting.append(change)
        news.set()

    before = list(cluster.fleet.changes.recent)[-REPLAYED:]
    stop = cluster.fleet.changes.subscribe(hear)
    stay = lifecycle.when_stopping(news.set)
    try:
        yield b": changes of cluster " + cluster.name.encode("ascii", "replace") + b"\n\n"
        for change in before:
            yield _event(change)
        told = 0
        while not lifecycle.stopping:
            try:
                async with asyncio.timeout(heartbeat):
                    await news.wait()
            except TimeoutError:
                yield b": still here\n\n"
                continue
            news.clear()
            if (lost := heard - told - len(waiting)) > 0:
                told += lost
                yield b"event: lost\ndata: " + str(lost).encode() + b"\n\n"
            while waiting:
                told += 1
                yield _event(waiting.popleft())
    finally:
        stay()
        stop()


def _event(change: Change) -> bytes:
    return b"event: " + change.subject.encode() + b"\ndata: " + msgspec.json.encode(change) + b"\n\n"
