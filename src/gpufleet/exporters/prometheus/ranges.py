"""Read past values: one quantity of some or all GPUs on a grid of times.

Exporters are queried in order of precedence; a later one fills the gaps of the earlier ones. Units and
derived quantities follow the same rules as the latest readings. Values are held as dense arrays
(GPUs × times).

Some servers cache ranges and align their times to multiples of the step. Such a server is queried for
aligned times, with expressions that look ahead by the difference.
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
from gpufleet.exporters.prometheus.expressions import Over, range_queries
from gpufleet.exporters.prometheus.responses import MisalignedRange, OnPartial, decode_range
from gpufleet.exporters.prometheus.snapshot import QuerySnapshot
from gpufleet.model.reading import GpuRef, Quantity

Grid = dict[GpuRef, NDArray[np.float64]]
"""The values of each GPU at the times of the grid, NaN for gaps."""


class TimeRange:
    """A grid of times for range queries."""

    def __init__(self, start: float, step: float, points: int, later: int = 0, over: Over = "") -> None:
        """`later` is the number of milliseconds by which the wanted times follow the queried ones.

        With `over`, a value is the lowest or highest reading of the step that ends at its time.
        """
        self.start, self.step, self.points, self.later, self.over = start, step, points, later, over

    @property
    def aligned(self) -> "TimeRange":
        """The same times, queried at multiples of the step."""
        later = round(self.start * 1000) % max(1, round(self.step * 1000))
        return TimeRange(self.start - later / 1000, self.step, self.points, later, self.over)

    @property
    def end(self) -> float:
        """The last time of the grid."""
        return self.start + self.step * (self.points - 1)

    @property
    def times(self) -> NDArray[np.float64]:
        """The times of the grid."""
        return self.start + self.step * np.arange(self.points, dtype=np.float64)


async def read_span(
    snapshot: QuerySnapshot,
    readers: Sequence[ExporterReader],
    native: Sequence[Mapping[GpuRef, GpuRef]],
    quantity: Quantity,
    gpus: Collection[GpuRef] | None,
    span: TimeRange,
) -> Grid:
    """Return one quantity of `gpus` (None: all) over the span, without GPUs that have no value."""
    aligned = snapshot.client.aligns_ranges
    try:
        return await _read(snapshot, readers, native, quantity, gpus, span.aligned if aligned else span)
    except MisalignedRange:
        if aligned:
            raise
    snapshot.client.aligns_ranges = True
    return await _read(snapshot, readers, native, quantity, gpus, span.aligned)


async def _read(
    snapshot: QuerySnapshot,
    readers: Sequence[ExporterReader],
    native: Sequence[Mapping[GpuRef, GpuRef]],
    quantity: Quantity,
    gpus: Collection[GpuRef] | None,
    span: TimeRange,
) -> Grid:
    grid = await _measured(snapshot, readers, native, quantity, gpus, span)
    missing = None if gpus is None else [gpu for gpu in gpus if gpu not in grid]
    if quantity in DERIVED and (missing or gpus is None or _gaps(grid)):
        sources = await asyncio.gather(
            *(_measured(snapshot, readers, native, source, gpus, span) for source in DERIVED[quantity])
        )
        _derive_gaps(grid, quantity, dict(zip(DERIVED[quantity], sources, strict=True)), span)
    return {gpu: row for gpu, row in grid.items() if not np.isnan(row).all()}


async def _measured(
    snapshot: QuerySnapshot,
    readers: Sequence[ExporterReader],
    native: Sequence[Mapping[GpuRef, GpuRef]],
    quantity: Quantity,
    gpus: Collection[GpuRef] | None,
    span: TimeRange,
) -> Grid:
    grid: Grid = {}
    for reader, names in zip(readers, native, strict=True):
        metrics = reader.exporter.quantities.get(quantity, ())
        # The exporter's own name for each GPU, and back.
        requested = None if gpus is None else {names.get(gpu, gpu): gpu for gpu in gpus}
        renamed = {own: gpu for gpu, own in names.items()} if requested is None else requested
        nodes = None if requested is None else {ref.node for ref in requested}
        parts, labels = _queries(reader, metrics, nodes, span)
        for metric, queries in zip(metrics, parts, strict=True):
            bodies = await asyncio.gather(
                *(snapshot.client.range(query, span.start, span.end, span.step) for query in queries)
            )
            rows = await snapshot.work(
                _rows, reader, quantity, metric, bodies, labels, span, snapshot.warnings.append
            )
            for ref, row in rows.items():
                gpu = renamed.get(ref) if requested is not None else renamed.get(ref, ref)
                if gpu is not None:
                    grid[gpu] = row if gpu not in grid else np.where(np.isnan(grid[gpu]), row, grid[gpu])
    return grid


def _queries(
    reader: ExporterReader, metrics: Sequence[Metric], nodes: Collection[str] | None, span: TimeRange
) -> tuple[list[list[str]], tuple[str, ...]]:
    """Return the queries of each metric, split to `MAX_QUERY` bytes, and the labels that identify a GPU."""
    queries, labels = range_queries(
        reader.exporter, metrics, reader.index.node_labels, nodes, span.step, span.later, span.over
    )
    if nodes is None or len(nodes) < 2 or all(len(query.encode()) <= MAX_QUERY for query in queries):
        return [[query] for query in queries], labels
    ordered = sorted(nodes)
    middle = len(ordered) // 2
    first, _ = _queries(reader, metrics, ordered[:middle], span)
    second, _ = _queries(reader, metrics, ordered[middle:], span)
    return [one + other for one, other in zip(first, second, strict=True)], labels


def _rows(
    reader: ExporterReader,
    quantity: Quantity,
    metric: Metric,
    bodies: Sequence[bytes],
    names: tuple[str, ...],
    span: TimeRange,
    on_partial: OnPartial,
) -> Grid:
    raw: Grid = {}
    series = (decode_range(body, names, span.start, span.step, span.points, on_partial) for body in bodies)
    for labels, row in chain.from_iterable(series):
        gpu = identify(reader.exporter.definition, {name: getattr(labels, name) for name in names})
        if gpu is not None:
            combined = np.fmin if span.over == "min" else np.fmax
            raw[gpu.ref] = row if gpu.ref not in raw else combined(raw[gpu.ref], row)
    percent = metric.name in reader.percent or any(holds_percent(metric, row) for row in raw.values())
    return {ref: to_quantity_unit(quantity, metric, row, percent) for ref, row in raw.items()}


def _gaps(grid: Grid) -> bool:
    return any(bool(np.isnan(row).any()) for row in grid.values())


def _derive_gaps(grid: Grid, quantity: Quantity, sources: Mapping[Quantity, Grid], span: TimeRange) -> None:
    gaps = np.full(span.points, np.nan)
    for gpu in {gpu for source in sources.values() for gpu in source}:
        known = {name: source[gpu] for name, source in sources.items() if gpu in source}
        if quantity is Quantity.MEMORY_UTILIZATION:
            total = derive(Quantity.MEMORY_TOTAL, known)
            measured = known.get(Quantity.MEMORY_TOTAL, gaps)
            known[Quantity.MEMORY_TOTAL] = (
                measured if total is None else np.where(np.isnan(measured), total, measured)
            )
        found = derive(quantity, known)
        if found is not None:
            present = grid.get(gpu, gaps)
            grid[gpu] = np.where(np.isnan(present), found, present)
