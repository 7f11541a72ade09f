"""Cut the allocation periods of a cluster to one hour and to the GPUs that existed.

An `HourAllocation` is a share of one GPU (or of unknown GPUs of a node) for a part of the hour. Two
corrections keep a bill from exceeding the capacity:

- A GPU is never allocated more than once. Where clocks disagree and two exclusive pods overlap, the
  newer one proves that the older one had released the GPU.
- A node never provides more GPUs than it has. If it would, the oldest pods lose their share first.

Allocations within these limits, the usual case, take a fast path and stay as they are.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain, pairwise
from typing import NamedTuple, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpufleet.model.hours import HOUR_MS, PPM
from gpufleet.model.periods import AllocationPeriod, CapacityPeriod

Period = TypeVar("Period", AllocationPeriod, CapacityPeriod)


class HourAllocation(NamedTuple):
    """A share of `ppm` millionths of a GPU for [start, end) Unix milliseconds."""

    period: int
    """Position of the allocation period in the input."""
    gpu: int
    """Index of the GPU; -1 for unknown GPUs, of which `ppm` may be several."""
    ppm: int
    start: int
    end: int


class HourCapacity(NamedTuple):
    """The number of GPUs that a node had for [start, end) Unix milliseconds."""

    gpus: int
    start: int
    end: int


def clip(start: float, end: float, hour: int) -> tuple[int, int]:
    """Return the part of a period within the hour, in Unix milliseconds; empty if start >= end."""
    low, high = hour * 1000, hour * 1000 + HOUR_MS
    return max(low, round(start * 1000)), min(high, round(end * 1000) if end else high)


def cut(periods: Iterable[Period], until: float) -> list[Period]:
    """Return the periods as far as they lie before `until`, none of them open."""
    return [
        msgspec.structs.replace(each, end=min(each.end or until, until))
        for each in periods
        if each.start < until
    ]


def hour_allocations(
    periods: Sequence[AllocationPeriod], capacity_periods: Iterable[CapacityPeriod], hour: int
) -> list[HourAllocation]:
    """Return what each period really held in the hour that starts at `hour` Unix seconds."""
    by_node: dict[str, list[int]] = {}
    for number, period in enumerate(periods):
        by_node.setdefault(period.node, []).append(number)
    capacities: dict[str, list[HourCapacity]] = {}
    for capacity in capacity_periods:
        start, end = clip(capacity.start, capacity.end, hour)
        if start < end:
            capacities.setdefault(capacity.node, []).append(HourCapacity(capacity.gpus, start, end))
    found: list[HourAllocation] = []
    for node, numbers in by_node.items():
        claimed = [each for number in numbers for each in _clipped(number, periods[number], hour)]
        if not fits(claimed, capacities.get(node, [])):
            claimed = _granted(claimed, capacities.get(node, []), _ages(periods, numbers))
        found += claimed
    return found


def as_columns(allocations: Sequence[HourAllocation]) -> NDArray[np.int64]:
    """Return the allocations as rows of integers."""
    flat = np.fromiter(chain.from_iterable(allocations), dtype=np.int64, count=5 * len(allocations))
    return flat.reshape(-1, 5)


def _clipped(number: int, period: AllocationPeriod, hour: int) -> list[HourAllocation]:
    start, end = clip(period.start, period.end, hour)
    if start >= end or period.gpus <= 0:
        return []
    ppm = max(1, min(PPM, round(period.share * PPM)))
    known = Counter(sorted(period.held)[: period.gpus])
    found = [HourAllocation(number, gpu, min(PPM, ppm * n), start, end) for gpu, n in known.items()]
    unknown = period.gpus - known.total()
    return [*found, HourAllocation(number, -1, ppm * unknown, start, end)] if unknown else found


def _ages(periods: Sequence[AllocationPeriod], numbers: Iterable[int]) -> dict[int, int]:
    """Rank the periods by start; the highest rank is the newest."""
    ordered = sorted(numbers, key=lambda n: (periods[n].start, periods[n].pod_uid))
    return {number: age for age, number in enumerate(ordered)}


def fits(claimed: Sequence[HourAllocation], capacities: Sequence[HourCapacity]) -> bool:
    """Return whether the allocations of one node surely fit its GPUs, by a bound that is cheap to check."""
    if not claimed:
        return True
    if not capacities:
        return False
    start = min(each.start for each in claimed)
    end = max(each.end for each in claimed)
    if len(capacities) != 1 or capacities[0].start > start or capacities[0].end < end:
        return False
    per_gpu: dict[int, int] = {}
    for each in claimed:
        per_gpu[each.gpu] = per_gpu.get(each.gpu, 0) + each.ppm
    return sum(per_gpu.values()) <= capacities[0].gpus * PPM and all(
        ppm <= PPM for gpu, ppm in per_gpu.items() if gpu >= 0
    )


def _granted(
    claimed: Sequence[HourAllocation], capacities: Sequence[HourCapacity], ages: dict[int, int]
) -> list[HourAllocation]:
    """Grant allocations interval by interval, newest pod first, and join equal neighbouring intervals."""
    moments = sorted({t for each in claimed for t in each[3:]} | {t for span in capacities for t in span[1:]})
    newest_first = sorted(claimed, key=lambda each: (-ages[each.period], each.gpu))
    granted: list[HourAllocation] = []
    last: dict[tuple[int, int], int] = {}
    for start, end in pairwise(moments):
        gpus = max((span.gpus for span in capacities if span.start <= start and end <= span.end), default=0)
        left = gpus * PPM
        left_of: dict[int, int] = {}
        for each in newest_first:
            if each.start > start or each.end < end:
                continue
            ppm = min(each.ppm, left)
            if each.gpu >= 0:
                ppm = min(ppm, left_of.get(each.gpu, PPM))
                left_of[each.gpu] = left_of.get(each.gpu, PPM) - ppm
            left -= ppm
            if ppm:
                _append(granted, last, each._replace(ppm=ppm, start=start, end=end))
    return granted


def _append(
    granted: list[HourAllocation], last: dict[tuple[int, int], int], allocation: HourAllocation
) -> None:
    """Append an allocation, or extend the last one of the same period and GPU."""
    at = last.get((allocation.period, allocation.gpu))
    if at is not None and granted[at].end == allocation.start and granted[at].ppm == allocation.ppm:
        granted[at] = granted[at]._replace(end=allocation.end)
        return
    last[allocation.period, allocation.gpu] = len(granted)
    granted.append(allocation)
