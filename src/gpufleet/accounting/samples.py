"""Readings of one hour, and which of them belong to which holder.

A sample stands for the time until the next one. It belongs to whoever held the GPU at the moment
it was taken; a sample of a GPU that nobody held, or of which nobody knows who held it, belongs
to no one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpufleet.accounting.allocation_periods import HourAllocation, columns_of
from gpufleet.model.hours import PERCENT
from gpufleet.model.reading import GpuRef

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

MIB = 1024 * 1024
MOST_SAMPLES = 9_000_000
"""More samples of an hour could overflow the sums: 9e6 x 100% x one GPU is just within 64 bits."""


@dataclass(frozen=True)
class Samples:
    """Readings `[gpu, time]` on a grid of times `step` apart; NaN where there is none."""

    gpus: Mapping[tuple[str, int], int]
    """Row by node and index."""
    times: Ints
    """Unix milliseconds, ascending."""
    step: int
    """Milliseconds that a sample stands for."""
    utilization: Floats
    """Percent."""
    memory_used: Floats
    """Bytes."""
    memory_total: Floats
    """Bytes."""

    @property
    def any(self) -> bool:
        """Whether there is a single reading of utilization."""
        return bool(np.isfinite(self.utilization).any())


def no_samples() -> Samples:
    """An hour in which nothing was measured."""
    nothing = np.zeros((0, 0))
    return Samples({}, np.zeros(0, dtype=np.int64), 1, nothing, nothing, nothing)


def rows_of(gpus: Sequence[GpuRef]) -> dict[tuple[str, int], int]:
    """Row by node and index, for whole GPUs."""
    return {(gpu.node, gpu.index): row for row, gpu in enumerate(gpus) if not gpu.partition}


@dataclass(frozen=True)
class SampledHolder:
    """Samples given to their holders, one entry a sample and holder, all of one length."""

    holder: Ints
    column: Ints
    ppm: Ints
    covered: Ints
    """Milliseconds of the sample's time that the stint covers."""
    utilization: Ints
    """In ten-thousandths of a percent; every entry has one."""
    memory_used: Ints
    """MiB, or -1 for none."""
    memory_total: Ints


def take(samples: Samples, stints: Sequence[HourAllocation], nodes: Sequence[str]) -> SampledHolder:
    """Give each sample to the stints that it falls into. `nodes` is each holder's node."""
    rows, kept = [], []
    for stint in stints:
        row = samples.gpus.get((nodes[stint.holder], stint.gpu)) if stint.gpu >= 0 else None
        if row is not None:
            rows.append(row)
            kept.append(stint)
    columns = columns_of(kept)
    start, end = columns[:, 3], columns[:, 4]
    low = np.searchsorted(samples.times, start, side="left")
    counts = np.searchsorted(samples.times, end, side="left") - low
    if int(counts.sum()) > MOST_SAMPLES:
        raise ValueError(
            f"{counts.sum():,} samples in one hour, at most {MOST_SAMPLES:,}; take a longer step"
        )
    entry = np.repeat(np.arange(len(kept)), counts)
    column = np.arange(len(entry)) - np.repeat(np.cumsum(counts) - counts, counts) + np.repeat(low, counts)
    row_of = np.array(rows, dtype=np.int64)[entry] if len(entry) else np.zeros(0, dtype=np.int64)
    values = samples.utilization[row_of, column] if len(entry) else np.zeros(0)
    there = np.isfinite(values)
    entry, column, row_of, values = entry[there], column[there], row_of[there], values[there]
    times = samples.times[column] if len(entry) else np.zeros(0, dtype=np.int64)
    return SampledHolder(
        holder=columns[entry, 0],
        column=column.astype(np.int64),
        ppm=columns[entry, 2],
        covered=np.minimum(end[entry], times + samples.step) - times,
        utilization=np.rint(values * PERCENT).astype(np.int64),
        memory_used=_mebibytes(samples.memory_used, row_of, column),
        memory_total=_mebibytes(samples.memory_total, row_of, column),
    )


def _mebibytes(matrix: Floats, rows: Ints, columns: Ints) -> Ints:
    if not len(rows) or not matrix.size:
        return np.full(len(rows), -1, dtype=np.int64)
    values = matrix[rows, columns]
    return np.where(np.isfinite(values), np.rint(np.nan_to_num(values) / MIB), -1).astype(np.int64)
