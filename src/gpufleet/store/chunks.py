"""Readings as they lie in the store: ticks as they come in, chunks once they are some minutes old.

A tick is one quantity of the whole fleet at one moment, good to write; a chunk is one
quantity of one node over a quarter of an hour, good to read and small. Both hold values with
the times at which they were sampled. Turning ticks into chunks is a matter of stacking them
into a matrix of GPUs by moments and cutting it by node.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import msgspec
import numpy as np

from gpufleet.model.reading import Column, GpuRef, GpuSeries
from gpufleet.store.column_codec import Matrix, pack, unpack


class _Packed(msgspec.Struct, array_like=True, frozen=True):
    gpus: list[tuple[int, str]]
    """Index and partition of each row; empty in a tick, whose layout says it."""
    size: tuple[int, int]
    moments: bytes
    times: bytes
    values: bytes


@dataclass(frozen=True)
class ReadingGrid:
    """`values[g, m]` of `gpus[g]`, sampled at `times[g, m]`, seen at `moments[m]`; NaN: not there."""

    gpus: tuple[GpuRef, ...]
    moments: Column
    times: Matrix
    values: Matrix


def pack_tick(taken_at: float, times: Column, values: Column) -> bytes:
    """The bytes of one quantity of all GPUs at one moment."""
    moments = pack(np.array([[taken_at]]))
    return msgspec.msgpack.encode(
        _Packed([], (1, len(values)), moments, pack(times[None, :]), pack(values[None, :]))
    )


def unpack_tick(gpus: tuple[GpuRef, ...], packed: bytes) -> ReadingGrid:
    """A tick as a grid of one moment."""
    raw = msgspec.msgpack.decode(packed, type=_Packed)
    return ReadingGrid(
        gpus,
        unpack(raw.moments, 1, 1)[0],
        unpack(raw.times, *raw.size).T,
        unpack(raw.values, *raw.size).T,
    )


def pack_chunks(grid: ReadingGrid) -> Iterator[tuple[str, bytes]]:
    """Cut a grid, whose GPUs are in order, by node; nodes without any value are left out."""
    moments = pack(grid.moments[None, :])
    same: dict[bytes, bytes] = {}
    first = 0
    for node, members in groupby(grid.gpus, key=lambda gpu: gpu.node):
        gpus = [(gpu.index, gpu.partition) for gpu in members]
        rows = slice(first, first + len(gpus))
        first += len(gpus)
        if not np.isnan(grid.values[rows]).all():
            size = (len(gpus), len(grid.moments))
            # Most nodes are read at the same times.
            times = grid.times[rows].tobytes()
            if times not in same:
                same[times] = pack(grid.times[rows])
            packed = _Packed(gpus, size, moments, same[times], pack(grid.values[rows]))
            yield node, msgspec.msgpack.encode(packed)


def unpack_chunk(node: str, packed: bytes) -> ReadingGrid:
    """A chunk as a grid of its node's GPUs."""
    raw = msgspec.msgpack.decode(packed, type=_Packed)
    return ReadingGrid(
        tuple(GpuRef(node, index, partition) for index, partition in raw.gpus),
        unpack(raw.moments, 1, raw.size[1])[0],
        unpack(raw.times, *raw.size),
        unpack(raw.values, *raw.size),
    )


def stack(ticks: Sequence[ReadingGrid]) -> ReadingGrid:
    """Ticks in order of time, side by side, over all GPUs that any of them has."""
    gpus = tuple(sorted({gpu for tick_gpus in {tick.gpus for tick in ticks} for gpu in tick_gpus}))
    rows = {gpu: row for row, gpu in enumerate(gpus)}
    places = {layout: np.array([rows[gpu] for gpu in layout], int) for layout in {t.gpus for t in ticks}}
    times = np.full((len(gpus), len(ticks)), np.nan)
    values = np.full((len(gpus), len(ticks)), np.nan)
    for moment, tick in enumerate(ticks):
        times[places[tick.gpus], moment] = tick.times[:, 0]
        values[places[tick.gpus], moment] = tick.values[:, 0]
    return ReadingGrid(gpus, np.array([tick.moments[0] for tick in ticks]), times, values)


def as_series(
    grids: Sequence[ReadingGrid], wanted: Collection[GpuRef] | None, start: float, end: float
) -> list[GpuSeries]:
    """Each GPU's samples from `start` to `end` in order of time, each once.

    NaN in `values` says that the GPU was looked at then and had no such value any more.
    """
    pieces: dict[GpuRef, list[tuple[Column, Column]]] = {}
    for grid in grids:
        # without a sample, the moment at which it was missed counts
        times = np.where(np.isnan(grid.values) | np.isnan(grid.times), grid.moments, grid.times)
        for row, gpu in enumerate(grid.gpus):
            if wanted is None or gpu in wanted:
                pieces.setdefault(gpu, []).append((times[row], grid.values[row]))
    return [
        series
        for gpu, parts in sorted(pieces.items())
        if len((series := _join(gpu, parts, start, end)).times)
    ]


def _join(gpu: GpuRef, parts: Sequence[tuple[Column, Column]], start: float, end: float) -> GpuSeries:
    times = np.concatenate([part[0] for part in parts])
    values = np.concatenate([part[1] for part in parts])
    # of two at one time the sample counts, not the remark that there is none
    order = np.lexsort((np.isnan(values), times))
    times, values = times[order], values[order]
    kept = (times >= start) & (times <= end)
    kept[1:] &= times[1:] != times[:-1]
    return GpuSeries(gpu, times[kept], values[kept])
