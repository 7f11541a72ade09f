"""Readings of one hour, and the pods they are attributed to.

A sample covers the time until the next one. It is attributed to the pod that held the GPU when it
was taken. A sample of a GPU without a known holder is attributed to no pod.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gpufleet.accounting.hour_allocations import HourAllocation, as_columns
from gpufleet.model.hours import PERCENT
from gpufleet.model.reading import GpuRef

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

MIB = 1024 * 1024
MAX_WATTS = 2500
"""A higher reading is an error of the sensor; it could overflow the product with an hour and a GPU."""
MAX_SAMPLES = 9_000_000
"""More samples per hour could overflow the sums: 9e6 x 100% x one GPU just fits into 64 bits."""


@dataclass(frozen=True)
class Samples:
    """Readings `[gpu, time]` on a grid of times `step` apart; NaN where there is none."""

    gpus: Mapping[tuple[str, int], int]
    """Row by node and index."""
    times: Ints
    """Unix milliseconds, ascending."""
    step: int
    """Milliseconds that a sample covers."""
    utilization: Floats
    """Percent."""
    memory_used: Floats
    """Bytes."""
    memory_total: Floats
    """Bytes."""
    lowest: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    """The lowest utilization that was read until the next time; empty if only the samples are known."""
    highest: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    """The highest."""
    power: Floats = field(default_factory=lambda: np.zeros((0, 0)))
    """Watts; empty if none is known."""

    @property
    def any(self) -> bool:
        """Whether there is any reading of utilization."""
        return bool(np.isfinite(self.utilization).any())


def no_samples() -> Samples:
    """Return the samples of an hour without readings."""
    nothing = np.zeros((0, 0))
    return Samples({}, np.zeros(0, dtype=np.int64), 1, nothing, nothing, nothing)


def rows_of(gpus: Sequence[GpuRef]) -> dict[tuple[str, int], int]:
    """Return the row of each whole GPU by node and index."""
    return {(gpu.node, gpu.index): row for row, gpu in enumerate(gpus) if not gpu.partition}


@dataclass(frozen=True)
class AttributedSamples:
    """Columns of equal length with one entry per sample and allocation period."""

    period: Ints
    column: Ints
    ppm: Ints
    covered: Ints
    """Milliseconds of the sample's time within the allocation."""
    utilization: Ints
    """In ten-thousandths of a percent; every entry has one."""
    memory_used: Ints
    """MiB; -1 if there is no reading."""
    memory_total: Ints
    lowest: Ints
    """The lowest utilization until the next sample or the end of the allocation, as far as it is known."""
    highest: Ints
    energy: Ints
    """Millijoules of each reading of power, whether or not there is one of utilization."""
    energy_period: Ints
    """The allocation period of each entry of `energy`."""


def attribute(
    samples: Samples, allocations: Sequence[HourAllocation], nodes: Sequence[str]
) -> AttributedSamples:
    """Attribute each sample to the allocations that contain it. `nodes` has the node of each period."""
    rows, kept = [], []
    for each in allocations:
        row = samples.gpus.get((nodes[each.period], each.gpu)) if each.gpu >= 0 else None
        if row is not None:
            rows.append(row)
            kept.append(each)
    columns = as_columns(kept)
    start, end = columns[:, 3], columns[:, 4]
    low = np.searchsorted(samples.times, start, side="left")
    counts = np.searchsorted(samples.times, end, side="left") - low
    if int(counts.sum()) > MAX_SAMPLES:
        raise ValueError(f"{counts.sum():,} samples in one hour, at most {MAX_SAMPLES:,}; take a longer step")
    entry = np.repeat(np.arange(len(kept)), counts)
    column = np.arange(len(entry)) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(low, counts)
    row_of = np.array(rows, dtype=np.int64)[entry] if len(entry) else np.zeros(0, dtype=np.int64)
    energy_entry, energy = _energy(samples, columns, entry, row_of, column)
    values = samples.utilization[row_of, column] if len(entry) else np.zeros(0)
    present = np.isfinite(values)
    entry, column, row_of, values = entry[present], column[present], row_of[present], values[present]
    times = samples.times[column] if len(entry) else np.zeros(0, dtype=np.int64)
    covered = np.minimum(end[entry], times + samples.step) - times
    # Readings of a step with several holders can't be attributed to one of them.
    whole = covered == samples.step
    return AttributedSamples(
        period=columns[entry, 0],
        column=column.astype(np.int64),
        ppm=columns[entry, 2],
        covered=covered,
        utilization=_utilization(values),
        memory_used=_mebibytes(samples.memory_used, row_of, column),
        memory_total=_mebibytes(samples.memory_total, row_of, column),
        lowest=_utilization(np.fmin(values, _readings(samples.lowest, row_of, column, whole))),
        highest=_utilization(np.fmax(values, _readings(samples.highest, row_of, column, whole))),
        energy=energy,
        energy_period=columns[energy_entry, 0],
    )


def _energy(samples: Samples, columns: Ints, entry: Ints, rows: Ints, column: Ints) -> tuple[Ints, Ints]:
    """Return the entries with a reading of power, and the energy of each in millijoules.

    A reading applies until the next one or the end of the allocation. It is rounded once, so that the sums of
    any groups add up exactly.
    """
    if not len(entry) or not samples.power.size:
        nothing = np.zeros(0, dtype=np.int64)
        return nothing, nothing
    watts = samples.power[rows, column]
    known = np.isfinite(watts) & (watts >= 0) & (watts <= MAX_WATTS)
    entry, times = entry[known], samples.times[column[known]]
    covered = np.minimum(columns[entry, 4], times + samples.step) - times
    milliwatts = np.rint(watts[known] * 1000).astype(np.int64)
    picojoules = milliwatts * covered * columns[entry, 2]
    return entry, (picojoules + 500_000_000) // 1_000_000_000


def _utilization(values: Floats) -> Ints:
    return np.rint(values * PERCENT).astype(np.int64)


def _readings(matrix: Floats, rows: Ints, columns: Ints, known: NDArray[np.bool_]) -> Floats:
    if not len(rows) or not matrix.size:
        return np.full(len(rows), np.nan)
    return np.where(known, matrix[rows, columns], np.nan)


def _mebibytes(matrix: Floats, rows: Ints, columns: Ints) -> Ints:
    if not len(rows) or not matrix.size:
        return np.full(len(rows), -1, dtype=np.int64)
    values = matrix[rows, columns]
    return np.where(np.isfinite(values), np.rint(np.nan_to_num(values) / MIB), -1).astype(np.int64)
