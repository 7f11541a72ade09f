"""Late and odd data: clock skew, gaps, short pods, lost clusters, changing capacity."""

import time as clocks
from collections.abc import Iterator
from datetime import UTC, datetime

import msgspec
import pytest
from tests.accounting import reference
from tests.accounting.histories import (
    HOUR,
    PLAN,
    STEP,
    Prometheus,
    Server,
    Time,
    World,
    pod,
)

from gpufleet.accounting.loop import AccountedCluster, AccountingLoop
from gpufleet.accounting.recorder import Recorder
from gpufleet.model.node import FleetNode
from gpufleet.model.periods import CapacityPeriod
from gpufleet.model.statistics import ClusterStatistics, HoursQuery, WorkloadHoursQuery
from gpufleet.model.workload import Status
from gpufleet.store import Store

NUMBER = HOUR // 3600


def node(name: str = "a", gpus: int = 4) -> FleetNode:
    return FleetNode(name=name, gpu_count=gpus, gpu_model="H200", created=HOUR - 9000.0)


def world() -> World:
    return World({"a": node()}, {"p": pod("p", "a", 2, HOUR + 0.0, held=(0, 1), labels={"team": "nlp"})})


def measured(*gpus: int, moments: range = range(12)) -> Prometheus:
    return Prometheus({("a", gpu, HOUR + m * STEP): 50.0 for gpu in gpus for m in moments})


async def hours(
    store: Store, cluster: str = "prod", first: int = NUMBER, last: int = NUMBER
) -> list[ClusterStatistics]:
    return await store.statistics.cluster_hours(
        HoursQuery(cluster=cluster, first=first, last=last, limit=100)
    )


async def billed(store: Store) -> dict[str, float]:
    query = WorkloadHoursQuery(cluster="prod", first=NUMBER, last=NUMBER, limit=100)
    _, rows = await store.workload_pages.page(query)
    return {row.workload_name: row.allocated_gpu_hours for row in rows}


# Clock skew


async def test_a_pod_of_a_cluster_whose_clock_is_ahead_is_billed_from_its_own_start(store: Store) -> None:
    time, true = Time(HOUR + 600.0), world()
    true.pods["p"] = pod("p", "a", 2, HOUR + 645.0, held=(0, 1))  # bound in 45 seconds from now
    server = Server(true, store, measured(0, 1), time)
    await server.round()
    time.now = HOUR + 3660.0
    await server.round()
    assert (await billed(store))["p"] == pytest.approx(2 * (3600 - 645) / 3600)


async def test_an_end_before_the_beginning_is_an_end_at_the_beginning(store: Store) -> None:
    time, true = Time(HOUR + 600.0), world()
    server = Server(true, store, measured(0, 1), time)
    await server.round()
    wrong = msgspec.structs.replace(true.pods["p"], phase=Status.FAILED, ended=HOUR - 7200.0)
    server.fleet.put_pod(wrong)
    time.now = HOUR + 3660.0
    await server.round()
    assert await billed(store) == {}
    (row,) = await hours(store)
    assert (row.allocated_gpu_hours, row.allocation_rate) == (0.0, 0.0)


async def test_a_clock_that_is_set_back_neither_loses_nor_repeats_an_hour(store: Store) -> None:
    time, true = Time(), world()
    metrics = Prometheus({("a", g, HOUR + m * STEP): 50.0 for g in (0, 1) for m in range(24)})
    server = Server(true, store, metrics, time)
    for now in (1.0, 3660.0, 3480.0, 3500.0, 3660.0, 7260.0):
        time.now = HOUR + now
        await server.round()
    rows = await hours(store, last=NUMBER + 3)
    assert [row.allocated_gpu_hours for row in rows] == [2.0, 2.0]
    assert [row.sample_count for row in rows] == [12, 12]


@pytest.mark.parametrize("restarts", [False, True])
async def test_a_clock_that_was_hours_ahead_costs_no_hour_and_bills_none(
    store: Store, restarts: bool
) -> None:
    time, true = Time(HOUR + 1.0), world()
    metrics = Prometheus({("a", g, HOUR + m * STEP): 50.0 for g in (0, 1) for m in range(12)})
    server = Server(true, store, metrics, time)
    await server.round()
    time.now = HOUR + 8 * 3600 + 60.0
    await server.round()
    metrics.values |= {("a", g, HOUR + m * STEP): 50.0 for g in (0, 1) for m in range(12, 48)}
    time.now = HOUR + 600.0
    await server.round()
    if restarts:
        del true.pods["p"]
        time.now = HOUR + 700.0
        server = Server(true, store, metrics, time)
    for number in range(1, 4):
        time.now = HOUR + number * 3600 + 60.0
        await server.round()
    held = [row.allocated_gpu_hours for row in await hours(store, last=NUMBER + 2)]
    assert held == ([pytest.approx(2 * 600 / 3600), 0.0, 0.0] if restarts else [2.0, 2.0, 2.0])


async def test_a_cluster_first_seen_by_a_clock_ahead_has_its_first_hours(store: Store) -> None:
    time, true = Time(HOUR + 8 * 3600.0), world()
    server = Server(true, store, measured(0, 1), time)
    await server.round()
    for now in (1.0, 3660.0):
        time.now = HOUR + now
        await server.round()
    (row,) = await hours(store)
    assert (row.allocated_gpu_hours, row.sample_count) == (2.0, 12)


# Gaps of the metric source


async def test_a_gap_of_the_metric_source_costs_samples_and_no_gpu_hours(store: Store) -> None:
    time = Time()
    metrics = measured(0, 1)
    for moment in range(3, 8):
        for gpu in (0, 1):
            del metrics.values["a", gpu, HOUR + moment * STEP]
    server = Server(world(), store, metrics, time)
    await server.round()
    time.now = HOUR + 3660.0
    await server.round()
    (row,) = await hours(store)
    assert (row.allocated_gpu_hours, row.avg_utilization, row.sample_count) == (2.0, 50.0, 7)
    assert row.idle_gpu_hours == 0.0  # not measured is not idle


# Short pods


async def test_a_workload_that_runs_for_seconds_between_two_rounds_is_billed(store: Store) -> None:
    time, true = Time(), world()
    server = Server(true, store, measured(0, 1), time)
    await server.round()
    short = pod("short", "a", 1, HOUR + 700.0, held=(3,))
    server.fleet.put_pod(short)
    server.fleet.put_pod(msgspec.structs.replace(short, phase=Status.COMPLETED, ended=HOUR + 707.5))
    server.fleet.drop_pod("short")
    time.now = HOUR + 3660.0
    await server.round()
    assert await billed(store) == {"p": 2.0, "short": 7.5 / 3600}


# Lost clusters


async def test_a_cluster_that_disappears_keeps_its_hours_and_stops_no_other(store: Store) -> None:
    time = Time(HOUR + 1.0)
    there = Server(world(), store, measured(0, 1), time)
    lost = Server(world(), store, measured(0, 1), time, cluster="lost")
    seen = True
    recorder = Recorder(lost.fleet, store, time, lambda: seen)
    account = AccountedCluster(recorder, measured(0, 1), PLAN, STEP)
    loop = AccountingLoop([account], store, _nothing, time, now=time.of_database)
    await there.round()
    await loop.round(account)
    seen = False  # its API no longer answers
    for minutes in (5, 10, 61):
        time.now = HOUR + 60.0 * minutes + 1
        await there.round()
        await loop.round(account)
    assert await store.snapshots.count("lost", HOUR, HOUR + 7200) == 1
    assert await store.snapshots.count("prod", HOUR, HOUR + 7200) == 3
    for cluster in ("prod", "lost"):
        (row,) = await hours(store, cluster)
        assert row.allocated_gpu_hours == 2.0
    # then it is removed from the settings: it is no longer followed, and its data stays
    time.now = HOUR + 7260.0
    await there.round()
    assert sorted(await store.accounted.names()) == ["lost", "prod"]
    assert len(await hours(store, "lost", last=NUMBER + 2)) == 1


async def test_pods_of_a_cluster_that_comes_back_empty_held_until_it_was_last_seen(store: Store) -> None:
    time = Time(HOUR + 1.0)
    await Server(world(), store, measured(0, 1), time).round()
    time.now = HOUR + 3660.0
    await Server(World({"b": node("b")}), store, measured(0, 1), time).round()
    (row,) = await hours(store)
    assert row.allocated_gpu_hours == pytest.approx(2 * 1 / 3600)


async def _nothing() -> None:
    return None


# Capacity that changes


async def test_an_hour_with_a_changed_capacity_has_a_size_that_existed_and_the_exact_gpu_hours(
    store: Store,
) -> None:
    time, true = Time(), world()
    server = Server(true, store, measured(0, 1), time)
    await server.round()
    for seconds, gpus in ((900.0, 8), (1800.0, 3), (2700.0, 0)):
        server.watch(HOUR + seconds)
        server.fleet.put_node(node(gpus=gpus))
        server.fleet.refresh()  # a server does every second
        await server.round()
    server.watch(HOUR + 3660.0)
    await server.round()
    (row,) = await hours(store)
    periods = [
        CapacityPeriod(node="a", gpus=gpus, model="H200", start=HOUR + start, end=HOUR + start + 900.0)
        for gpus, start in ((4, 0.0), (8, 900.0), (3, 1800.0))
    ]
    assert row.capacity_gpu_hours == reference.capacity_hours(HOUR, periods) == 3.75
    assert row.total_gpu_capacity == 8  # each of 4, 8 and 3 for a quarter of an hour: the largest
    assert (row.allocated_gpu_count, row.observed_share) == (1.5, 1.0)  # 2 for three quarters
    assert row.allocated_gpu_hours == 1.5  # the node left while its pod was still listed
    assert row.allocation_rate == 40.0


# Time zones


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    clocks.tzset()
    yield
    monkeypatch.undo()
    clocks.tzset()


@pytest.mark.parametrize("night", [datetime(2026, 10, 25, tzinfo=UTC), datetime(2027, 3, 28, tzinfo=UTC)])
async def test_a_night_of_23_or_25_hours_has_an_hour_for_each_hour_of_utc(
    store: Store, berlin: None, night: datetime
) -> None:
    start = int(night.timestamp())
    time = Time(start + 1.0)
    true = World({"a": node()}, {"p": pod("p", "a", 2, float(start), held=(0, 1))})
    values = {("a", g, start + m * STEP): 50.0 for g in (0, 1) for m in range(48)}
    server = Server(true, store, Prometheus(values), time)
    for hour in range(5):
        time.now = start + 3600.0 * hour + 60
        await server.round()
    rows = await hours(store, first=start // 3600, last=start // 3600 + 10)
    assert [row.stat_hour.astimezone(UTC).hour for row in rows] == [0, 1, 2, 3]
    assert {row.allocated_gpu_hours for row in rows} == {2.0}


# What users write into their pods


@pytest.mark.parametrize(
    ("written", "stored"),
    [
        ("a\x00b", "a\ufffdb"),
        (r"C:\u0000", r"C:\u0000"),
        ("\\\\\x00", "\\\\\ufffd"),
        ("".join(chr(0x4E00 + n) for n in range(5000)), "".join(chr(0x4E00 + n) for n in range(341))),
    ],
    ids=["NUL", "backslash", "both", "long"],
)
async def test_no_annotation_prevents_the_hour_from_being_stored(
    store: Store, written: str, stored: str
) -> None:
    time, true = Time(HOUR + 10.0), world()
    true.pods["p"] = msgspec.structs.replace(true.pods["p"], annotations={"cost-center": written})
    server = Server(true, store, measured(0, 1), time)
    await server.round()
    server.fleet.drop_pod("p", HOUR + 1800.0)
    await store.ended.save("prod", server.fleet.drain_ended())
    time.now = HOUR + 3660.0
    await server.round()
    query = HoursQuery(cluster="prod", first=NUMBER, last=NUMBER, limit=100)
    (row,) = await store.statistics.label_hours(query, "annotation", "cost-center", "")
    assert (row.dimension_value, row.allocated_gpu_hours) == (stored, 1.0)


async def test_a_node_whose_exporter_changed_its_name_within_the_hour_keeps_all_samples(store: Store) -> None:
    time = Time()
    true = world()
    true.nodes["a"] = msgspec.structs.replace(true.nodes["a"], aliases=("10.0.0.1",))
    before = {("10.0.0.1", g, HOUR + m * STEP): 40.0 for g in (0, 1) for m in range(6)}
    after = {("a", g, HOUR + m * STEP): 60.0 for g in (0, 1) for m in range(6, 12)}
    server = Server(true, store, Prometheus(before | after), time)
    await server.round()
    time.now = HOUR + 3660.0
    await server.round()
    (row,) = await hours(store)
    assert (row.sample_count, row.avg_utilization) == (12, 50.0)
