"""Map the series of one exporter to GPUs.

Built from one query per exporter that returns all identity labels. Queries for values return only the
few labels that distinguish GPUs, and look up their row here. A fleet hardly changes between two
refreshes, so an index is kept, with new times, until an unknown label set turns up.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpufleet.exporters.known_exporters import ExporterDefinition
from gpufleet.exporters.labels import identify, identity_labels, key_labels, node_labels
from gpufleet.exporters.prometheus.responses import Labels, labels_type
from gpufleet.model.reading import Column, GpuIdentity, GpuRef

_CHUNK = 5000


@dataclass(frozen=True)
class GpuIndex:
    """The GPUs of an exporter with the times of their newest samples."""

    gpus: tuple[GpuIdentity, ...]
    times: Column
    keys: tuple[str, ...]
    """The labels that queries for values return."""
    node_labels: tuple[str, ...]
    """The labels that name the node."""
    by_key: Mapping[Any, int]
    """Row in `gpus` by the set of key labels."""
    by_identity: Mapping[Any, int]
    """Row in `gpus` by the set of identity labels; -1 if they identify no GPU."""

    def key(self, labels: Labels) -> Any:
        """Return only the key labels of a label set."""
        return labels_type(self.keys)(*(getattr(labels, name) for name in self.keys))

    def rows(self, labels: Sequence[Labels]) -> NDArray[np.int64]:
        """Return the rows of series with these key labels; -1 for unknown GPUs."""
        return _look_up(self.by_key, labels)

    def with_times(self, labels: Sequence[Labels], times: Column) -> "GpuIndex | None":
        """Return the index with newer times, from a response with key labels; None if other GPUs are in it."""
        rows = self.rows(labels)
        if not len(rows) or rows.min() < 0:
            return None
        newest = _newest(len(self.gpus), rows, times)
        return None if np.isnan(newest).any() else replace(self, times=newest)

    def add_missing(
        self, labels: Sequence[Labels], times: Column, since: float
    ) -> tuple[list[Labels], Column]:
        """Return a response with the GPUs added that it lacks, if they were seen after `since`."""
        present = set(labels)
        missing = [
            (each, self.times[row])
            for each, row in self.by_identity.items()
            if row >= 0 and self.times[row] >= since and each not in present
        ]
        return [*labels, *(each for each, _ in missing)], np.append(times, [time for _, time in missing])

    def missing(self, labels: Sequence[Labels]) -> frozenset[int]:
        """Return the rows of the GPUs that a response with identity labels lacks."""
        return frozenset(range(len(self.gpus))) - {self.by_identity.get(each, -1) for each in labels}


def empty_index(definition: ExporterDefinition) -> GpuIndex:
    """Return the index before anything was read."""
    return GpuIndex((), np.empty(0), key_labels(definition, ()), node_labels(()), {}, {})


def build_index(
    definition: ExporterDefinition, previous: GpuIndex, labels: Sequence[Labels], times: Column
) -> GpuIndex:
    """Build the index from a response with all identity labels and the times of the samples."""
    if len(labels) == len(previous.by_identity) and all(each in previous.by_identity for each in labels):
        same = _look_up(previous.by_identity, labels)
        return replace(previous, times=_newest(len(previous.gpus), same, times))
    names = identity_labels(definition)
    sets = [{name: value for name in names if (value := getattr(each, name))} for each in labels]
    gpus: list[GpuIdentity] = []
    newest: list[float] = []
    by_ref: dict[GpuRef, int] = {}
    by_identity: dict[Any, int] = {}
    for each, texts, time in zip(labels, sets, times.tolist(), strict=True):
        gpu = identify(definition, texts)
        if gpu is None:
            by_identity[each] = -1
            continue
        row = by_ref.setdefault(gpu.ref, len(gpus))
        if row == len(gpus):
            gpus.append(gpu)
            newest.append(time)
        elif time > newest[row]:
            gpus[row], newest[row] = gpu, time
        by_identity[each] = row
    identified = [texts for each, texts in zip(labels, sets, strict=True) if by_identity[each] >= 0]
    keys = key_labels(definition, identified)
    key = labels_type(keys)
    by_key = {
        key(*(getattr(each, name) for name in keys)): row for each, row in by_identity.items() if row >= 0
    }
    rows = _look_up(by_identity, labels)
    return GpuIndex(
        tuple(gpus), _newest(len(gpus), rows, times), keys, node_labels(identified), by_key, by_identity
    )


def _look_up(rows: Mapping[Any, int], labels: Sequence[Labels]) -> NDArray[np.int64]:
    found = np.empty(len(labels), np.int64)
    # In chunks, because no other thread runs during one call.
    for start in range(0, len(labels), _CHUNK):
        chunk = labels[start : start + _CHUNK]
        found[start : start + _CHUNK] = np.fromiter(map(rows.get, chunk, repeat(-1)), np.int64, len(chunk))
    return found


def _newest(size: int, rows: NDArray[np.int64], times: Column) -> Column:
    newest = np.full(size, np.nan)
    known = rows >= 0
    np.fmax.at(newest, rows[known], times[known])
    return newest
