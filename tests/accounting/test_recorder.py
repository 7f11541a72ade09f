"""Accounting over a real store: hours, restarts, takeovers, late information, gaps."""

import asyncio
from collections.abc import AsyncIterator

import msgspec
import pytest
from tests.accounting.histories import (
    HOUR,
    STEP,
    Prometheus,
    Server,
    Time,
    World,
    pod,
)

from gpufleet.accounting.loop import AccountingLoop
from gpufleet.accounting.recorder import Recorder
from gpufleet.model.node import FleetNode
from gpufleet.model.reading import Quantity, SampleBlock
from gpufleet.model.statistics import HoursQuery, WorkloadHoursQuery
from gpufleet.model.workload import Status
from gpufleet.store import Store

NUMBER = HOUR // 3600
QUERY = HoursQuery(cluster="prod", first=NUMBER, last=NUMBER, limit=100)


def world() -> World:
    found = World()
    found.nodes["a"] = FleetNode(name="a", gpu_count=4, gpu_model="H200", created=HOUR - 9000.0)
    found.pods["p"] = pod("p", "a", 2, HOUR + 0.0, held=(0, 1), labels={"team": "nlp"})
    return found


def measured(*gpus: int, value: float = 50.0, moments: range = range(12)) -> Prometheus:
    return Prometheus({("a", gpu, HOUR + m * STEP): value for gpu in gpus for m in moments})


async def hour_of(store: Store, number: int = NUMBER) -> tuple[float, float | None, int]:
    query = msgspec.structs.replace(QUERY, first=number, last=number)
    (row,) = await store.statistics.cluster_hours(query)
    return row.allocated_gpu_hours, row.avg_utilization, row.sample_count


async def test_an_hour_appears_when_it_is_over(store: Store) -> None:
    time = Time()
    server = Server(world(), store, measured(0, 1), time)
    for minutes in (0, 30, 59):
        time.now = HOUR + minutes * 60.0
        await server.round()
    assert await store.statistics.cluster_hours(QUERY) == []
    time.now = HOUR + 3600 + 60.0
    await server.round()
    (row,) = await store.statistics.cluster_hours(QUERY)
    assert (row.allocated_gpu_hours, row.capacity_gpu_hours, row.total_gpu_capacity) == (2.0, 4.0, 4)
    assert (row.allocation_rate, row.avg_utilization, row.sample_count, row.cost) == (50.0, 50.0, 12, 7.0)
    (space,) = await store.statistics.namespace_hours(QUERY, "")
    assert (space.namespace, space.active_workload_count, space.total_gpu_capacity) == ("ml", 1, 4)
    (label,) = await store.statistics.label_hours(QUERY, "label", "team", "")
    assert (label.dimension_value, label.allocated_gpu_count) == ("nlp", 2.0)
    total, rows = await store.workload_pages.page(
        WorkloadHoursQuery(cluster="prod", first=NUMBER, last=NUMBER, limit=20)
    )
    assert total == 1
    assert (rows[0].workload_name, rows[0].workload_status, rows[0].sample_count) == ("p", "Running", 24)


async def test_a_second_run_leaves_the_same_rows(store: Store) -> None:
    time = Time()
    server = Server(world(), store, measured(0, 1), time)
    await server.round()
    time.now = HOUR + 3660.0
    await server.round()
    first = await store.statistics.cluster_hours(QUERY)
    await store.database.execute("UPDATE accounted_hour SET stale = true")
    server.account.tried.clear()
    await server.round()
    (again,) = await store.statistics.cluster_hours(QUERY)
    assert msgspec.structs.replace(again, updated_at=first[0].updated_at) == first[0]
    assert again.updated_at > first[0].updated_at


async def test_a_server_that_was_down_rolls_up_the_missed_hours(store: Store) -> None:
    time, true = Time(), world()
    metrics = Prometheus({("a", g, HOUR + m * STEP): 40.0 for g in (0, 1) for m in range(48)})
    await Server(true, store, metrics, time).round()
    time.now = HOUR + 3 * 3600 + 600.0
    await Server(true, store, metrics, time).round()
    for hour in range(3):
        assert await hour_of(store, NUMBER + hour) == (2.0, 40.0, 12)


async def test_a_pod_that_is_gone_after_a_restart_held_until_it_was_last_seen(store: Store) -> None:
    time, true = Time(), world()
    metrics = measured(0, 1)
    server = Server(true, store, metrics, time)
    await server.round()
    time.now = HOUR + 900.0
    await server.round()
    del true.pods["p"]
    time.now = HOUR + 3660.0
    await Server(true, store, metrics, time).round()
    assert await hour_of(store) == (0.5, 50.0, 3)


async def test_a_pod_that_ended_while_no_server_ran_is_billed_until_its_end(store: Store) -> None:
    time, true = Time(), world()
    await Server(true, store, measured(0, 1), time).round()
    true.pods["p"] = msgspec.structs.replace(true.pods["p"], phase=Status.COMPLETED, ended=HOUR + 1800.0)
    time.now = HOUR + 3660.0
    await Server(true, store, measured(0, 1), time).round()
    assert (await hour_of(store))[0] == 1.0


async def test_a_pod_that_was_evicted_while_no_server_ran_is_recorded_as_interrupted(store: Store) -> None:
    started = world()
    time = Time(HOUR + 600.0)
    await Server(started, store, measured(0, 1), time).round()
    started.pods["p"] = msgspec.structs.replace(
        started.pods["p"], phase=Status.FAILED, ended=HOUR + 900.0, interrupted=True
    )
    await Server(started, store, measured(0, 1), Time(HOUR + 1800.0)).round()
    (period,) = await store.allocation_periods.overlapping("prod", 0.0, 1e12)
    assert (period.start, period.end, period.interrupted) == (HOUR, HOUR + 900.0, True)


async def test_a_label_that_changed_splits_the_hour_also_over_a_restart(store: Store) -> None:
    time, true = Time(), world()
    server = Server(true, store, measured(0, 1), time)
    await server.round()
    time.now = HOUR + 900.0
    true.pods["p"] = msgspec.structs.replace(true.pods["p"], labels={"team": "vision"})
    server.fleet.put_pod(true.pods["p"])
    await server.round()
    time.now = HOUR + 3660.0
    await Server(true, store, measured(0, 1), time).round()
    rows = await store.statistics.label_hours(QUERY, "label", "team", "")
    assert {row.dimension_value: row.allocated_gpu_hours for row in rows} == {"nlp": 0.5, "vision": 1.5}
    assert (await hour_of(store))[0] == 2.0


async def test_a_replica_takes_over_without_a_gap(store: Store) -> None:
    time, true = Time(), world()
    first, second = (Server(true, store, measured(0, 1), time) for _ in range(2))
    await first.round()
    time.now = HOUR + 600.0
    ended = msgspec.structs.replace(true.pods.pop("p"), phase=Status.FAILED, ended=HOUR + 600.0)
    short = pod("short", "a", 1, HOUR + 610.0, held=(2,), phase=Status.COMPLETED, ended=HOUR + 620.0)
    for each in (ended, short):
        second.fleet.put_pod(each)
        second.fleet.drop_pod(each.uid)
    second.recorder.collect()
    time.now = HOUR + 640.0
    first.recorder.step_down()
    await second.round()
    time.now = HOUR + 3660.0
    await second.round()
    assert (await hour_of(store))[0] == pytest.approx(2 * 600 / 3600 + 10 / 3600)


async def test_late_information_rolls_up_an_hour_again(store: Store) -> None:
    time, true = Time(), world()
    server = Server(true, store, measured(0, 1), time)
    await server.round()
    time.now = HOUR + 3660.0
    await server.round()
    assert (await hour_of(store))[0] == 2.0
    time.now += 600
    late = msgspec.structs.replace(true.pods["p"], phase=Status.FAILED, ended=HOUR + 1800.0)
    server.fleet.put_pod(late)
    await server.round()
    assert (await hour_of(store))[0] == 1.0


async def test_an_hour_without_the_metric_source_uses_its_snapshots_and_is_measured_later(
    store: Store,
) -> None:
    time = Time()
    metrics = measured(0, 1)
    metrics.down = True
    server = Server(world(), store, metrics, time)
    for minutes in (0, 5, 10):
        time.now = HOUR + minutes * 60.0 + 1
        await server.round()
    time.now = HOUR + 3660.0
    await server.round()
    assert await hour_of(store) == (2.0, None, 0)
    metrics.down = False
    time.now += 400
    await server.round()
    assert await hour_of(store) == (2.0, 50.0, 12)


async def test_an_hour_without_data_has_no_row(store: Store) -> None:
    time = Time()
    server = Server(world(), store, Prometheus(), time)
    time.now = HOUR + 120.0
    await server.round()
    time.now = HOUR + 3660.0 + 120
    await server.round()
    assert await store.statistics.cluster_hours(QUERY) == []
    assert await server.recorder.due_hours(time.now) == []


async def test_lost_readings_do_not_overwrite_a_stored_hour(store: Store) -> None:
    time = Time()
    metrics = measured(0, 1)
    server = Server(world(), store, metrics, time)
    await server.round()
    time.now = HOUR + 3660.0
    await server.round()
    metrics.values.clear()
    await store.database.execute("UPDATE accounted_hour SET stale = true")
    server.account.tried.clear()
    time.now += 1000
    await server.round()
    assert await hour_of(store) == (2.0, 50.0, 12)
    assert await server.recorder.due_hours(time.now) == []


class SlowPrometheus(Prometheus):
    """A metric source that takes 40 seconds to fail."""

    def __init__(self, time: Time) -> None:
        super().__init__()
        self.time = time
        self.down = True

    async def samples(
        self, quantity: Quantity, start: float, end: float, step: float
    ) -> AsyncIterator[SampleBlock]:
        self.time.now += 40.0
        async for block in super().samples(quantity, start, end, step):
            yield block


async def test_slow_hours_neither_cost_snapshots_nor_delay_the_current_hour(store: Store) -> None:
    time = Time()
    server = Server(world(), store, SlowPrometheus(time), time)
    await server.round()
    time.now = HOUR + 20 * 3600 - 250.0
    await server.round()
    taken = await store.snapshots.between("prod", HOUR + 20 * 3600.0, time.now, 100, 0, details=False)
    moments = [int(one.snapshot_time.timestamp()) - HOUR - 20 * 3600 for one in taken]
    assert moments == list(range(0, int(time.now) - HOUR - 20 * 3600, STEP))
    assert len(moments) > 1
    done = await store.hours.states("prod", NUMBER)
    assert set(done) == set(range(NUMBER, NUMBER + 20))


async def test_a_snapshot_is_taken_as_soon_as_the_fleet_is_up_to_date(store: Store) -> None:
    time = Time(HOUR + 1.0)
    server = Server(world(), store, Prometheus(), time)
    seen = False
    server.recorder = server.account.recorder = Recorder(server.fleet, store, time, lambda: seen)
    await server.round()
    assert await store.snapshots.newest("prod", time.now) is None
    seen, time.now = True, HOUR + 5.0
    await server.round()
    assert await store.snapshots.newest("prod", time.now) == HOUR


async def test_an_hour_is_over_by_the_clock_of_the_database(store: Store) -> None:
    """The clock of the server is an hour ahead."""
    await store.accounted.open("prod", float(HOUR))
    time = Time(HOUR + 3000.0 + 3600.0)
    server = Server(world(), store, measured(0, 1), time)
    loop = AccountingLoop([server.account], store, server.loop._prune, time)
    store.database.clock = f"to_timestamp({HOUR + 3000.0})"
    await loop.round(server.account)
    assert await store.statistics.cluster_hours(QUERY) == []
    assert await store.snapshots.newest("prod", time.now) == HOUR + 3000
    store.database.clock = f"to_timestamp({HOUR + 3660.0})"
    await loop.round(server.account)
    assert len(await store.statistics.cluster_hours(QUERY)) == 1


async def test_accounting_continues_if_pruning_fails(store: Store) -> None:
    time = Time(HOUR + 1.0)
    server = Server(world(), store, measured(0, 1), time)

    async def prune() -> None:
        raise RuntimeError("a view depends on a partition")

    loop = AccountingLoop([server.account], store, prune, time, tick=0.01, now=time.of_database)
    await store.accounted.open("prod", time.now)
    leading = asyncio.create_task(loop.run_as_leader())
    async with asyncio.timeout(60):
        while await store.snapshots.newest("prod", time.now) is None:
            assert not leading.done()
            await asyncio.sleep(0.01)
        time.now = HOUR + 3660.0
        while not await store.statistics.cluster_hours(QUERY):
            assert not leading.done()
            await asyncio.sleep(0.01)
    leading.cancel()
    await asyncio.gather(leading, return_exceptions=True)


async def test_the_first_snapshot_of_a_new_node_includes_the_holders_of_its_gpus(store: Store) -> None:
    true = world()
    true.nodes["a"] = FleetNode(name="a", gpu_count=4, gpu_model="H200")  # its creation is not known
    server = Server(true, store, Prometheus(), Time(HOUR + 3.0))
    await server.round()
    taken = await store.snapshots.latest("prod", HOUR + 3.0)
    assert (taken.total_gpu_capacity, taken.allocated_gpu_count) == (4, 2)


async def test_a_leader_accounts_for_hours_whose_records_are_added_later(store: Store) -> None:
    time = Time(HOUR + 10.0)
    server = Server(World(), store, Prometheus(), time)
    await server.round()
    time.now = HOUR + 3700.0
    assert await server.recorder.due_hours(time.now) == [HOUR // 3600]
    await store.accounted.open("prod", HOUR - 7200.0)
    assert await server.recorder.due_hours(time.now) == [HOUR // 3600 - 2, HOUR // 3600 - 1, HOUR // 3600]
