"""`/api/events`: changes as server-sent events.

Each event is a change of a workload, a node, a GPU's health or a claim. The queue of a client is
bounded: one that reads too slowly loses the oldest changes and gets an event `lost` with their
number. A caller who is limited to namespaces gets the changes of workloads in them, and those of nodes and
GPUs. A comment every 15 seconds keeps proxies from closing the connection. Streams end when the
server stops, so that they do not delay its shutdown, and when their caller's token is revoked.
"""

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Awaitable, Callable

import msgspec
from starlette.exceptions import HTTPException
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from gpufleet.fleet.changes import Change
from gpufleet.fleet.clusters import Cluster, Clusters
from gpufleet.model.namespaces import Namespaces, is_visible
from gpufleet.server.health import Lifecycle
from gpufleet.server.http.request_context import RequestContext, always_allowed
from gpufleet.server.http.routing import Route, get
from gpufleet.server.routes.params import ClusterParams

MAX_CLIENTS = 200
MAX_CLIENTS_PER_CALLER = 100
QUEUE_SIZE = 1000
HEARTBEAT = 15.0
REPLAYED = 50
"""Earlier changes that a stream starts with, so that a page has something to show."""


def event_routes(
    clusters: Clusters,
    lifecycle: Lifecycle,
    heartbeat: float = HEARTBEAT,
    queues: list[deque[Change]] | None = None,
) -> list[Route]:
    """Return the route of the event stream; `queues` receives the queue of each connected client."""
    connected = queues if queues is not None else []
    clients: Counter[str] = Counter()

    @get("/api/events", scope="filtered", media_type="text/event-stream")
    async def events(
        query: ClusterParams, context: RequestContext, namespaces: Namespaces
    ) -> StreamingResponse:
        """Changes of workloads, nodes, GPU health and claims, as they happen (server-sent events)."""
        cluster = clusters.synced(query.cluster)
        caller = context.caller.name if context.caller else ""
        if len(connected) >= MAX_CLIENTS or (caller and clients[caller] >= MAX_CLIENTS_PER_CALLER):
            raise HTTPException(503, f"{len(connected)} clients are connected already", {"retry-after": "5"})

        queue: deque[Change] = deque(maxlen=QUEUE_SIZE)
        connected.append(queue)
        clients[caller] += 1

        def disconnect() -> None:
            connected[:] = [each for each in connected if each is not queue]
            clients[caller] -= 1
            if not clients[caller]:
                del clients[caller]

        stream = _events(cluster, lifecycle, heartbeat, queue, context.still_allowed, namespaces)
        return _EventStream(stream, disconnect)

    return [events]


class _EventStream(StreamingResponse):
    """A stream of events that counts from the request on: a burst of requests must not pass the limit."""

    def __init__(self, events: AsyncIterator[bytes], on_end: Callable[[], None]) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"cache-control": "no-store"})
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events until the client disconnects or the stream ends."""
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._on_end()


async def _events(
    cluster: Cluster,
    lifecycle: Lifecycle,
    heartbeat: float,
    queue: deque[Change],
    still_allowed: Callable[[], Awaitable[bool]] = always_allowed,
    namespaces: Namespaces = None,
) -> AsyncIterator[bytes]:
    wake = asyncio.Event()
    received = 0

    def on_change(change: Change) -> None:
        nonlocal received
        if not _is_visible(change, namespaces):
            return
        received += 1
        queue.append(change)
        wake.set()

    recent = [change for change in cluster.fleet.changes.recent if _is_visible(change, namespaces)]
    replayed = recent[-REPLAYED:]
    unsubscribe = cluster.fleet.changes.subscribe(on_change)
    cancel = lifecycle.when_stopping(wake.set)
    try:
        yield b": changes of cluster " + cluster.name.encode("ascii", "replace") + b"\n\n"
        for change in replayed:
            yield _event(change)
        sent = 0
        checked_at = time.monotonic()
        while not lifecycle.stopping:
            if time.monotonic() - checked_at >= heartbeat:
                if not await still_allowed():
                    return
                checked_at = time.monotonic()
            try:
                async with asyncio.timeout(heartbeat):
                    await wake.wait()
            except TimeoutError:
                yield b": still here\n\n"
                continue
            wake.clear()
            if (lost := received - sent - len(queue)) > 0:
                sent += lost
                yield b"event: lost\ndata: " + str(lost).encode() + b"\n\n"
            while queue:
                sent += 1
                yield _event(queue.popleft())
    finally:
        cancel()
        unsubscribe()


def _is_visible(change: Change, namespaces: Namespaces) -> bool:
    return change.namespace is None or is_visible(namespaces, change.namespace)


def _event(change: Change) -> bytes:
    data = msgspec.to_builtins(change)
    del data["namespace"]  # the title has it
    return b"event: " + change.subject.encode() + b"\ndata: " + msgspec.json.encode(data) + b"\n\n"
