import asyncio
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator
from typing import cast

import msgspec

from gpufleet.fleet.clusters import Cluster
from gpufleet.model.node import FleetNode
from gpufleet.server.health import Lifecycle
from gpufleet.server.routes.live.events import QUEUE_SIZE, _events


async def test_a_client_gets_changes_and_heartbeats(cluster: Cluster) -> None:
    cluster.fleet.refresh()
    cluster.fleet.changes.recent.clear()
    events = _events(cluster, Lifecycle(), heartbeat=0.05, queue=deque(maxlen=QUEUE_SIZE))
    assert (await anext(events)).startswith(b": changes of cluster prod")
    assert await anext(events) == b": still here\n\n"
    cluster.fleet.put_node(FleetNode(name="idle", gpu_count=8, ready=False, not_ready_reason="gone dark"))
    cluster.fleet.refresh()
    head, _, body = (await anext(events)).partition(b"\ndata: ")
    assert head == b"event: node"
    assert msgspec.json.decode(body) | {"at": 0} == {
        "at": 0,
        "subject": "node",
        "name": "idle",
        "title": "idle",
        "was": "healthy",
        "now": "faulty",
        "reason": "gone dark",
    }
    await cast(AsyncGenerator[bytes, None], events).aclose()


async def test_a_change_during_the_start_of_a_stream_is_sent_once(cluster: Cluster) -> None:
    cluster.fleet.refresh()
    cluster.fleet.changes.recent.clear()
    events = _events(cluster, Lifecycle(), heartbeat=0.05, queue=deque(maxlen=QUEUE_SIZE))
    await anext(events)
    cluster.fleet.put_node(FleetNode(name="idle", gpu_count=8, ready=False))
    cluster.fleet.refresh()
    assert (await anext(events)).startswith(b"event: node")
    assert await anext(events) == b": still here\n\n"
    await cast(AsyncGenerator[bytes, None], events).aclose()


async def test_a_slow_client_gets_the_number_of_lost_changes(cluster: Cluster) -> None:
    cluster.fleet.refresh()
    cluster.fleet.changes.recent.clear()
    events = _events(cluster, Lifecycle(), heartbeat=0.05, queue=deque(maxlen=QUEUE_SIZE))
    await anext(events)
    assert await anext(events) == b": still here\n\n"
    for number in range(QUEUE_SIZE // 2 + 5):
        for ready in (False, True):
            cluster.fleet.put_node(
                FleetNode(name="idle", gpu_count=8, ready=ready, labels={"n": str(number)})
            )
            cluster.fleet.refresh()
    assert await anext(events) == b"event: lost\ndata: 10\n\n"
    assert (await anext(events)).startswith(b"event: node")
    await cast(AsyncGenerator[bytes, None], events).aclose()


async def test_a_stream_ends_immediately_when_the_server_stops(cluster: Cluster) -> None:
    lifecycle = Lifecycle()
    events = _events(cluster, lifecycle, heartbeat=60, queue=deque(maxlen=QUEUE_SIZE))
    assert (await anext(events)).startswith(b": changes of cluster prod")
    cluster.fleet.changes.recent.clear()
    rest = asyncio.ensure_future(_all(events))
    await asyncio.sleep(0)  # one turn of the loop: the stream now waits for a change
    lifecycle.stop()
    async with asyncio.timeout(5):
        await rest


async def _all(events: AsyncIterator[bytes]) -> list[bytes]:
    return [event async for event in events]


async def test_a_stream_ends_when_its_token_is_revoked(cluster: Cluster) -> None:
    allowed = True

    async def still_allowed() -> bool:
        return allowed

    events = _events(cluster, Lifecycle(), 0.05, deque(), still_allowed)
    async with asyncio.timeout(10):
        while await anext(events) != b": still here\n\n":
            pass
        allowed = False
        assert [event async for event in events] == []
