"""The GPUs that one exporter describes, and at which place each of its series belongs.

Made from the one query per vocabulary that carries all identity labels; the queries for
values carry only the few labels that tell GPUs apart, and find their place here. Between two
refreshes of a fleet hardly anything changes, so a roster is kept and only its times are new
unless a label set turns up that it does not know.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import repeat
from typing import Any

import numpy as np

from gpufleet.exporters.known_exporters import Exporter
from gpufleet.exporters.labels import identify, identity_labels, key_labels, node_labels
from gpufleet.exporters.prometheus.responses import Labels, labels_type
from gpufleet.model.reading import Column, GpuIdentity, GpuRef

_PIECE = 5000


@dataclass(frozen=True)
class GpuIndex:
    """GPUs with the times of their newest samples."""

    gpus: tuple[GpuIdentity, ...]
    times: Column
    keys: tuple[str, ...]
    """The labels by which values are asked."""
    node_labels: tuple[str, ...]
    """The labels that name the node."""
    places: Mapping[Any, int]
    """Set of key labels → place in `gpus`."""
    seen: Mapping[Any, int]
    """Set of identity labels → place in `gpus`, or -1 for one that names no GPU."""

    def key(self, labels: Labels) -> Any:
        """The key labels among more labels."""
        return labels_type(self.keys)(*(getattr(labels, name) for name in self.keys))

    def place(self, labels: Sequence[Labels]) -> "np.ndarray[Any, np.dtype[np.int64]]":
        """The places of series with these key labels; -1 for a stranger."""
        return _look_up(self.places, labels)

    def again(self, labels: Sequence[Labels], times: Column) -> "GpuIndex | None":
        """The same GPUs at newer times, from an answer with key labels; None if they are not the same."""
        places = self.place(labels)
        if not len(places) or places.min() < 0:
            return None
        newest = _newest(len(self.gpus), places, times)
        return None if np.isnan(newest).any() else replace(self, times=newest)

    def remembered(
        self, labels: Sequence[Labels], times: Column, since: float
    ) -> tuple[list[Labels], Column]:
        """An answer and the GPUs that it lacks, if they were seen after `since`."""
        answered = set(labels)
        lacking = [
            (each, self.times[place])
            for each, place in self.seen.items()
            if place >= 0 and self.times[place] >= since and each not in answered
        ]
        return [*labels, *(each for each, _ in lacking)], np.append(times, [time for _, time in lacking])

    def lacking(self, labels: Sequence[Labels]) -> frozenset[int]:
        """The places of the GPUs that an answer with all identity labels lacks."""
        return frozenset(range(len(self.gpus))) - {self.seen.get(each, -1) for each in labels}


def empty_index(vocabulary: Exporter) -> GpuIndex:
    """The roster before anything was read."""
    return GpuIndex((), np.empty(0), key_labels(vocabulary, ()), node_labels(()), {}, {})


def build_index(
    vocabulary: Exporter, previous: GpuIndex, labels: Sequence[Labels], times: Column
) -> GpuIndex:
    """The roster that follows from an answer with all identity labels and the samples' times."""
    if len(labels) == len(previous.seen) and all(each in previous.seen for each in labels):
        same = _look_up(previous.seen, labels)
        return replace(previous, times=_newest(len(previous.gpus), same, times))
    names = identity_labels(vocabulary)
    sets = [{name: value for name in names if (value := getattr(each, name))} for each in labels]
    gpus: list[GpuIdentity] = []
    newest: list[float] = []
    places: dict[GpuRef, int] = {}
    seen: dict[Any, int] = {}
    for each, texts, time in zip(labels, sets, times.tolist(), strict=True):
        gpu = identify(vocabulary, texts)
        if gpu is None:
            seen[each] = -1
            continue
        place = places.setdefault(gpu.ref, len(gpus))
        if place == len(gpus):
            gpus.append(gpu)
            newest.append(time)
        elif time > newest[place]:
            gpus[place], newest[place] = gpu, time
        seen[each] = place
    meant = [texts for each, texts in zip(labels, sets, strict=True) if seen[each] >= 0]
    keys = key_labels(vocabulary, meant)
    key = labels_type(keys)
    by_key = {
        key(*(getattr(each, name) for name in keys)): place for each, place in seen.items() if place >= 0
    }
    found = _look_up(seen, labels)
    return GpuIndex(tuple(gpus), _newest(len(gpus), found, times), keys, node_labels(meant), by_key, seen)


def _look_up(places: Mapping[Any, int], labels: Sequence[Labels]) -> "np.ndarray[Any, np.dtype[np.int64]]":
    found = np.empty(len(labels), np.int64)
    # In pieces, because no other thread runs within one call.
    for start in range(0, len(labels), _PIECE):
        piece = labels[start : start + _PIECE]
        found[start : start + _PIECE] = np.fromiter(map(places.get, piece, repeat(-1)), np.int64, len(piece))
    return found


def _newest(size: int, places: "np.ndarray[Any, np.dtype[np.int64]]", times: Column) -> Column:
    newest = np.full(size, np.nan)
    known = places >= 0
    np.fmax.at(newest, places[known], times[known])
    return newest
