"""The stored forms of readings: ticks when they arrive, chunks once they are some minutes old.

A tick is one quantity of all GPUs at one moment, which is fast to write. A chunk is one quantity of one
node over a quarter of an hour, which is fast to read and small. Both hold values with their sample
times. To turn ticks into chunks, stack them into a matrix of GPUs by moments and split it by node.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import msgspec
import numpy as np

from gpufleet.model.reading import Column, GpuRef, GpuSeries
from gpufleet.store.readings.column_codec import Matrix, pack, unpack


class _Packed(msgspec.Struct, array_like=True, frozen=True):
    gpus: list[tuple[int, str]]
    """Index and partition of each row; empty in a tick, which refers to a layout."""
    size: tuple[int, int]
    moments: bytes
    times: bytes
    values: bytes


@dataclass(frozen=True)
class ReadingGrid:
    """`values[g, m]` of `gpus[g]`, sampled at `times[g, m]`, collected at `moments[m]`; NaN: missing."""

    gpus: tuple[GpuRef, ...]
    moments: Column
    times: Matrix
    values: Matrix


def pack_tick(taken_at: float, times: Column, values: Column) -> bytes:
    """Encode one quantity of all GPUs at one moment."""
    moments = pack(np.array([[taken_at]]))
    return msgspec.msgpack.encode(
        _Packed([], (1, len(values)), moments, pack(times[None, :]), pack(values[None, :]))
    )


def unpack_tick(gpus: tuple[GpuRef, ...], packed: bytes) -> ReadingGrid:
    """Decode a tick into a grid of one moment."""
    raw = msgspec.msgpack.decode(packed, type=_Packed)
    return ReadingGrid(
        gpus,
        unpack(raw.moments, 1, 1)[0],
        unpack(raw.times, *raw.size).T,
        unpack(raw.values, *raw.size).T,
    )


Packed = dict[tuple[tuple[int, ...], bytes], bytes]
"""Encoded matrices by shape and content."""


def pack_chunks(grid: ReadingGrid, packed: Packed | None = None) -> Iterator[tuple[str, bytes]]:
    """Split a grid with sorted GPUs by node and encode each part; skip nodes without values.

    Most nodes have the same sample times, and some quantities rarely change. Equal matrices are encoded once;
    pass `packed` to share them between grids.
    """
    known: Packed = {} if packed is None else packed

    def pack_once(matrix: Matrix) -> bytes:
        key = (matrix.shape, matrix.tobytes())
        if key not in known:
            known[key] = pack(matrix)
        return known[key]

    moments = pack_once(grid.moments[None, :])
    first = 0
    for node, members in groupby(grid.gpus, key=lambda gpu: gpu.node):
        gpus = [(gpu.index, gpu.partition) for gpu in members]
        rows = slice(first, first + len(gpus))
        first += len(gpus)
        if not np.isnan(grid.values[rows]).all():
            size = (len(gpus), len(grid.moments))
            chunk = _Packed(gpus, size, moments, pack_once(grid.times[rows]), pack_once(grid.values[rows]))
            yield node, msgspec.msgpack.encode(chunk)


def unpack_chunk(node: str, packed: bytes) -> ReadingGrid:
    """Decode a chunk into a grid of its node's GPUs."""
    raw = msgspec.msgpack.decode(packed, type=_Packed)
    return ReadingGrid(
        tuple(GpuRef(node, index, partition) for index, partition in raw.gpus),
        unpack(raw.moments, 1, raw.size[1])[0],
        unpack(raw.times, *raw.size),
        unpack(raw.values, *raw.size),
    )


def stack(ticks: Sequence[ReadingGrid]) -> ReadingGrid:
    """Join ticks, sorted by time, into one grid over all GPUs that occur in any of them."""
    gpus = tuple(sorted({gpu for tick_gpus in {tick.gpus for tick in ticks} for gpu in tick_gpus}))
    rows = {gpu: row for row, gpu in enumerate(gpus)}
    rows_of = {layout: np.array([rows[gpu] for gpu in layout], int) for layout in {t.gpus for t in ticks}}
    times = np.full((len(gpus), len(ticks)), np.nan)
    values = np.full((len(gpus), len(ticks)), np.nan)
    for moment, tick in enumerate(ticks):
        times[rows_of[tick.gpus], moment] = tick.times[:, 0]
        values[rows_of[tick.gpus], moment] = tick.values[:, 0]
    return ReadingGrid(gpus, np.array([tick.moments[0] for tick in ticks]), times, values)


def as_series(
    grids: Sequence[ReadingGrid], selected: Collection[GpuRef] | None, start: float, end: float
) -> list[GpuSeries]:
    """Return the samples of each GPU from `start` to `end`, sorted by time and without duplicates.

    NaN in `values` means that the GPU was read at that time and had no value.
    """
    pieces: dict[GpuRef, list[tuple[Column, Column]]] = {}
    for grid in grids:
        # a missing sample gets the time of the collection
        times = np.where(np.isnan(grid.values) | np.isnan(grid.times), grid.moments, grid.times)
        for row, gpu in enumerate(grid.gpus):
            if selected is None or gpu in selected:
                pieces.setdefault(gpu, []).append((times[row], grid.values[row]))
    return [
        series
        for gpu, parts in sorted(pieces.items())
        if len((series := _join(gpu, parts, start, end)).times)
    ]


def _join(gpu: GpuRef, parts: Sequence[tuple[Column, Column]], start: float, end: float) -> GpuSeries:
    times = np.concatenate([part[0] for part in parts])
    values = np.concatenate([part[1] for part in parts])
    # at equal times a value takes precedence over NaN
    order = np.lexsort((np.isnan(values), times))
    times, values = times[order], values[order]
    kept = (times >= start) & (times <= end)
    kept[1:] &= times[1:] != times[:-1]
    return GpuSeries(gpu, times[kept], values[kept])
