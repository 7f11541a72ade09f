"""The history of a simulated fleet, written to a real store and read through the embedded metrics."""

from pathlib import Path

import numpy as np
import pytest

from gpufleet.accounting.rollup import RollupPlan
from gpufleet.cli.demo import demo_settings
from gpufleet.demo.demo_fleet import DemoFleet
from gpufleet.demo.history import (
    CHART_QUANTITIES,
    RECENT_SECONDS,
    REQUIRED_QUANTITIES,
    history_seconds,
    snapshot_times,
    write_readings,
    write_snapshots,
    write_training,
)
from gpufleet.demo.objects.allocation_periods import allocation_periods
from gpufleet.demo.simulation.hardware import BUILT, DAY
from gpufleet.demo.simulation.simulation import Simulation
from gpufleet.exporters.embedded import EmbeddedMetrics
from gpufleet.model.reading import GpuRef, Quantity
from gpufleet.runtime.settings import MetricsSettings, StoreSettings, load_settings
from gpufleet.store import Store

NOW = BUILT + 300 * DAY + 12_345.0
FLEET = Simulation(seed=1, nodes=16, gpus=4)


def source(store: Store) -> EmbeddedMetrics:
    return EmbeddedMetrics("demo", store.readings, store.training, MetricsSettings(), clock=lambda: NOW)


async def test_stored_readings_equal_the_simulation(store: Store) -> None:
    span = (NOW - 9 * 3600, NOW)
    await write_readings(FLEET, store.readings, "demo", span, REQUIRED_QUANTITIES | CHART_QUANTITIES)
    await write_readings(
        FLEET, store.readings, "demo", (NOW - 3600, NOW), REQUIRED_QUANTITIES | CHART_QUANTITIES
    )
    refs = [gpu.ref for gpu in FLEET.gpus]
    for quantity in REQUIRED_QUANTITIES | CHART_QUANTITIES:
        found = await source(store).series(quantity, refs, NOW - 3600, NOW - 60, 60.0)
        assert found
        kept = await store.readings.samples("demo", quantity, *span)
        for series in kept:
            row = refs.index(series.gpu)
            there = ~np.isnan(series.values)
            if not there.any():
                continue
            truth = FLEET.measure(series.times[there], frozenset({quantity}))[quantity][row]
            np.testing.assert_allclose(series.values[there], truth)


async def test_there_is_no_gap_longer_than_the_validity_of_a_sample(store: Store) -> None:
    await write_readings(
        FLEET, store.readings, "demo", (NOW - RECENT_SECONDS - 7200, NOW), REQUIRED_QUANTITIES
    )
    name = next(
        m.name for m in FLEET.hardware.machines if m.number not in (FLEET.hardware.faulty.broken or ())
    )
    start, end = NOW - RECENT_SECONDS - 7200 + 300, NOW - 60
    (series,) = await source(store).series(Quantity.UTILIZATION, [GpuRef(name, 0)], start, end, 60.0)
    assert len(series.times) == int((end - start) / 60) + 1


async def test_memory_is_known_in_all_hours_that_have_utilization(store: Store) -> None:
    span = (NOW - 3 * DAY, NOW - 3 * DAY + 7200)
    await write_readings(FLEET, store.readings, "demo", span, REQUIRED_QUANTITIES)
    for quantity in (Quantity.UTILIZATION, Quantity.MEMORY_USED, Quantity.MEMORY_TOTAL):
        assert await store.readings.samples("demo", quantity, *span)


async def test_hours_are_accounted_for_only_once_their_readings_are_written(
    store: Store, tmp_path: Path
) -> None:
    size = {"demo.nodes": 2, "demo.gpus": 2, "demo.days": 0.5, "store.data": str(tmp_path)}
    settings = demo_settings(load_settings(size, {}))
    settings[StoreSettings].data.mkdir(parents=True)
    fleet = DemoFleet(settings, "demo", lambda: NOW)

    async def first_reading(quantity: Quantity) -> float:
        found = await store.readings.samples("demo", quantity, 0.0, NOW)
        return float(min(series.times[~np.isnan(series.values)][0] for series in found))

    await fleet.write_history(store, lambda what, done, of: None)
    begins = (NOW - RECENT_SECONDS) // 3600 * 3600
    span = await store.accounted.span("demo")
    assert span is not None
    assert span.since == begins
    for quantity in REQUIRED_QUANTITIES:
        assert await first_reading(quantity) == begins
    await fleet._write_remaining_history(store, fleet._missing_history())
    span = await store.accounted.span("demo")
    assert span is not None
    assert span.since == pytest.approx(NOW - DAY / 2, abs=15)
    for quantity in REQUIRED_QUANTITIES:
        assert await first_reading(quantity) <= span.since + 15


async def test_past_snapshots_have_the_allocations_of_their_time(store: Store) -> None:
    times = snapshot_times(NOW - DAY, NOW, 300)
    assert times[0] == NOW // 300 * 300
    assert {at % 3600 for at in times if at < NOW - RECENT_SECONDS} == {0}
    assert NOW - DAY <= times[-1] < NOW - DAY + 3600
    chosen = [times[0], times[-1]]
    await store.accounted.open("demo", times[-1])
    await write_snapshots(FLEET, store.snapshots, "demo", chosen, RollupPlan())
    for at in chosen:
        (taken,) = await store.snapshots.between("demo", at, at, 10, 0, details=True)
        held = sum(h.gpus * h.share for h in allocation_periods(FLEET, at, at + 1))
        assert taken.allocated_gpu_count == pytest.approx(held, abs=1e-4)
        assert taken.total_gpu_capacity == 64
        assert taken.utilization is not None


async def test_training_metrics_can_be_read_back(store: Store) -> None:
    await write_training(FLEET, store.training, "demo", NOW - DAY, NOW)
    day = [run for run in FLEET.runs(NOW - DAY, NOW) if run.trains]
    run = next(run for run in day if min(run.ended, NOW) - max(run.started, NOW - DAY) > 1200)
    points = await source(store).training(run.uid, NOW - DAY, NOW)
    assert {"loss", "TFLOPS", "mfu", "tokens_per_second"} <= {point.metric for point in points}
    assert all(run.started < point.time <= min(run.ended, NOW) for point in points)


@pytest.mark.parametrize(("nodes", "days"), [(1, 7.0), (32, 7.0), (64, 3.5), (2000, 0.112)])
def test_larger_fleets_have_a_shorter_history(nodes: int, days: float) -> None:
    assert history_seconds(7, nodes) == pytest.approx(days * DAY)
