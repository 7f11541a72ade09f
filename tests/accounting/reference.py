"""A slow reference for one hour of accounting: interval by interval, sample by sample, in fractions.

Shares no code with `gpufleet.accounting`.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import pairwise
from typing import Any

from gpufleet.model.periods import AllocationPeriod, CapacityPeriod
from gpufleet.runtime.settings.prices import Price

HOUR = 3_600_000


@dataclass
class ReferenceAllocation:
    """A share of a GPU for an interval in which nothing changes."""

    period: AllocationPeriod
    gpu: int | None
    part: Fraction
    start: int
    end: int


def ms(seconds: float) -> int:
    return round(seconds * 1000)


def share_of(period: AllocationPeriod) -> Fraction:
    return Fraction(max(1, min(1_000_000, round(period.share * 1_000_000))), 1_000_000)


def reference_allocations(
    hour: int, periods_given: Iterable[AllocationPeriod], capacities: Sequence[CapacityPeriod]
) -> list[ReferenceAllocation]:
    low, high = hour * 1000, hour * 1000 + HOUR
    periods = []
    for period in periods_given:
        start, end = max(low, ms(period.start)), min(high, ms(period.end) if period.end else high)
        if start < end:
            periods.append((period, start, end))
    moments = {low, high}
    for _, start, end in periods:
        moments |= {start, end}
    for capacity in capacities:
        moments |= {
            min(high, max(low, ms(capacity.start))),
            min(high, ms(capacity.end)) if capacity.end else high,
        }
    ordered = sorted(moment for moment in moments if low <= moment <= high)
    had: list[ReferenceAllocation] = []
    for start, end in pairwise(ordered):
        left: dict[str, Fraction] = {}
        for capacity in capacities:
            if ms(capacity.start) <= start and (not capacity.end or end <= ms(capacity.end)):
                left[capacity.node] = max(left.get(capacity.node, Fraction(0)), Fraction(capacity.gpus))
        whole: dict[tuple[str, int], Fraction] = defaultdict(lambda: Fraction(1))
        present = [h for h, s, e in periods if s <= start and end <= e]
        for period in sorted(present, key=lambda h: (h.start, h.pod_uid), reverse=True):
            named = sorted(period.held)[: period.gpus]
            unnamed = period.gpus - len(named)
            claimed: list[tuple[int | None, Fraction]] = []
            if unnamed:
                claimed.append((None, share_of(period) * unnamed))
            claimed += [
                (gpu, min(Fraction(1), named.count(gpu) * share_of(period))) for gpu in sorted({*named})
            ]
            for gpu, part in claimed:
                granted = min(part, left.get(period.node, Fraction(0)))
                if gpu is not None:
                    granted = min(granted, whole[period.node, gpu])
                    whole[period.node, gpu] -= granted
                left[period.node] = left.get(period.node, Fraction(0)) - granted
                if granted:
                    had.append(ReferenceAllocation(period, gpu, granted, start, end))
    return had


def capacity_hours(hour: int, capacities: Iterable[CapacityPeriod]) -> float:
    low, high = hour * 1000, hour * 1000 + HOUR
    total = 0
    for capacity in capacities:
        start, end = max(low, ms(capacity.start)), min(high, ms(capacity.end) if capacity.end else high)
        total += max(0, end - start) * capacity.gpus
    return float(Fraction(total, HOUR))


def observed_share(hour: int, spans: Iterable[tuple[float, float]]) -> float:
    """Count the milliseconds of the hour that lie in a span, second by second."""
    inside: set[int] = set()
    for start, end in spans:
        inside.update(range(max(hour, round(start)), min(hour + 3600, round(end))))
    return len(inside) * 1000 / HOUR


def gpu_hours(had: Iterable[ReferenceAllocation]) -> float:
    return float(sum((h.part * (h.end - h.start) for h in had), Fraction(0)) / HOUR)


def model(had: ReferenceAllocation) -> str:
    if had.gpu is not None and had.period.models:
        return had.period.models[had.period.held.index(had.gpu)]
    return had.period.model


def price(had: ReferenceAllocation, prices: Sequence[Price], hour: int) -> Fraction:
    """Return the price of a GPU-hour: the newest entry of the first kind that has one."""
    wanted = model(had), had.period.source
    for kind in (wanted, (wanted[0], ""), ("", wanted[1]), ("", "")):
        valid = sorted((p.start, p.price) for p in prices if (p.model, p.source) == kind and p.start <= hour)
        if valid:
            return Fraction(str(valid[-1][1]))
    return Fraction(0)


def half_up(value: Fraction) -> int:
    return int(value + Fraction(1, 2)) if value >= 0 else -int(-value + Fraction(1, 2))


def percentile(values: Sequence[int], percent: int) -> float:
    ordered = sorted(values)
    at = Fraction((len(ordered) - 1) * percent, 100)
    low = int(at)
    rest = at - low
    high = ordered[low + 1] if rest else ordered[low]
    return float((ordered[low] * (1 - rest) + high * rest) / 10_000)


Sample = tuple[str, int, int, float]
"""Node, GPU, time in ms, percent."""


@dataclass
class Hit:
    """A sample with the allocation it is attributed to."""

    had: ReferenceAllocation
    time: int
    value: int


def hits(had: Iterable[ReferenceAllocation], samples: Iterable[Sample]) -> list[Hit]:
    return [
        Hit(h, time, round(value * 10_000))
        for node, gpu, time, value in samples
        for h in had
        if h.period.node == node and h.gpu == gpu and h.start <= time < h.end
    ]


def idle_hours(found: Iterable[Hit], had: Sequence[ReferenceAllocation], step: int) -> float:
    """Return the time below 5%: from the sample on, while the same period has the same share of the GPU."""
    total = Fraction(0)
    for hit in found:
        if hit.value >= 5 * 10_000:
            continue
        total += hit.had.part * (_until(hit, had, hit.time + step) - hit.time)
    return float(total / HOUR)


def _until(hit: Hit, had: Sequence[ReferenceAllocation], stop: int) -> int:
    """Return until when the period of a sample has the same share of the GPU, at most `stop`."""
    end, grown = hit.time, True
    while grown and end < stop:
        grown = False
        for h in had:
            same = h.period is hit.had.period and h.gpu == hit.had.gpu and h.part == hit.had.part
            if same and h.start <= end < h.end:
                end, grown = min(stop, h.end), True
    return end


def extremes(
    found: Sequence[Hit],
    had: Sequence[ReferenceAllocation],
    readings: Iterable[Sample],
    step: int,
) -> list[int]:
    """Return all readings of the steps in which one period had the same share of the GPU, and the samples."""
    values = [hit.value for hit in found]
    for hit in found:
        if _until(hit, had, hit.time + step) < hit.time + step:
            continue
        values += [
            round(value * 10_000)
            for node, gpu, time, value in readings
            if (node, gpu) == (hit.had.period.node, hit.had.gpu) and hit.time <= time < hit.time + step
        ]
    return values


def mean(found: Sequence[Hit]) -> float | None:
    weight = sum((hit.had.part for hit in found), Fraction(0))
    if not weight:
        return None
    return half_up(sum((hit.value * hit.had.part for hit in found), Fraction(0)) / weight) / 10_000


def spread(values: Sequence[int], found: Sequence[Hit], read: Sequence[int] | None = None) -> dict[str, Any]:
    """Return the distribution of `values`; the extremes are those of `read` if given."""
    read = read or values
    if not values:
        return {"samples": 0, "mean": None, "highest": None, "lowest": None, "p50": None, "p95": None}
    return {
        "samples": len(values),
        "mean": mean(found),
        "highest": max(read) / 10_000,
        "lowest": min(read) / 10_000,
        "p50": percentile(values, 50),
        "p95": percentile(values, 95),
    }


def moments(found: Sequence[Hit]) -> list[int]:
    by_time: dict[int, list[Hit]] = defaultdict(list)
    for hit in found:
        by_time[hit.time].append(hit)
    values = []
    for at in by_time.values():
        weight = sum((hit.had.part for hit in at), Fraction(0))
        values.append(half_up(sum((hit.value * hit.had.part for hit in at), Fraction(0)) / weight))
    return values


def energy(had: Iterable[ReferenceAllocation], power: Iterable[Sample], step: int) -> int | None:
    """Return millijoules: each reading of power until the next one, while the period has that share of the GPU."""
    found, total, had = False, 0, list(had)
    for node, gpu, time, watts in power:
        for h in had:
            if h.period.node != node or h.gpu != gpu or not h.start <= time < h.end:
                continue
            found, end = True, h.end
            for later in sorted(
                (o for o in had if o.period is h.period and o.gpu == gpu), key=lambda o: o.start
            ):
                if later.start == end and later.part == h.part:
                    end = later.end
            until = min(end, time + step)
            total += half_up(Fraction(round(watts * 1000) * (until - time), 1000) * h.part)
    return total if found else None


def mean_power(
    power: dict[tuple[str, int, int], float], joules: dict[tuple[str, int, int], float], step: int
) -> dict[tuple[str, int, int], float]:
    """Return watts by node, GPU and second: from the energy counter where it tells, else as read.

    It does not where it is missing at either end of a step, was reset, or rises faster than a GPU can draw.
    """
    found = dict(power)
    for (node, gpu, at), before in joules.items():
        after = joules.get((node, gpu, at + step))
        if after is not None and 0 <= (after - before) / step <= 2500:
            found[node, gpu, at] = (after - before) / step
    return found


def grouped(
    had: Iterable[ReferenceAllocation], key: Callable[[AllocationPeriod], Any]
) -> dict[Any, list[ReferenceAllocation]]:
    groups: dict[Any, list[ReferenceAllocation]] = defaultdict(list)
    for h in had:
        groups[key(h.period)].append(h)
    return groups


def pods_over_time(had: Sequence[ReferenceAllocation]) -> tuple[float, int, int, float]:
    """Return the mean, highest and lowest number of concurrent pods, and the highest number of GPUs."""
    edges = sorted({h.start for h in had} | {h.end for h in had})
    lengths, counts, parts = [], [], []
    for start, end in pairwise(edges):
        present = [h for h in had if h.start <= start and end <= h.end]
        if present:
            lengths.append(end - start)
            counts.append(len({h.period.pod_uid for h in present}))
            parts.append(sum((h.part for h in present), Fraction(0)))
    mean_pods = Fraction(sum(c * n for c, n in zip(counts, lengths, strict=True)), sum(lengths))
    return float(mean_pods), max(counts), min(counts), float(max(parts))
