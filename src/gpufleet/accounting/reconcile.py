"""Join the periods of an earlier life with those that this process saw: every moment counted once.

A server that starts, or takes over, finds periods in the store that were open when the server
before it wrote last, and knows what its own picture says. Of each pod (or node) the newest
stored period is continued: it goes on where nothing changed, ends where the pod is seen to have ended
or changed, and where the pod is gone without a word it ends when it was last known to be there. What
is stored already is never told a second time, whatever the sources list again.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import msgspec

from gpufleet.model.periods import AllocationPeriod, CapacityPeriod

Period = TypeVar("Period", AllocationPeriod, CapacityPeriod)


def reconcile(
    stored: Mapping[str, Period],
    told: Iterable[Period],
    last_known: float,
    holder: Callable[[Period], str],
) -> tuple[list[Period], list[Period]]:
    """The periods to store, and those that go on.

    `stored` has the newest stored period of each holder, `told` what this process saw, `last_known`
    is the moment until which the store is complete.
    """
    by_holder: dict[str, list[Period]] = {key: [] for key in stored}
    for period in told:
        by_holder.setdefault(holder(period), []).append(period)
    changed: list[Period] = []
    lasting: list[Period] = []
    for key, periods in by_holder.items():
        last = _continue(
            stored.get(key), sorted(periods, key=lambda p: (p.start, not p.end)), last_known, changed
        )
        if last is not None and not last.end:
            lasting.append(last)
    return changed, lasting


def _continue(
    last: Period | None, told: list[Period], last_known: float, changed: list[Period]
) -> Period | None:
    if last is not None and not last.end and not told:
        last = _ended(last, last_known)
        changed.append(last)
    for period in told:
        if last is None:
            changed.append(period)
            last = period
        elif last.end:
            last = _after(last, period, changed)
        else:
            last = _over(last, period, last_known, changed)
    return last


def _after(last: Period, period: Period, changed: list[Period]) -> Period:
    """What is left of `period` behind one that is closed."""
    begun = msgspec.structs.replace(period, start=max(period.start, last.end))
    if begun.end and begun.end <= begun.start:
        return last
    changed.append(begun)
    return begun


def _over(last: Period, period: Period, last_known: float, changed: list[Period]) -> Period:
    """Continue an open period with what was seen since."""
    if period.end and period.end <= last.start:
        return last
    if _facts(last) == _facts(period):
        if period.end:
            last = _ended(last, period.end)
            changed.append(last)
        return last
    split = period.start if period.start > last.start else max(last.start, last_known)
    closed = _ended(last, min(split, period.end) if period.end else split)
    changed.append(closed)
    return _after(closed, period, changed)


def _ended(period: Period, end: float) -> Period:
    return msgspec.structs.replace(period, end=max(period.start, end))


def _facts(period: Period) -> object:
    return msgspec.structs.replace(period, start=0.0, end=0.0)
