"""Who had how much of which GPU, when, within one hour: holdings cut to fit the truth.

A stint is a part of one GPU (or of no GPU in particular, where nobody knows which) for a part of
the hour. Holdings become stints after two corrections, because a bill must not exceed what there
was to be had:

- A GPU is never more than whole. Where clocks disagree and two exclusive holders overlap, the
  newer one proves that the older had let go.
- A node never gives more GPUs than it has. Where it would, the oldest holders give way.

Within the limits nothing is touched, which is the ordinary case and the fast one.
"""

from collections.abc import Iterable, Sequence
from itertools import chain, pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from gpufleet.model.hours import HOUR_MS, PPM
from gpufleet.model.periods import AllocationPeriod, CapacityPeriod


class HourAllocation(NamedTuple):
    """Part `ppm` of GPU `gpu` (-1: of unknown ones) for [start, end) milliseconds, by holding number `holder`."""

    holder: int
    gpu: int
    ppm: int
    start: int
    end: int


class HourCapacity(NamedTuple):
    """GPUs that a node had for [start, end) milliseconds."""

    gpus: int
    start: int
    end: int


def clip(start: float, end: float, hour: int) -> tuple[int, int]:
    """The part of a period that lies in the hour, in Unix milliseconds; empty if start >= end."""
    low, high = hour * 1000, hour * 1000 + HOUR_MS
    return max(low, round(start * 1000)), min(high, round(end * 1000) if end else high)


def stints(
    holdings: Sequence[AllocationPeriod], capacities: Iterable[CapacityPeriod], hour: int
) -> list[HourAllocation]:
    """What each holding (by its number) really had in the hour that starts at `hour` Unix seconds."""
    by_node: dict[str, list[int]] = {}
    for number, holding in enumerate(holdings):
        by_node.setdefault(holding.node, []).append(number)
    spans: dict[str, list[HourCapacity]] = {}
    for capacity in capacities:
        start, end = clip(capacity.start, capacity.end, hour)
        if start < end:
            spans.setdefault(capacity.node, []).append(HourCapacity(capacity.gpus, start, end))
    found: list[HourAllocation] = []
    for node, numbers in by_node.items():
        wanted = [stint for number in numbers for stint in _wanted(number, holdings[number], hour)]
        if not fits(wanted, spans.get(node, [])):
            wanted = _cut(wanted, spans.get(node, []), _ages(holdings, numbers))
        found += wanted
    return found


def columns_of(found: Sequence[HourAllocation]) -> NDArray[np.int64]:
    """The stints as rows of whole numbers."""
    flat = np.fromiter(chain.from_iterable(found), dtype=np.int64, count=5 * len(found))
    return flat.reshape(-1, 5)


def _wanted(number: int, holding: AllocationPeriod, hour: int) -> list[HourAllocation]:
    start, end = clip(holding.start, holding.end, hour)
    if start >= end or holding.gpus <= 0:
        return []
    ppm = max(1, min(PPM, round(holding.share * PPM)))
    named = [
        HourAllocation(number, gpu, ppm, start, end) for gpu in sorted(set(holding.held))[: holding.gpus]
    ]
    rest = holding.gpus - len(named)
    return [*named, HourAllocation(number, -1, ppm * rest, start, end)] if rest else named


def _ages(holdings: Sequence[AllocationPeriod], numbers: Iterable[int]) -> dict[int, int]:
    """How new each holding is: the highest gives way last."""
    ordered = sorted(numbers, key=lambda n: (holdings[n].start, holdings[n].pod_uid))
    return {number: age for age, number in enumerate(ordered)}


def fits(wanted: Sequence[HourAllocation], spans: Sequence[HourCapacity]) -> bool:
    """Whether the stints of one node are within its GPUs at every moment, by a bound that is quick to check."""
    if not wanted:
        return True
    if not spans:
        return False
    start = min(stint.start for stint in wanted)
    end = max(stint.end for stint in wanted)
    if len(spans) != 1 or spans[0].start > start or spans[0].end < end:
        return False
    per_gpu: dict[int, int] = {}
    for stint in wanted:
        per_gpu[stint.gpu] = per_gpu.get(stint.gpu, 0) + stint.ppm
    return sum(per_gpu.values()) <= spans[0].gpus * PPM and all(
        ppm <= PPM for gpu, ppm in per_gpu.items() if gpu >= 0
    )


def _cut(
    wanted: Sequence[HourAllocation], spans: Sequence[HourCapacity], ages: dict[int, int]
) -> list[HourAllocation]:
    """Grant the stints moment by moment, the newest holder first, and join what stays the same."""
    moments = sorted({t for stint in wanted for t in stint[3:]} | {t for span in spans for t in span[1:]})
    order = sorted(wanted, key=lambda stint: (-ages[stint.holder], stint.gpu))
    granted: list[HourAllocation] = []
    last: dict[tuple[int, int], int] = {}
    for start, end in pairwise(moments):
        whole = max((span.gpus for span in spans if span.start <= start and end <= span.end), default=0)
        left = whole * PPM
        left_of: dict[int, int] = {}
        for stint in order:
            if stint.start > start or stint.end < end:
                continue
            ppm = min(stint.ppm, left)
            if stint.gpu >= 0:
                ppm = min(ppm, left_of.get(stint.gpu, PPM))
                left_of[stint.gpu] = left_of.get(stint.gpu, PPM) - ppm
            left -= ppm
            if ppm:
                _grant(granted, last, stint._replace(ppm=ppm, start=start, end=end))
    return granted


def _grant(granted: list[HourAllocation], last: dict[tuple[int, int], int], stint: HourAllocation) -> None:
    at = last.get((stint.holder, stint.gpu))
    if at is not None and granted[at].end == stint.start and granted[at].ppm == stint.ppm:
        granted[at] = granted[at]._replace(end=stint.end)
        return
    last[stint.holder, stint.gpu] = len(granted)
    granted.append(stint)
