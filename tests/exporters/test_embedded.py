import math
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpufleet.errors import InvalidRequest, MetricsUnavailable, StoreUnavailable
from gpufleet.exporters.embedded import LOOKBACK, EmbeddedMetrics, at_steps
from gpufleet.model.metric_source import MetricSource
from gpufleet.model.reading import (
    Fault,
    FaultKind,
    GpuIdentity,
    GpuProcess,
    GpuRef,
    GpuSeries,
    GpuUser,
    Processes,
    Quantity,
    RdmaPorts,
    Readings,
    StorageUse,
    TrainingPoint,
)
from gpufleet.runtime.settings import MetricsSettings, StoreSettings
from gpufleet.store import Store, open_store

T0 = 1_800_000_000.0  # a full quarter of an hour
A, B, C = GpuRef("node-a", 0), GpuRef("node-a", 1), GpuRef("node-b", 0, "3")
POWER = Quantity.POWER


class Clock:
    """A clock that a test sets."""

    now = T0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def metrics(store: Store, clock: Clock) -> EmbeddedMetrics:
    store.database.clock = "to_timestamp(4e9)"  # so that the test's clock decides what is old
    return EmbeddedMetrics("here", store.readings, store.training, MetricsSettings(), clock)


def refresh(at: float, watts: dict[GpuRef, float], lag: float = 0.0) -> Readings:
    gpus = tuple(GpuIdentity(ref, f"GPU-{ref.node}-{ref.index}", "H100", "NVIDIA") for ref in sorted(watts))
    values = np.array([watts[gpu.ref] for gpu in gpus])
    times = np.where(np.isnan(values), np.nan, at - lag)
    return Readings(at, gpus, {POWER: values}, {POWER: times})


async def record(metrics: EmbeddedMetrics, clock: Clock, readings: Readings) -> None:
    clock.now = readings.taken_at
    await metrics.record(readings)


def points(series: Sequence[GpuSeries]) -> dict[GpuRef, dict[float, float]]:
    return {one.gpu: dict(zip(one.times.tolist(), one.values.tolist(), strict=True)) for one in series}


async def test_it_is_a_metric_source(metrics: EmbeddedMetrics) -> None:
    source: MetricSource = metrics
    assert len(await source.latest()) == 0
    assert (await source.storage(), await source.rdma()) == (None, None)
    assert source.health().healthy


async def test_readings_come_back_at_each_step(metrics: EmbeddedMetrics, clock: Clock) -> None:
    for tick in range(5):
        await record(metrics, clock, refresh(T0 + 15 * tick, {A: 100.0 + tick, C: 7.5}, lag=2.0))
    found = points(await metrics.series(POWER, [A, B, C], T0, T0 + 60, 15))
    assert found == {
        A: {T0: 100.0, T0 + 15: 101.0, T0 + 30: 102.0, T0 + 45: 103.0, T0 + 60: 104.0},
        C: dict.fromkeys([T0, T0 + 15, T0 + 30, T0 + 45, T0 + 60], 7.5),
    }


async def test_ranges_are_the_same_before_and_after_compaction(
    metrics: EmbeddedMetrics, clock: Clock, store: Store
) -> None:
    dice = np.random.default_rng(5)
    for tick in range(150):  # over two quarters; node-b comes and goes, a value is missing now and then
        watts = {A: round(dice.normal(300, 50), 3), B: math.nan if tick % 7 == 3 else float(tick)}
        if tick % 40 < 25:
            watts[C] = float(dice.normal())
        readings = refresh(T0 + 15 * tick, watts, lag=dice.uniform(0, 10))
        clock.now = readings.taken_at
        await store.readings.append("here", readings)
    span = (T0 - 100, T0 + 15 * 150, 20.0)
    before = points(await metrics.series(POWER, [A, B, C], *span))
    await metrics.compact()
    assert points(await metrics.series(POWER, [A, B, C], *span)) == before
    assert len(before[A]) > 100
    blocks = [block async for block in metrics.samples(POWER, *span)]
    joined: dict[GpuRef, dict[float, float]] = {}
    for block in blocks:
        for gpu, row in zip(block.gpus, block.values, strict=True):
            there = {t: v for t, v in zip(block.times.tolist(), row.tolist(), strict=True) if v == v}
            joined.setdefault(gpu, {}).update(there)
    assert {gpu: {t: v for t, v in row.items() if t < span[1]} for gpu, row in before.items()} == joined


async def test_a_gpu_without_a_value_has_none_immediately(metrics: EmbeddedMetrics, clock: Clock) -> None:
    await record(metrics, clock, refresh(T0, {A: 1.0, B: 2.0}))
    await record(metrics, clock, refresh(T0 + 15, {A: 1.0, B: math.nan}))
    await record(metrics, clock, refresh(T0 + 30, {A: 1.0}))
    found = points(await metrics.series(POWER, [A, B], T0, T0 + 45, 15))
    assert list(found[B]) == [T0]
    assert len(found[A]) == 4


async def test_after_an_outage_values_are_valid_for_five_minutes(
    metrics: EmbeddedMetrics, clock: Clock
) -> None:
    await record(metrics, clock, refresh(T0, {A: 1.0}))
    await record(metrics, clock, refresh(T0 + 1200, {A: 2.0}))
    found = points(await metrics.series(POWER, [A], T0, T0 + 1200, 100))
    assert found[A] == {T0: 1.0, T0 + 100: 1.0, T0 + 200: 1.0, T0 + 1200: 2.0}


async def test_old_readings_are_forgotten_and_their_space_is_free(
    metrics: EmbeddedMetrics, clock: Clock, store: Store
) -> None:
    for hour in range(0, 60, 2):
        await record(metrics, clock, refresh(T0 + 3600 * hour, {A: float(hour)}))
    now = T0 + 3600 * 58
    assert points(await metrics.series(POWER, [A], now - 3600, now, 3600))[A] == {now: 58.0}
    partitions = await store.database.fetchval(
        "SELECT count(*) FROM pg_inherits WHERE inhparent = 'reading_chunk'::regclass"
    )
    assert partitions <= 5 + 1
    assert await metrics.series(POWER, [A], T0, T0 + 20 * 3600, 3600) == []


async def test_another_server_reads_the_latest_with_holders_and_faults(
    metrics: EmbeddedMetrics, clock: Clock, store: Store
) -> None:
    holders, faults = {1: (GpuUser("ml", "train-0"),)}, {0: (Fault(FaultKind.XID, 79, 1.0, T0),)}
    plain = refresh(T0, {A: 1.0, B: math.nan})
    await record(metrics, clock, Readings(T0, plain.gpus, plain.values, plain.times, holders, faults))
    replica = EmbeddedMetrics("here", store.readings, store.training, MetricsSettings(), clock)
    seen = await replica.latest()
    assert (seen.taken_at, seen.gpus, seen.holders, seen.faults) == (T0, plain.gpus, holders, faults)
    assert (seen.value(0, POWER), seen.value(1, POWER), seen.time(0, POWER)) == (1.0, None, T0)
    await record(metrics, clock, refresh(T0 + 15, {A: 2.0}))
    assert (await replica.latest()).value(0, POWER) == 2.0
    other = EmbeddedMetrics("elsewhere", store.readings, store.training, MetricsSettings(), clock)
    assert len(await other.latest()) == 0


async def test_states_are_seen_by_another_server(
    metrics: EmbeddedMetrics, clock: Clock, store: Store
) -> None:
    processes = Processes((GpuProcess(A, 42, "python", "ada", "train.py", 1e9, None, 3.5, T0),))
    await metrics.record_processes(processes)
    await metrics.record_storage(StorageUse(10.0, 4.0, 6.0))
    await metrics.record_rdma(RdmaPorts(8, 7, 5e10, 3.5e11))
    replica = EmbeddedMetrics("here", store.readings, store.training, MetricsSettings(), clock)
    assert await replica.processes() == processes
    assert await replica.storage() == StorageUse(10.0, 4.0, 6.0)
    assert await replica.rdma() == RdmaPorts(8, 7, 5e10, 3.5e11)


async def test_training_points_come_back_in_order_and_once(metrics: EmbeddedMetrics) -> None:
    loss = [TrainingPoint("loss", 1.0 / (n + 1), T0 + n, None) for n in range(4)]
    speed = TrainingPoint("tokens_per_second", 9e5, T0 + 1.5, 3)
    await metrics.record_training("uid-1", [*reversed(loss), speed])
    await metrics.record_training("uid-1", loss[:2])
    await metrics.record_training("uid-2", loss)
    assert await metrics.training("uid-1", T0, T0 + 2) == [loss[0], loss[1], speed, loss[2]]
    assert await metrics.training("uid-3", T0, T0 + 2) == []


async def test_an_invalid_span_is_refused(metrics: EmbeddedMetrics) -> None:
    with pytest.raises(InvalidRequest, match="at most 11000"):
        await metrics.series(POWER, [A], T0, T0 + 20_000, 1)


async def test_without_the_store_the_last_readings_stay_and_the_past_is_unavailable(
    store_settings: StoreSettings, clock: Clock
) -> None:
    async with open_store(store_settings) as store:
        metrics = EmbeddedMetrics("here", store.readings, store.training, MetricsSettings(), clock)
        await metrics.record(refresh(T0, {A: 1.0}))
    clock.now = T0 + 60
    with pytest.raises(StoreUnavailable):
        await metrics.record(refresh(T0 + 60, {A: 2.0}))
    clock.now = T0 + 120
    seen = await metrics.latest()
    assert seen.value(0, POWER) == 2.0
    assert "store is closed" in seen.errors["source"]
    assert not metrics.health().healthy
    with pytest.raises(MetricsUnavailable):
        await metrics.series(POWER, [A], T0, T0, 1)
    with pytest.raises(MetricsUnavailable):
        await metrics.training("uid", T0, T0)


@given(
    st.lists(st.tuples(st.integers(0, 2000), st.sampled_from([1.0, 2.0, math.nan])), max_size=12),
    st.integers(0, 1500),
    st.integers(1, 400),
)
@settings(max_examples=200, deadline=None)
def test_steps_equal_a_slow_search_through_all_samples(
    samples: list[tuple[int, float]], start: int, step: int
) -> None:
    stored = dict(sorted(samples))
    grid = np.arange(start, start + 6 * step, step, dtype=np.float64)
    series = GpuSeries(A, np.array(list(stored), float), np.array(list(stored.values())))
    expected = []
    for moment in grid:
        past = [time for time in stored if moment - LOOKBACK < time <= moment]
        expected.append(stored[max(past)] if past else math.nan)
    if stored:
        np.testing.assert_array_equal(at_steps(series, grid), expected)


async def test_a_clock_that_is_set_back_stops_nothing(metrics: EmbeddedMetrics, clock: Clock) -> None:
    await metrics.record(refresh(T0, {A: 100.0}))
    clock.now = T0 - 3600
    await metrics.record(refresh(clock.now, {A: 200.0}))
    latest = await metrics.latest()
    assert (latest.taken_at, latest.values[POWER].tolist()) == (T0 - 3600, [200.0])
    await metrics.record(refresh(clock.now - 60, {A: 300.0}))  # late, and not the newest
    assert (await metrics.latest()).values[POWER].tolist() == [200.0]


async def test_a_fleet_that_changes_with_every_refresh_is_read_and_compacted(
    metrics: EmbeddedMetrics, clock: Clock, store: Store
) -> None:
    for turn in range(80):
        watts = {A: 100.0 + turn, GpuRef(f"node-{turn}", 0): 50.0}
        await store.readings.append("here", refresh(T0 + 10 * turn, watts))
    clock.now = T0 + 900.0
    span = (POWER, [A], T0, T0 + 790, 10)
    before = points(await metrics.series(*span))
    assert before[A] == {T0 + 10 * turn: 100.0 + turn for turn in range(80)}
    await metrics.compact()
    assert await store.database.fetchval("SELECT count(*) FROM reading_tick") == 0
    assert points(await metrics.series(*span)) == before


async def test_a_clock_that_was_ahead_does_not_freeze_the_latest_readings(
    metrics: EmbeddedMetrics, clock: Clock, store: Store
) -> None:
    replica = EmbeddedMetrics("here", store.readings, store.training, MetricsSettings(), clock)
    process = GpuProcess(A, 42, "python", "ada", "train.py", 1e9, None, 3.5, T0)
    await record(metrics, clock, refresh(T0 + 3600, {A: 100.0}))
    await metrics.record_processes(Processes((process,)))
    assert (await replica.latest()).values[POWER].tolist() == [100.0]
    for now in (T0, T0 + 20):
        await record(metrics, clock, refresh(now, {A: 200.0}))
        await metrics.record_processes(Processes())
    clock.now = T0 + 60
    for server in (metrics, replica):
        assert (await server.latest()).values[POWER].tolist() == [200.0]
        assert (await server.processes()).rows == ()


async def test_the_extremes_of_a_step_are_those_of_its_readings(
    metrics: EmbeddedMetrics, clock: Clock
) -> None:
    for number, watts in enumerate([50.0, 10.0, 90.0, math.nan, 70.0, 20.0]):
        await record(metrics, clock, refresh(T0 + 100 * number, {A: watts}))
    (block,) = [each async for each in metrics.extremes(POWER, T0, T0 + 900, 300.0)]
    assert block.times.tolist() == [T0, T0 + 300, T0 + 600]
    np.testing.assert_array_equal(block.lowest, [[10.0, 20.0, math.nan]])
    np.testing.assert_array_equal(block.highest, [[90.0, 70.0, math.nan]])
