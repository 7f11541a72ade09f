"""How many GPUs a cluster had in an hour, and which part of the hour was observed.

The GPU time is exact, over all capacity periods. The size is a number of GPUs that really existed: the
one that the cluster had for most of the observed time in which it had any, the larger one if two lasted
equally long.
"""

from collections.abc import Iterable, Sequence
from itertools import pairwise

from gpufleet.accounting.hour_allocations import clip
from gpufleet.model.hours import HOUR_MS
from gpufleet.model.periods import CapacityPeriod

Span = tuple[float, float]
"""Start and end in Unix seconds."""


def capacity_gpu_hours(periods: Iterable[CapacityPeriod], hour: int) -> float:
    """Return the GPU-hours that the nodes had in the hour that starts at `hour` Unix seconds."""
    total = 0
    for capacity in periods:
        start, end = clip(capacity.start, capacity.end, hour)
        total += capacity.gpus * max(0, end - start)
    return total / HOUR_MS


def observed_ms(spans: Iterable[Span], hour: int) -> int:
    """Return the milliseconds of the hour within any of the spans."""
    return sum(end - start for start, end in _joined(spans, hour))


def cluster_size(periods: Sequence[CapacityPeriod], spans: Iterable[Span], hour: int) -> int:
    """Return the number of GPUs for most of the observed time; of the whole hour if it had none then."""
    whole = [(hour * 1000, hour * 1000 + HOUR_MS)]
    return _longest(periods, _joined(spans, hour), hour) or _longest(periods, whole, hour)


def _longest(periods: Sequence[CapacityPeriod], observed: list[tuple[int, int]], hour: int) -> int:
    changes: dict[int, int] = {}
    for capacity in periods:
        start, end = clip(capacity.start, capacity.end, hour)
        if start < end:
            changes[start] = changes.get(start, 0) + capacity.gpus
            changes[end] = changes.get(end, 0) - capacity.gpus
    edges = sorted({*changes, *(edge for span in observed for edge in span)})
    lengths: dict[int, int] = {}
    gpus = 0
    for start, end in pairwise(edges):
        gpus += changes.get(start, 0)
        if gpus and any(low <= start < high for low, high in observed):
            lengths[gpus] = lengths.get(gpus, 0) + end - start
    return max(lengths, key=lambda size: (lengths[size], size), default=0)


def _joined(spans: Iterable[Span], hour: int) -> list[tuple[int, int]]:
    """Return the spans within the hour in milliseconds, overlapping ones joined."""
    return _joined_ms(clip(start, end, hour) for start, end in spans)


def _joined_ms(spans: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for start, end in sorted(spans):
        if start >= end:
            continue
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined
