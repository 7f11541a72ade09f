"""Read the newest values of one dialect: who is there, each quantity, who holds, what is wrong.

All queries of a refresh are evaluated at one and the same time. An exporter answers all that
it knows of a GPU in one scrape, so the time of a GPU's sample, asked once, holds for all of
its quantities. A query that fails costs only its own column: the values of the last refresh
stay, with their old times, and the error says so. What an answer lacks that is not whole stays
as well, for an hour: a store that restarts must not make its GPUs look gone.
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
"""Seconds after which UUIDs and models are asked again though the same GPUs are there."""

REMEMBERED = 3600.0
"""Seconds for which that stays which answers lack that are not whole; a store may be gone for good."""

Answers = Sequence[tuple[list[Labels], Column]]
T = TypeVar("T")


class ExporterReader:
    """The newest values of one dialect, kept between refreshes."""

    def __init__(self, dialect: DetectedExporter) -> None:
        self.dialect = dialect
        self.roster: GpuIndex = empty_index(dialect.vocabulary)
        self.values: dict[Quantity, Column] = {}
        self.times: dict[Quantity, Column] = {}
        self.holders: Mapping[int, tuple[GpuUser, ...]] = {}
        self.faults: Mapping[int, tuple[Fault, ...]] = {}
        self._described = 0.0
        self._lacking: frozenset[int] = frozenset()
        self.percent: set[str] = set()
        """Metrics named a ratio that were seen to hold percent."""

    def speak(self, dialect: DetectedExporter) -> None:
        """Take over what is there by now; columns whose metric is gone go with it."""
        self.dialect = dialect
        for columns in (self.values, self.times):
            for quantity in columns.keys() - dialect.quantities.keys():
                del columns[quantity]

    async def refresh(self, moment: QuerySnapshot) -> dict[str, str]:
        """Read everything anew; what failed, by quantity (or `gpus`, `holders`, `faults`), with the reason."""
        try:
            await self.read_gpus(moment)
        except MetricsUnavailable as error:
            return {"gpus": str(error)}
        reads = {
            **{str(quantity): self._read_quantity(moment, quantity) for quantity in self.dialect.quantities},
            "holders": self._read_holders(moment),
            "faults": self._read_faults(moment),
        }
        results = await asyncio.gather(*reads.values(), return_exceptions=True)
        errors = {}
        for name, result in zip(reads, results, strict=True):
            if isinstance(result, MetricsUnavailable):
                errors[name] = str(result)
            elif isinstance(result, BaseException):
                raise result
        return errors

    async def read_gpus(self, moment: QuerySnapshot) -> None:
        """Read who is there."""
        vocabulary, before = self.dialect.vocabulary, self.roster
        if before.gpus and 0 <= moment.at - self._described < DESCRIBE_EVERY:
            labels, times = await moment.vector(presence_query(self.dialect, before.keys), before.keys)
            if same := await moment.work(before.again, labels, times):
                self.roster, self._lacking = same, frozenset()
                return
        names = identity_labels(vocabulary)
        labels, times = await moment.vector(presence_query(self.dialect, names), names)
        self._described = moment.at
        present = labels
        if moment.shortfalls:
            labels, times = await moment.work(before.remembered, labels, times, moment.at - REMEMBERED)
        self.roster = await moment.work(build_index, vocabulary, before, labels, times)
        self._lacking = self.roster.lacking(present) if moment.shortfalls else frozenset()
        if before.gpus is not self.roster.gpus:
            await moment.work(self._move_to, before, self.roster)

    async def _read_quantity(self, moment: QuerySnapshot, quantity: Quantity) -> None:
        roster, metrics = self.roster, self.dialect.quantities[quantity]
        queries = value_queries(self.dialect, metrics, roster.keys)
        answers = await asyncio.gather(*(moment.vector(query, roster.keys) for query in queries))
        column = await moment.work(self._column, roster, quantity, metrics, answers)
        times = np.where(np.isnan(column), np.nan, roster.times)
        if moment.shortfalls and (old := self.values.get(quantity)) is not None:
            sampled = self.times[quantity]
            stays = np.isnan(column) & ~np.isnan(old) & (sampled >= moment.at - REMEMBERED)
            column, times = np.where(stays, old, column), np.where(stays, sampled, times)
        self.values[quantity], self.times[quantity] = column, times

    def _column(
        self, roster: GpuIndex, quantity: Quantity, metrics: Sequence[Metric], answers: Answers
    ) -> Column:
        column = np.full(len(roster.gpus), np.nan)
        for metric, (labels, values) in zip(metrics, answers, strict=True):
            if holds_percent(metric, values):
                self.percent.add(metric.name)
            places = roster.place(labels)
            ours = to_quantity_unit(quantity, metric, values, metric.name in self.percent)
            fresh = np.full(len(roster.gpus), np.nan)
            fresh[places[places >= 0]] = ours[places >= 0]
            column = np.where(np.isnan(column), fresh, column)
        return column

    async def _read_holders(self, moment: QuerySnapshot) -> None:
        query = holder_query(self.dialect, self.roster.keys)
        if query:
            more = [*HOLDER_LABELS, *(f"exported_{name}" for name in HOLDER_LABELS)]
            wanted = tuple(dict.fromkeys([*self.roster.keys, *more]))
            labels, _ = await moment.vector(query, wanted)
            found = await moment.work(_holders, self.roster, wanted, labels)
            self.holders = {**self._of_lacking(self.holders), **found}

    async def _read_faults(self, moment: QuerySnapshot) -> None:
        roster = self.roster
        found: dict[int, list[Fault]] = {}
        for metric in self.dialect.faults:
            extra = [name for name in (metric.code_label, "severity") if name]
            labels, values = await moment.vector(
                fault_query(self.dialect, metric, roster.keys), tuple(dict.fromkeys([*roster.keys, *extra]))
            )
            places = roster.place([roster.key(each) for each in labels])
            for place, each, value in zip(places.tolist(), labels, values.tolist(), strict=True):
                if place >= 0 and (fault := _fault(metric, each, value, float(roster.times[place]))):
                    found.setdefault(place, []).append(fault)
        told = {place: tuple(faults) for place, faults in found.items()}
        self.faults = {**self._of_lacking(self.faults), **told}

    def _of_lacking(self, known: Mapping[int, T]) -> dict[int, T]:
        return {place: what for place, what in known.items() if place in self._lacking}

    def _move_to(self, before: GpuIndex, after: GpuIndex) -> None:
        """Carry the columns over to a roster with other GPUs, so that a failed query finds its old values."""
        old = {gpu.ref: place for place, gpu in enumerate(before.gpus)}
        origin = np.fromiter((old.get(gpu.ref, -1) for gpu in after.gpus), np.int64, len(after.gpus))
        for columns in (self.values, self.times):
            for quantity, column in columns.items():
                padded = np.append(column, np.nan)
                columns[quantity] = padded[origin]
        new = {gpu.ref: place for place, gpu in enumerate(after.gpus)}
        moved = {place: new[gpu.ref] for place, gpu in enumerate(before.gpus) if gpu.ref in new}
        self.holders = {moved[place]: held for place, held in self.holders.items() if place in moved}
        self.faults = {moved[place]: faults for place, faults in self.faults.items() if place in moved}


def _holders(
    roster: GpuIndex, names: tuple[str, ...], labels: Sequence[Labels]
) -> Mapping[int, tuple[GpuUser, ...]]:
    found: dict[int, set[GpuUser]] = {}
    places = roster.place([roster.key(each) for each in labels])
    for place, each in zip(places.tolist(), labels, strict=True):
        holder = holder_of({name: getattr(each, name) for name in names})
        if place >= 0 and holder is not None:
            found.setdefault(place, set()).add(holder)
    return {place: tuple(sorted(holders)) for place, holders in found.items()}


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
