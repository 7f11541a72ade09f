"""Merge the values of several exporters into one `Readings`.

GPUs of different exporters are matched by UUID if known, else by node and index. Of several values the
one of the exporter with the highest precedence wins, unless it is more than `STALE` seconds older than
another. Quantities that are not measured but follow from others (the total from used, free and
reserved) are derived at the end.

The row of each GPU changes rarely; the layout is kept until an index changes.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from gpufleet.exporters.columns import DERIVED, derive
from gpufleet.exporters.prometheus.exporter_reader import ExporterReader
from gpufleet.model.reading import Column, Fault, GpuIdentity, GpuRef, GpuUser, Quantity, Readings

STALE = 60.0
"""Seconds by which the preferred exporter's sample may be older than another's."""


@dataclass(frozen=True)
class RowLayout:
    """The GPUs in order, and for each reader the rows of its GPUs."""

    reader_gpus: tuple[tuple[GpuIdentity, ...], ...]
    gpus: tuple[GpuIdentity, ...]
    rows: tuple[NDArray[np.int64], ...]
    native: tuple[Mapping[GpuRef, GpuRef], ...]
    """Per reader: the exporter's own name by GPU, if it differs."""

    def fits(self, readers: Sequence[ExporterReader]) -> bool:
        """Return whether the readers still have the same GPUs."""
        return len(readers) == len(self.reader_gpus) and all(
            reader.index.gpus is gpus for reader, gpus in zip(readers, self.reader_gpus, strict=True)
        )


def row_layout(readers: Sequence[ExporterReader]) -> RowLayout:
    """Assign rows to the GPUs of all readers, best exporter first."""
    by_uuid: dict[str, GpuRef] = {}
    known: dict[GpuRef, GpuIdentity] = {}
    names: list[list[GpuRef]] = []
    native: list[dict[GpuRef, GpuRef]] = []
    for reader in readers:
        refs, other = [], {}
        for gpu in reader.index.gpus:
            ref = _matched(gpu, by_uuid)
            if ref != gpu.ref:
                other[ref] = gpu.ref
            known[ref] = _merged(known.get(ref), gpu, ref)
            refs.append(ref)
        names.append(refs)
        native.append(other)
    order = _ordered(list(known))
    row_of = {ref: row for row, ref in enumerate(order)}
    return RowLayout(
        reader_gpus=tuple(reader.index.gpus for reader in readers),
        gpus=tuple(known[ref] for ref in order),
        rows=tuple(np.fromiter((row_of[ref] for ref in refs), np.int64, len(refs)) for refs in names),
        native=tuple(native),
    )


def merge_readings(
    layout: RowLayout, readers: Sequence[ExporterReader], errors: Mapping[str, str], now: float
) -> Readings:
    """Return the readings of all exporters together."""
    values: dict[Quantity, Column] = {}
    times: dict[Quantity, Column] = {}
    for quantity in Quantity:
        if any(quantity in reader.values for reader in readers):
            values[quantity], times[quantity] = _chosen(layout, readers, quantity)
    _derive_gaps(values, times)
    holders: dict[int, tuple[GpuUser, ...]] = {}
    faults: dict[int, tuple[Fault, ...]] = {}
    for reader, rows in zip(readers, layout.rows, strict=True):
        for number, users in reader.holders.items():
            holders.setdefault(int(rows[number]), users)
        for number, reported in reader.faults.items():
            row = int(rows[number])
            faults[row] = tuple(dict.fromkeys((*faults.get(row, ()), *reported)))
    return Readings(now, layout.gpus, values, times, holders, faults, errors)


def _chosen(
    layout: RowLayout, readers: Sequence[ExporterReader], quantity: Quantity
) -> tuple[Column, Column]:
    values, times = np.full(len(layout.gpus), np.nan), np.full(len(layout.gpus), np.nan)
    for reader, rows in zip(readers, layout.rows, strict=True):
        column = reader.values.get(quantity)
        if column is None:
            continue
        sampled = reader.times[quantity]
        better = ~np.isnan(column) & (np.isnan(values[rows]) | (sampled > times[rows] + STALE))
        values[rows[better]] = column[better]
        times[rows[better]] = sampled[better]
    return values, times


def _derive_gaps(values: dict[Quantity, Column], times: dict[Quantity, Column]) -> None:
    for quantity, sources in DERIVED.items():
        found = derive(quantity, values)
        if found is None:
            continue
        present = values.get(quantity, np.full(len(found), np.nan))
        sampled = times.get(quantity, np.full(len(found), np.nan))
        gaps = np.isnan(present) & ~np.isnan(found)
        oldest = np.full(len(found), np.inf)
        for source in sources:
            if source in times:
                oldest = np.fmin(oldest, times[source])
        values[quantity] = np.where(gaps, found, present)
        times[quantity] = np.where(gaps, oldest, sampled)


def _matched(gpu: GpuIdentity, by_uuid: dict[str, GpuRef]) -> GpuRef:
    """Return the name that a better exporter uses for the same GPU, else its own."""
    if not gpu.uuid:
        return gpu.ref
    whole = by_uuid.setdefault(gpu.uuid, _with_partition(gpu.ref, ""))
    return _with_partition(whole, gpu.ref.partition)


def _with_partition(ref: GpuRef, partition: str) -> GpuRef:
    return ref if ref.partition == partition else GpuRef(ref.node, ref.index, partition)


def _merged(better: GpuIdentity | None, gpu: GpuIdentity, ref: GpuRef) -> GpuIdentity:
    if better is None:
        return gpu if gpu.ref == ref else replace(gpu, ref=ref)
    if all((better.uuid, better.model, better.vendor)):
        return better
    return replace(
        better,
        uuid=better.uuid or gpu.uuid,
        model=better.model or gpu.model,
        vendor=better.vendor or gpu.vendor,
    )


def _ordered(refs: list[GpuRef]) -> list[GpuRef]:
    """Sort without one long call that compares objects and blocks all other threads."""
    nodes = {node: rank for rank, node in enumerate(sorted({ref.node for ref in refs}))}
    parts = {part: rank for rank, part in enumerate(sorted({ref.partition for ref in refs}))}
    size = len(refs)
    order = np.lexsort(
        (
            np.fromiter((parts[ref.partition] for ref in refs), np.int64, size),
            np.fromiter((ref.index for ref in refs), np.int64, size),
            np.fromiter((nodes[ref.node] for ref in refs), np.int64, size),
        )
    )
    return [refs[row] for row in order.tolist()]
