"""Write the history of a simulated fleet to a store, so that a demo starts with data.

Recent readings are dense, older ones sparser, but never sparser than the validity of a sample. Large
fleets get a shorter history, so that the number of values, and the time to start, stays about the same.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator

import numpy as np

from gpufleet.accounting.hour_readings import SAMPLED, pack_readings
from gpufleet.accounting.rollup import RollupPlan
from gpufleet.accounting.snapshot import snapshot
from gpufleet.demo.objects.allocation_periods import allocation_periods
from gpufleet.demo.simulation.hardware import DAY
from gpufleet.demo.simulation.simulation import TICK, Simulation
from gpufleet.demo.simulation.training import training_points
from gpufleet.model.reading import Column, Quantity, Readings
from gpufleet.store.readings.chunks import ReadingGrid
from gpufleet.store.readings.readings import CHUNK_SECONDS, ReadingStore
from gpufleet.store.snapshots import SnapshotStore
from gpufleet.store.training import TrainingStore

REQUIRED_QUANTITIES = frozenset(SAMPLED)
"""Quantities that accounting needs."""

CHART_QUANTITIES = (
    frozenset({Quantity.MEMORY_UTILIZATION, Quantity.POWER, Quantity.TEMPERATURE}) - REQUIRED_QUANTITIES
)
"""Additional quantities in the charts of workloads."""

RECENT_SECONDS = 6 * 3600.0
RECENT_STEP, OLDER_STEP = 60.0, 225.0
"""The demo starts when the recent readings are written; the others follow in the background."""
TRAINING_STEP = 600.0
_CHUNKS_PER_WRITE = 24
"""Chunks per transaction."""

Progress = Callable[[str, int, int], None]


def history_seconds(days: float, nodes: int) -> float:
    """Return the seconds of history for a fleet of this size."""
    return max(2 * 3600.0, days * DAY * min(1.0, 32 / nodes))


async def write_readings(
    simulation: Simulation,
    store: ReadingStore,
    cluster: str,
    span: tuple[float, float],
    requested: frozenset[Quantity],
    progress: Progress = lambda what, done, of: None,
    now: float | None = None,
) -> None:
    """Write the readings of some quantities in a span of time; `now` is its end unless given."""
    now = span[1] if now is None else now
    chunks = list(_chunks(*span))
    for first in range(0, len(chunks), _CHUNKS_PER_WRITE):
        batch = chunks[first : first + _CHUNKS_PER_WRITE]
        past = await asyncio.to_thread(_read, simulation, batch, now, requested)
        await store.append_past(cluster, past)
        progress("hours of readings", (first + len(batch)) // 4, len(chunks) // 4)


async def write_training(
    simulation: Simulation, store: TrainingStore, cluster: str, start: float, end: float
) -> None:
    """Write the training metrics between `start` and `end`, most recent runs first."""
    runs = [run for run in simulation.runs(start, end) if run.trains]
    for run in sorted(runs, key=lambda run: -run.ended):
        points = list(training_points(run, start, end, TRAINING_STEP))
        if points:
            await store.append(cluster, run.uid, points)


def recent_start(start: float, end: float) -> float:
    """Return the begin of the first hour between `start` and `end` with only recent readings, or `start`."""
    return max(start, (end - RECENT_SECONDS) // 3600 * 3600)


def snapshot_times(start: float, end: float, step: int) -> list[int]:
    """Return the times of the snapshots between `start` and `end`, newest first: older ones once an hour."""
    first, last = -int(-start // step) * step, int(end // step) * step
    return [at for at in range(last, first - 1, -step) if at >= end - RECENT_SECONDS or at % 3600 == 0]


async def write_snapshots(
    simulation: Simulation, store: SnapshotStore, cluster: str, times: Iterable[int], plan: RollupPlan
) -> None:
    """Write the snapshots that a server would have taken at these times."""
    for at in times:
        readings = await asyncio.to_thread(_sampled_readings, simulation, at)
        periods = list(allocation_periods(simulation, at, at + 1))
        taken = snapshot(at, periods, list(simulation.capacities(at, at + 1)), readings, plan)
        await store.save(cluster, at, *taken, pack_readings(readings, at))


def _sampled_readings(simulation: Simulation, at: float) -> Readings:
    measured = simulation.measure(np.array([float(at)]), REQUIRED_QUANTITIES)
    values = {quantity: grid[:, 0] for quantity, grid in measured.items()}
    times = {quantity: np.where(np.isnan(column), np.nan, at) for quantity, column in values.items()}
    return Readings(at, simulation.gpus, values, times)


def _chunks(start: float, end: float) -> Iterator[tuple[float, float]]:
    first = start
    while first < end:
        after = min(first - first % CHUNK_SECONDS + CHUNK_SECONDS, end)
        yield first, after
        first = after


def _read(
    simulation: Simulation, chunks: list[tuple[float, float]], end: float, requested: frozenset[Quantity]
) -> list[tuple[Quantity, ReadingGrid]]:
    gpus = tuple(gpu.ref for gpu in simulation.gpus)
    pieces = [_moments(first, after, end) for first, after in chunks]
    measure = simulation.measure(np.concatenate(pieces), requested)
    found = []
    for quantity, values in measure.items():
        at = 0
        for moments in pieces:
            piece = values[:, at : at + len(moments)]
            at += len(moments)
            times = np.where(np.isnan(piece), np.nan, moments[None, :])
            found.append((quantity, ReadingGrid(gpus, moments, times, piece)))
    return found


def _moments(first: float, after: float, end: float) -> Column:
    step = RECENT_STEP if first >= end - RECENT_SECONDS else OLDER_STEP
    return np.arange(first - first % TICK, after, step)
