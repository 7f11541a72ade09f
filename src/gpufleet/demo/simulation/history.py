"""Write the past of a simulated fleet into a store, so that a demonstration begins with one.

Readings of the last hours are close together, older ones farther apart, but never farther than a
sample stands for. A large fleet gets a shorter past, since what fits the time for starting is about
the same number of values.
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import Protocol

import numpy as np

from gpufleet.demo.simulation.hardware import DAY
from gpufleet.demo.simulation.simulation import TICK, Simulation
from gpufleet.demo.simulation.training import training_points
from gpufleet.model.reading import Column, Quantity, TrainingPoint
from gpufleet.store.chunks import ReadingGrid
from gpufleet.store.readings import CHUNK_SECONDS

NEEDED = frozenset({Quantity.UTILIZATION})
"""What accounting asks for; a demonstration does not begin before it is there."""

MEMORY = frozenset({Quantity.MEMORY_USED, Quantity.MEMORY_TOTAL})
MEMORY_REACH = 2 * DAY
"""What it asks for as well, of the last days alone: all of it would double the time for starting."""

CHARTED = frozenset({Quantity.MEMORY_UTILIZATION, Quantity.POWER})
"""What charts of single workloads show as well."""

RECENT = 6 * 3600.0
RECENT_STEP, OLDER_STEP = 60.0, 225.0
TRAINING_STEP = 600.0
_AT_ONCE = 24
"""Quarters of an hour that are written in one go."""

Progress = Callable[[str, int, int], None]


class ReadingsOfThePast(Protocol):
    """Takes readings by the quarter of an hour; the store's part `readings` does."""

    async def append_past(self, cluster: str, past: list[tuple[Quantity, ReadingGrid]]) -> None:
        """Store stretches of at most a quarter of an hour each."""


class TrainingStore(Protocol):
    """Takes the numbers of training jobs; the store's part `training` does."""

    async def append(self, cluster: str, workload_uid: str, points: list[TrainingPoint]) -> None:
        """Store points."""


def reach(days: float, nodes: int) -> float:
    """How many seconds of past a fleet of that size gets."""
    return max(2 * 3600.0, days * DAY * min(1.0, 32 / nodes))


async def write_readings(
    simulation: Simulation,
    store: ReadingsOfThePast,
    cluster: str,
    span: tuple[float, float],
    wanted: frozenset[Quantity],
    progress: Progress = lambda what, done, of: None,
) -> None:
    """Write what was read in a span of time, of the quantities wanted."""
    quarters = list(_quarters(*span))
    for first in range(0, len(quarters), _AT_ONCE):
        some = quarters[first : first + _AT_ONCE]
        past = await asyncio.to_thread(_read, simulation, some, span[1], wanted)
        await store.append_past(cluster, past)
        progress("hours of readings", (first + len(some)) // 4, len(quarters) // 4)


async def write_training(
    simulation: Simulation, store: TrainingStore, cluster: str, start: float, end: float
) -> None:
    """Write what the training runs reported from `start` to `end`, those of today first."""
    runs = [run for run in simulation.runs(start, end) if run.trains]
    for run in sorted(runs, key=lambda run: -run.ended):
        points = list(training_points(run, start, end, TRAINING_STEP))
        if points:
            await store.append(cluster, run.uid, points)


def _quarters(start: float, end: float) -> Iterator[tuple[float, float]]:
    first = start
    while first < end:
        after = min(first - first % CHUNK_SECONDS + CHUNK_SECONDS, end)
        yield first, after
        first = after


def _read(
    simulation: Simulation, quarters: list[tuple[float, float]], end: float, wanted: frozenset[Quantity]
) -> list[tuple[Quantity, ReadingGrid]]:
    gpus = tuple(gpu.ref for gpu in simulation.gpus)
    pieces = [_moments(first, after, end) for first, after in quarters]
    measured = simulation.measured(np.concatenate(pieces), wanted)
    found = []
    for quantity, values in measured.items():
        at = 0
        for moments in pieces:
            mine = values[:, at : at + len(moments)]
            at += len(moments)
            times = np.where(np.isnan(mine), np.nan, moments[None, :])
            found.append((quantity, ReadingGrid(gpus, moments, times, mine)))
    return found


def _moments(first: float, after: float, end: float) -> Column:
    step = RECENT_STEP if first >= end - RECENT else OLDER_STEP
    return np.arange(first - first % TICK, after, step)
