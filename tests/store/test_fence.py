"""A server that led once: what it still writes is refused by PostgreSQL, whatever it believes."""

import asyncio
from collections.abc import Awaitable, Callable

import asyncpg
import pytest
from tests.accounting import histories
from tests.accounting.histories import STEP, Prometheus, Server, Time, World, pod
from tests.waiting import wait_until

from gpufleet.accounting.loop import AccountedCluster, AccountingLoop
from gpufleet.errors import LeadershipLost
from gpufleet.model.node import FleetNode
from gpufleet.model.periods import AllocationPeriod, CapacityPeriod
from gpufleet.model.reading import TrainingPoint
from gpufleet.runtime.settings import AccountingSettings, StoreSettings
from gpufleet.store import Leadership, Store, lead
from gpufleet.store.postgres import leadership
from gpufleet.store.postgres.locks import advisory_lock
from gpufleet.store.prune import RetentionSettings, prune

HOUR = histories.HOUR
NUMBER = HOUR // 3600
LATER = HOUR + 2000 * 86_400.0


def candidate(settings: StoreSettings, clock: str = "clock_timestamp()") -> Leadership:
    return Leadership(settings.url, settings, "accounting", retry_interval=0.05, clock=clock)


def freeze(leader: Leadership) -> None:
    """Stop the heartbeats of a leader that keeps its session, as SIGSTOP does."""
    assert leader._heartbeat is not None
    leader._heartbeat.cancel()
    leader.fence.lost.clear()


async def account(store: Store) -> None:
    """Roll up an hour with a pod, as the leader of that time, and store a training point."""
    world = World({"a": FleetNode(name="a", gpu_count=4, gpu_model="H200", created=HOUR - 9000.0)})
    world.pods["p"] = pod("p", "a", 2, HOUR + 0.0, held=(0, 1))
    time = Time(HOUR + 1.0)
    server = Server(world, store, Prometheus({("a", 0, HOUR + m * STEP): 50.0 for m in range(12)}), time)
    await server.round()
    time.now = HOUR + 3650.0
    await server.round()
    await store.training.append("prod", "job", [TrainingPoint("loss", 1.0, float(HOUR))])


TABLES = (
    "accounted_cluster",
    "accounted_hour",
    "capacity",
    "cluster_hour",
    "holding",
    "observed_span",
    "prune_run",
    "sent_report",
    "snapshot",
    "start_calibration",
    "training_point",
    "workload_hour",
)


async def contents(store: Store) -> dict[str, list[str]]:
    found = {}
    for table in TABLES:
        rows = await store.database.fetch(f"SELECT t::text AS row FROM {table} AS t ORDER BY 1")
        found[table] = [row["row"] for row in rows]
    return found


async def prune_old(store: Store) -> None:
    settings = AccountingSettings(workload_retention=86_400.0)
    await prune(store, RetentionSettings(settings, {}, {"prod": 86_400.0}), confirmed=True)


async def save_hour(store: Store) -> None:
    await store.hours.save("prod", NUMBER, None, measured=True, status=lambda _: "")


PERIOD = AllocationPeriod(
    pod_uid="q",
    pod="q",
    namespace="ml",
    node="a",
    workload_uid="q",
    workload_kind="Pod",
    workload_name="q",
    source="kubernetes",
    gpus=1,
    share=1.0,
    model="H200",
    held=(3,),
    labels={},
    annotations={},
    start=HOUR + 60.0,
)
WRITES: dict[str, Callable[[Store], Awaitable[object]]] = {
    "allocation periods": lambda store: store.allocation_periods.save("prod", [PERIOD]),
    "capacity periods": lambda store: store.capacity_periods.save(
        "prod", [CapacityPeriod(node="b", gpus=4, model="H200", start=HOUR + 60.0)]
    ),
    "observed spans": lambda store: store.observed.add("prod", HOUR + 7200.0, HOUR + 7300.0),
    "until when all is stored": lambda store: store.accounted.set_stored_until("prod", HOUR + 9000.0),
    "the start of accounting": lambda store: store.accounted.open("new", HOUR + 9000.0),
    "snapshots": lambda store: store.snapshots.save("prod", HOUR + 600, 4, 2.0, None, b"{}", b""),
    "hours": save_hour,
    "stale hours": lambda store: store.hours.mark_stale("prod", NUMBER),
    "hours that are kept": lambda store: store.hours.clear_stale("prod", NUMBER),
    "pruning": prune_old,
    "sent reports": lambda store: store.sent_reports.claim("prod", "2021-05"),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=list(WRITES))
async def test_a_write_of_an_old_epoch_changes_nothing(
    store: Store, store_settings: StoreSettings, write: Callable[[Store], Awaitable[object]]
) -> None:
    await account(store)
    async with candidate(store_settings) as old:
        pass
    async with candidate(store_settings) as new:
        assert new.fence.epoch == old.fence.epoch + 1
        store.database.clock = f"to_timestamp({LATER})"
        await store.accounted.set_stored_until("prod", LATER)
        before = await contents(store)
        with old.fence.applied(), pytest.raises(LeadershipLost, match="another server has led"):
            await write(store)
        assert await contents(store) == before
        with new.fence.applied():
            await write(store)


async def test_a_calibration_of_an_old_epoch_changes_nothing(
    store: Store, store_settings: StoreSettings
) -> None:
    old = store.leadership("accounting")
    async with old:
        assert await store.start_calibrations.save("prod", b'{"by": "old"}')
        freeze(old)
        async with candidate(store_settings, "clock_timestamp() + interval '20 s'"):
            old.fence.lost.clear()
            assert old.held  # so it believes before it sees that its session ended
            with pytest.raises(LeadershipLost):
                await store.start_calibrations.save("prod", b'{"by": "frozen"}')
    assert await store.start_calibrations.save("prod", b'{"by": "no leader"}') is False
    assert await store.start_calibrations.load("prod") == b'{"by": "old"}'


async def test_a_frozen_leader_is_replaced_and_its_open_transaction_ends(
    store: Store, store_settings: StoreSettings
) -> None:
    """It stopped between two statements of a transaction, with locks that would keep the next leader waiting."""
    async with candidate(store_settings) as old:
        frozen = await asyncpg.connect(store_settings.url, server_settings={"search_path": "gpufleet"})
        await frozen.execute("BEGIN; CREATE TABLE IF NOT EXISTS written (by text)")
        await old.fence.check(frozen)
        await frozen.execute("INSERT INTO written VALUES ('old')")
        freeze(old)
        async with (
            asyncio.timeout(10),
            candidate(store_settings, "clock_timestamp() + interval '20 s'") as new,
        ):
            assert new.fence.epoch == old.fence.epoch + 1
            with pytest.raises((asyncpg.PostgresError, asyncpg.InterfaceError, OSError)):
                await frozen.execute("COMMIT")
        frozen.terminate()
    assert await store.database.fetchval("SELECT to_regclass('written')") is None


async def test_a_new_epoch_waits_for_open_writes_of_the_old_one_and_a_renewal_does_not(
    store_settings: StoreSettings,
) -> None:
    schema = {"search_path": "gpufleet", "lock_timeout": "100"}
    writer, other = [await asyncpg.connect(store_settings.url, server_settings=schema) for _ in range(2)]
    async with candidate(store_settings) as leader:
        await writer.execute("BEGIN")
        await leader.fence.check(writer)
        assert await leader._renew()
        with pytest.raises(asyncpg.LockNotAvailableError):
            await other.execute("UPDATE leader SET epoch = epoch + 1")
        await writer.execute("COMMIT")
        await other.execute("UPDATE leader SET epoch = epoch + 1")
        assert not await leader._renew()
    await writer.close()
    await other.close()


async def test_a_leader_that_renews_is_not_replaced(store_settings: StoreSettings) -> None:
    async with candidate(store_settings) as old:
        other = candidate(store_settings)
        assert not await other._try_to_lead()
        assert await old._renew()
        await other._disconnect()


async def test_servers_of_earlier_versions_and_this_one_do_not_lead_at_the_same_time(
    store: Store, store_settings: StoreSettings
) -> None:
    """Earlier versions know the advisory lock only."""
    take = "SELECT pg_try_advisory_lock($1, $2)"
    earlier = await asyncpg.connect(store_settings.url)
    try:
        async with candidate(store_settings):
            assert not await earlier.fetchval(take, *advisory_lock("accounting"))
        assert await earlier.fetchval(take, *advisory_lock("accounting"))
        waiting = candidate(store_settings, "clock_timestamp() + interval '20 s'")  # the lease has expired
        for _ in range(3):
            assert not await waiting._try_to_lead()
        assert await earlier.fetchval("SELECT 1") == 1, "it is not ended"
        await waiting._disconnect()
    finally:
        await earlier.close()


async def test_a_server_with_a_wrong_clock_does_not_lead(
    store: Store, store_settings: StoreSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = candidate(store_settings, "clock_timestamp() - interval '1 hour'")
    assert not await wrong._try_to_lead()
    await wrong._disconnect()
    monkeypatch.setattr(leadership, "_HEARTBEAT", 0.01)
    async with candidate(store_settings) as leader:
        leader._clock = "clock_timestamp() + interval '1 hour'"  # its clock is set while it leads
        await asyncio.wait_for(leader.lost.wait(), 10)


async def test_work_ends_with_the_first_refused_write_and_begins_again_in_a_new_epoch(
    store: Store, store_settings: StoreSettings
) -> None:
    """The loop of accounting ends with the error and does not go on as if a database were slow."""
    await account(store)
    time = Time(HOUR + 3700.0)
    leaders: list[Leadership] = []
    world = World({"a": FleetNode(name="a", gpu_count=4, gpu_model="H200", created=HOUR - 9000.0)})
    server = Server(world, store, Prometheus(), time)
    pruned = asyncio.Queue[int]()

    async def note() -> None:
        pruned.put_nowait(leaders[-1].fence.epoch)

    cluster = AccountedCluster(server.recorder, Prometheus(), histories.PLAN, STEP)
    loop = AccountingLoop([cluster], store, note, time, tick=0.01, now=time.of_database)

    def campaign() -> Leadership:
        leaders.append(candidate(store_settings))
        return leaders[-1]

    leading = asyncio.create_task(lead(campaign, loop.run_as_leader))
    first = await asyncio.wait_for(pruned.get(), 10)
    await wait_until(lambda: server.recorder.leading)
    await store.database.execute("UPDATE leader SET epoch = epoch + 1")  # as another server does
    assert await asyncio.wait_for(pruned.get(), 20) > first
    leading.cancel()
    await asyncio.wait([leading])


async def test_work_that_swallows_a_cancellation_is_cancelled_again(
    store_settings: StoreSettings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leadership, "_CANCEL_INTERVAL", 0.01)
    started, cancelled = asyncio.Event(), 0

    async def work() -> None:
        nonlocal cancelled
        while cancelled < 3:
            started.set()
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                cancelled += 1

    leading = asyncio.create_task(lead(lambda: candidate(store_settings), work))
    await asyncio.wait_for(started.wait(), 10)
    leading.cancel()
    await asyncio.wait_for(asyncio.wait([leading]), 10)
    assert cancelled == 3
