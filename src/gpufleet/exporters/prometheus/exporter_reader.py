"""Read the newest values of one exporter: its GPUs, each quantity, holders and faults.

All queries of a refresh are evaluated at the same time. A scrape returns everything an exporter knows
of a GPU, so the time of a GPU's sample is queried once and used for all of its quantities. A failed
query affects only its own column: the values of the last refresh stay, with their old times, next to
the error. What a partial response lacks stays for an hour, too: a store that restarts must not make
its GPUs disappear.
"""

import asyncio
from collections.abc import Mapping, Sequence
from typing import TypeVar

import numpy as np

from gpufleet.errors import MetricsUnavailable
from gpufleet.exporters.columns import holds_percent, to_quantity_unit
from gpufleet.exporters.detection import DetectedExporter
from gpufleet.exporters.known_exporters import HOLDER_LABELS, FaultMetric, Metric
from gpufleet.exporters.labels import holder_of, identity_labels
from gpufleet.exporters.prometheus.expressions import fault_query, holder_query, presence_query, value_queries
from gpufleet.exporters.prometheus.gpu_index import GpuIndex, build_index, empty_index
from gpufleet.exporters.prometheus.responses import Labels
from gpufleet.exporters.prometheus.snapshot import QuerySnapshot
from gpufleet.model.reading import Column, Fault, GpuUser, Quantity

DESCRIBE_EVERY = 120.0
"""Seconds after which UUIDs and models are read again even if the GPUs are the same."""

KEEP_MISSING = 3600.0
"""Seconds for which values that partial responses lack are kept; a store may be gone permanently."""

Vectors = Sequence[tuple[list[Labels], Column]]
T = TypeVar("T")


class ExporterReader:
    """The newest values of one exporter, kept between refreshes."""

    def __init__(self, exporter: DetectedExporter) -> None:
        self.exporter = exporter
        self.index: GpuIndex = empty_index(exporter.definition)
        self.values: dict[Quantity, Column] = {}
        self.times: dict[Quantity, Column] = {}
        self.holders: Mapping[int, tuple[GpuUser, ...]] = {}
        self.faults: Mapping[int, tuple[Fault, ...]] = {}
        self._described_at = 0.0
        self._missing: frozenset[int] = frozenset()
        self.percent: set[str] = set()
        """Metrics named a ratio that hold percent."""

    def update(self, exporter: DetectedExporter) -> None:
        """Use newly detected metrics, and drop the columns of metrics that are gone."""
        self.exporter = exporter
        for columns in (self.values, self.times):
            for quantity in columns.keys() - exporter.quantities.keys():
                del columns[quantity]

    async def refresh(self, snapshot: QuerySnapshot) -> dict[str, str]:
        """Read everything. Return the errors by quantity (or `gpus`, `holders`, `faults`)."""
        try:
            await self.read_gpus(snapshot)
        except MetricsUnavailable as error:
            return {"gpus": str(error)}
        reads = {
            **{
                str(quantity): self._read_quantity(snapshot, quantity)
                for quantity in self.exporter.quantities
            },
            "holders": self._read_holders(snapshot),
            "faults": self._read_faults(snapshot),
        }
        results = await asyncio.gather(*reads.values(), return_exceptions=True)
        errors = {}
        for name, result in zip(reads, results, strict=True):
            if isinstance(result, MetricsUnavailable):
                errors[name] = str(result)
            elif isinstance(result, BaseException):
                raise result
        return errors

    async def read_gpus(self, snapshot: QuerySnapshot) -> None:
        """Read which GPUs exist."""
        definition, before = self.exporter.definition, self.index
        if before.gpus and 0 <= snapshot.at - self._described_at < DESCRIBE_EVERY:
            labels, times = await snapshot.vector(presence_query(self.exporter, before.keys), before.keys)
            if same := await snapshot.work(before.with_times, labels, times):
                self.index, self._missing = same, frozenset()
                return
        names = identity_labels(definition)
        labels, times = await snapshot.vector(presence_query(self.exporter, names), names)
        self._described_at = snapshot.at
        present = labels
        if snapshot.warnings:
            labels, times = await snapshot.work(before.add_missing, labels, times, snapshot.at - KEEP_MISSING)
        self.index = await snapshot.work(build_index, definition, before, labels, times)
        self._missing = self.index.missing(present) if snapshot.warnings else frozenset()
        if before.gpus is not self.index.gpus:
            await snapshot.work(self._move_to, before, self.index)

    async def _read_quantity(self, snapshot: QuerySnapshot, quantity: Quantity) -> None:
        index, metrics = self.index, self.exporter.quantities[quantity]
        queries = value_queries(self.exporter, metrics, index.keys)
        vectors = await asyncio.gather(*(snapshot.vector(query, index.keys) for query in queries))
        column = await snapshot.work(self._column, index, quantity, metrics, vectors)
        times = np.where(np.isnan(column), np.nan, index.times)
        if snapshot.warnings and (old := self.values.get(quantity)) is not None:
            sampled = self.times[quantity]
            keep = np.isnan(column) & ~np.isnan(old) & (sampled >= snapshot.at - KEEP_MISSING)
            column, times = np.where(keep, old, column), np.where(keep, sampled, times)
        self.values[quantity], self.times[quantity] = column, times

    def _column(
        self, index: GpuIndex, quantity: Quantity, metrics: Sequence[Metric], vectors: Vectors
    ) -> Column:
        column = np.full(len(index.gpus), np.nan)
        for metric, (labels, values) in zip(metrics, vectors, strict=True):
            if holds_percent(metric, values):
                self.percent.add(metric.name)
            rows = index.rows(labels)
            converted = to_quantity_unit(quantity, metric, values, metric.name in self.percent)
            new = np.full(len(index.gpus), np.nan)
            new[rows[rows >= 0]] = converted[rows >= 0]
            column = np.where(np.isnan(column), new, column)
        return column

    async def _read_holders(self, snapshot: QuerySnapshot) -> None:
        query = holder_query(self.exporter, self.index.keys)
        if query:
            more = [*HOLDER_LABELS, *(f"exported_{name}" for name in HOLDER_LABELS)]
            names = tuple(dict.fromkeys([*self.index.keys, *more]))
            labels, _ = await snapshot.vector(query, names)
            found = await snapshot.work(_holders, self.index, names, labels)
            self.holders = {**self._of_missing(self.holders), **found}

    async def _read_faults(self, snapshot: QuerySnapshot) -> None:
        index = self.index
        found: dict[int, list[Fault]] = {}
        for metric in self.exporter.faults:
            extra = [name for name in (metric.code_label, "severity") if name]
            labels, values = await snapshot.vector(
                fault_query(self.exporter, metric, index.keys), tuple(dict.fromkeys([*index.keys, *extra]))
            )
            rows = index.rows([index.key(each) for each in labels])
            for row, each, value in zip(rows.tolist(), labels, values.tolist(), strict=True):
                if row >= 0 and (fault := _fault(metric, each, value, float(index.times[row]))):
                    found.setdefault(row, []).append(fault)
        reported = {row: tuple(faults) for row, faults in found.items()}
        self.faults = {**self._of_missing(self.faults), **reported}

    def _of_missing(self, by_row: Mapping[int, T]) -> dict[int, T]:
        return {row: each for row, each in by_row.items() if row in self._missing}

    def _move_to(self, before: GpuIndex, after: GpuIndex) -> None:
        """Move the columns to the rows of a new index, so that a failed query keeps its old values."""
        old = {gpu.ref: row for row, gpu in enumerate(before.gpus)}
        origin = np.fromiter((old.get(gpu.ref, -1) for gpu in after.gpus), np.int64, len(after.gpus))
        for columns in (self.values, self.times):
            for quantity, column in columns.items():
                padded = np.append(column, np.nan)
                columns[quantity] = padded[origin]
        new = {gpu.ref: row for row, gpu in enumerate(after.gpus)}
        moved = {row: new[gpu.ref] for row, gpu in enumerate(before.gpus) if gpu.ref in new}
        self.holders = {moved[row]: users for row, users in self.holders.items() if row in moved}
        self.faults = {moved[row]: faults for row, faults in self.faults.items() if row in moved}


def _holders(
    index: GpuIndex, names: tuple[str, ...], labels: Sequence[Labels]
) -> Mapping[int, tuple[GpuUser, ...]]:
    found: dict[int, set[GpuUser]] = {}
    rows = index.rows([index.key(each) for each in labels])
    for row, each in zip(rows.tolist(), labels, strict=True):
        user = holder_of({name: getattr(each, name) for name in names})
        if row >= 0 and user is not None:
            found.setdefault(row, set()).add(user)
    return {row: tuple(sorted(users)) for row, users in found.items()}


def _fault(metric: FaultMetric, labels: Labels, value: float, time: float) -> Fault | None:
    if not np.isfinite(value) or value >= 9.2e18:
        return None
    if metric.fatal_only and not _fatal(labels.severity):
        return None
    if metric.code_is_value:
        return Fault(metric.kind, int(value), 1.0, time)
    if metric.code_label:
        text = getattr(labels, metric.code_label)
        return Fault(metric.kind, int(text), value, time) if text.isdecimal() and int(text) else None
    return Fault(metric.kind, 0, 1.0 if metric.zero_is_bad else value, time)


def _fatal(severity: str) -> bool:
    words = severity.lower()
    return "fatal" in words and "non" not in words
