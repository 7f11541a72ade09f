"""The progress of accounting is read from the store."""

from tests.accounting.histories import HOUR, STEP, Prometheus, Server, Time, World, pod

from gpufleet.accounting.progress import Progress, progress
from gpufleet.model.node import FleetNode
from gpufleet.store import Store


async def test_progress_is_the_newest_snapshot_and_the_first_hour_that_is_missing(store: Store) -> None:
    time = Time(HOUR + 90.0)
    assert await progress("prod", store, time.now) is None
    world = World({"a": FleetNode(name="a", gpu_count=4, gpu_model="H200", created=HOUR - 9000.0)})
    world.pods["p"] = pod("p", "a", 2, HOUR + 90.0, held=(0, 1))
    metrics = Prometheus({("a", 0, HOUR + m * STEP): 50.0 for m in range(48)})
    server = Server(world, store, metrics, time)
    await store.accounted.open("prod", time.now)
    assert await progress("prod", store, time.now) == Progress(HOUR + 90.0, HOUR + 90.0)
    time.now = HOUR + 310.0
    await server.round()
    assert await progress("prod", store, time.now) == Progress(HOUR + 300.0, HOUR + 90.0)
    time.now = HOUR + 3 * 3600 + 50.0
    await server.round()
    assert await progress("prod", store, time.now) == Progress(HOUR + 3 * 3600.0, HOUR + 3 * 3600.0)
    await store.database.execute("DELETE FROM accounted_hour WHERE hour = $1", HOUR // 3600 + 1)
    assert await progress("prod", store, time.now) == Progress(HOUR + 3 * 3600.0, HOUR + 3600.0)
    ahead = HOUR + 9 * 3600
    await store.snapshots.save("prod", ahead, 4, 2.0, None, b"{}", b"")  # by a clock that was ahead
    assert await progress("prod", store, time.now) == Progress(HOUR + 3 * 3600.0, HOUR + 3600.0)
