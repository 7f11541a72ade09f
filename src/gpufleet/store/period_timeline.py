"""Keep the stored periods of one pod or node free of overlaps.

A new period decides what happened from its start until its end. Where it overlaps with stored ones:

- A stored period that began earlier with the same facts continues: it takes the end of the new one.
- Any other stored period that began earlier ends where the new one begins.
- A stored period that began later (it was clipped, or written while a clock was ahead) loses the time
  that the new one covers.
"""

from collections.abc import Iterable
from typing import TypeVar

import msgspec

from gpufleet.model.periods import AllocationPeriod, CapacityPeriod

Period = TypeVar("Period", AllocationPeriod, CapacityPeriod)


def put_periods(stored: Iterable[Period], new: Iterable[Period]) -> dict[float, Period]:
    """Return the periods of one holder by start, after `new` is added to those in `stored`."""
    timeline = {period.start: period for period in stored}
    for period in sorted(new, key=lambda period: period.start):
        before = timeline.pop(period.start, None) or _covering(timeline.values(), period)
        _put(timeline, _with_gpus(period, before))
    return timeline


def _covering(stored: Iterable[Period], period: Period) -> Period | None:
    return next((each for each in stored if each.start < period.start and _overlap(each, period)), None)


def _with_gpus(period: Period, before: Period | None) -> Period:
    """Return `period` with the GPUs of its stored version, if it only counts them itself."""
    if (
        isinstance(period, AllocationPeriod)
        and isinstance(before, AllocationPeriod)
        and before.held
        and not period.held
        and before.gpus == period.gpus
        and before.node == period.node
    ):
        return msgspec.structs.replace(period, held=before.held, models=before.models)
    return period


def _put(timeline: dict[float, Period], period: Period) -> None:
    for other in sorted(timeline.values(), key=lambda each: each.start):
        if not _overlap(other, period):
            continue
        del timeline[other.start]
        if other.start > period.start:
            if period.end and _end(other) > period.end:
                timeline[period.end] = msgspec.structs.replace(other, start=period.end)
        elif other.facts == period.facts:
            period = msgspec.structs.replace(period, start=other.start)
        else:
            timeline[other.start] = msgspec.structs.replace(other, end=period.start)
    timeline[period.start] = period


def _overlap(one: Period, other: Period) -> bool:
    return max(one.start, other.start) < min(_end(one), _end(other))


def _end(period: Period) -> float:
    return period.end or float("inf")
