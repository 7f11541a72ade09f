"""Readings of the past: one quantity of some or all GPUs on a grid of times.

Every dialect is asked, in the order of precedence, and a later one fills what the earlier
leave open; the rules for units and for what follows from other quantities are those of the
latest readings. Everything is kept dense (GPUs × times) while it is put together.

Some servers keep ranges for the next who asks and, to find them again, move their times to
multiples of the step. One that was seen to do so is asked for such multiples, in expressions that
look ahead by the difference.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from gpufleet.exporters.columns import DERIVED, derive, holds_percent, to_quantity_unit
from gpufleet.exporters.known_exporters import Metric
from gpufleet.exporters.labels import identify
from gpufleet.exporters.prometheus.client import MAX_QUERY
from gpufleet.exporters.prometheus.exporter_reader import ExporterReader
from gpufleet.exporters.prometheus.expressions import range_queries
from gpufleet.exporters.prometheus.responses import MisalignedRange, Told, decode_range
from gpufleet.exporters.prometheus.snapshot import QuerySnapshot
from gpufleet.model.reading import GpuRef, Quantity

Grid = dict[GpuRef, NDArray[np.float64]]
"""Per GPU its values at the times of the grid, NaN where there is none."""


class TimeRange:
    """A grid of times over which quantities are asked."""

    def __init__(self, start: float, step: float, points: int, later: int = 0) -> None:
        """`later`: milliseconds by which the times that are meant come after those that are asked for."""
        self.start, self.step, self.points, self.later = start, step, points, later

    @property
    def aligned(self) -> "TimeRange":
        """The same, asked for at multiples of the step."""
        later = round(self.start * 1000) % max(1, round(self.step * 1000))
        return TimeRange(self.start - later / 1000, self.step, self.points, later)

    @property
    def end(self) -> float:
        """The last time of the grid."""
        return self.start + self.step * (self.points - 1)

    @property
    def times(self) -> NDArray[np.float64]:
        """The times of the grid."""
        return self.start + self.step * np.arange(self.points, dtype=np.float64)


async def read_span(
    moment: QuerySnapshot,
    readers: Sequence[ExporterReader],
    native: Sequence[Mapping[GpuRef, GpuRef]],
    quantity: Quantity,
    gpus: Collection[GpuRef] | None,
    span: TimeRange,
) -> Grid:
    """One quantity of `gpus` (None: all) over the span; GPUs without any value are left out."""
    aligned = moment.client.aligns
    try:
        return await _read(moment, readers, native, quantity, gpus, span.aligned if aligned else span)
    except MisalignedRange:
        if aligned:
            raise
    moment.client.aligns = True
    return await _read(moment, readers, native, quantity, gpus, span.aligned)


async def _read(
    moment: QuerySnapshot,
    readers: Sequence[ExporterReader],
    native: Sequence[Mapping[GpuRef, GpuRef]],
    quantity: Quantity,
    gpus: Collection[GpuRef] | None,
    span: TimeRange,
) -> Grid:
    grid = await _measured(moment, readers, native, quantity, gpus, span)
    missing = None if gpus is None else [gpu for gpu in gpus if gpu not in grid]
    if quantity in DERIVED and (missing or gpus is None or _gaps(grid)):
        sources = await asyncio.gather(
            *(_measured(moment, readers, native, source, gpus, span) for source in DERIVED[quantity])
        )
        _derive_gaps(grid, quantity, dict(zip(DERIVED[quantity], sources, strict=True)), span)
    return {gpu: row for gpu, row in grid.items() if not np.isnan(row).all()}


async def _measured(
    moment: QuerySnapshot,
    readers: Sequence[ExporterReader],
    native: Sequence[Mapping[GpuRef, GpuRef]],
    quantity: Quantity,
    gpus: Collection[GpuRef] | None,
    span: TimeRange,
) -> Grid:
    grid: Grid = {}
    for reader, names in zip(readers, native, strict=True):
        metrics = reader.dialect.quantities.get(quantity, ())
        asked = None if gpus is None else {names.get(gpu, gpu): gpu for gpu in gpus}
        back = {theirs: ours for ours, theirs in names.items()} if asked is None else asked
        nodes = None if asked is None else {ref.node for ref in asked}
        parts, labels = _questions(reader, metrics, nodes, span)
        for metric, queries in zip(metrics, parts, strict=True):
            bodies = await asyncio.gather(
                *(moment.client.range(query, span.start, span.end, span.step) for query in queries)
            )
            rows = await moment.work(
                _rows, reader, quantity, metric, bodies, labels, span, moment.shortfalls.append
            )
            for ref, row in rows.items():
                gpu = back.get(ref) if asked is not None else back.get(ref, ref)
                if gpu is not None:
                    grid[gpu] = row if gpu not in grid else np.where(np.isnan(grid[gpu]), row, grid[gpu])
    return grid


def _questions(
    reader: ExporterReader, metrics: Sequence[Metric], nodes: Collection[str] | None, span: TimeRange
) -> tuple[list[list[str]], tuple[str, ...]]:
    """For each metric its queries, none longer than a source takes, and the labels that name a GPU in all of them."""
    queries, labels = range_queries(
        reader.dialect, metrics, reader.roster.node_labels, nodes, span.step, span.later
    )
    if nodes is None or len(nodes) < 2 or all(len(query.encode()) <= MAX_QUERY for query in queries):
        return [[query] for query in queries], labels
    ordered = sorted(nodes)
    middle = len(ordered) // 2
    first, _ = _questions(reader, metrics, ordered[:middle], span)
    second, _ = _questions(reader, metrics, ordered[middle:], span)
    return [one + other for one, other in zip(first, second, strict=True)], labels


def _rows(
    reader: ExporterReader,
    quantity: Quantity,
    metric: Metric,
    bodies: Sequence[bytes],
    names: tuple[str, ...],
    span: TimeRange,
    told: Told,
) -> Grid:
    raw: Grid = {}
    series = (decode_range(body, names, span.start, span.step, span.points, told) for body in bodies)
    for labels, row in chain.from_iterable(series):
        gpu = identify(reader.dialect.vocabulary, {name: getattr(labels, name) for name in names})
        if gpu is not None:
            raw[gpu.ref] = row if gpu.ref not in raw else np.fmax(raw[gpu.ref], row)
    percent = metric.name in reader.percent or any(holds_percent(metric, row) for row in raw.values())
    return {ref: to_quantity_unit(quantity, metric, row, percent) for ref, row in raw.items()}


def _gaps(grid: Grid) -> bool:
    return any(bool(np.isnan(row).any()) for row in grid.values())


def _derive_gaps(grid: Grid, quantity: Quantity, sources: Mapping[Quantity, Grid], span: TimeRange) -> None:
    nothing = np.full(span.points, np.nan)
    for gpu in {gpu for source in sources.values() for gpu in source}:
        known = {name: source[gpu] for name, source in sources.items() if gpu in source}
        if quantity is Quantity.MEMORY_UTILIZATION:
            total = derive(Quantity.MEMORY_TOTAL, known)
            measured = known.get(Quantity.MEMORY_TOTAL, nothing)
            known[Quantity.MEMORY_TOTAL] = (
                measured if total is None else np.where(np.isnan(measured), total, measured)
            )
        found = derive(quantity, known)
        if found is not None:
            present = grid.get(gpu, nothing)
            grid[gpu] = np.where(np.isnan(present), found, present)
