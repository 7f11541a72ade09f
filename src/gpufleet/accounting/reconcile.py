"""Join stored periods with those of this process, so that every moment counts once.

A server that starts or takes over finds periods in the store that were open when the previous
server last wrote. For each pod or node, the newest stored period is continued:

- It stays open if nothing changed.
- It ends when this process saw the pod end or change.
- If the pod is gone, it ends when the pod was last known to exist.

Time that is stored already is never counted again, whatever the sources list.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import msgspec

from gpufleet.model.periods import AllocationPeriod, CapacityPeriod

Period = TypeVar("Period", AllocationPeriod, CapacityPeriod)


def reconcile(
    stored: Mapping[str, Period],
    observed: Iterable[Period],
    stored_until: float,
    key: Callable[[Period], str],
) -> tuple[list[Period], list[Period]]:
    """Return the periods to store, and those that stay open.

    `stored` has the newest stored period by key (pod or node), `observed` the periods of this
    process. The store is complete until `stored_until`.
    """
    by_key: dict[str, list[Period]] = {each: [] for each in stored}
    for period in observed:
        by_key.setdefault(key(period), []).append(period)
    changed: list[Period] = []
    still_open: list[Period] = []
    for each, periods in by_key.items():
        ordered = sorted(periods, key=lambda p: (p.start, not p.end))
        last = _continue(stored.get(each), ordered, stored_until, changed)
        if last is not None and not last.end:
            still_open.append(last)
    return changed, still_open


def _continue(
    last: Period | None, observed: list[Period], stored_until: float, changed: list[Period]
) -> Period | None:
    if last is not None and not last.end and not observed:
        last = _ended(last, stored_until)
        changed.append(last)
    for period in observed:
        if last is None:
            changed.append(period)
            last = period
        elif last.end:
            last = _append(last, period, changed)
        else:
            last = _continue_open(last, period, stored_until, changed)
    return last


def _append(last: Period, period: Period, changed: list[Period]) -> Period:
    """Add what remains of `period` after the closed period `last`."""
    rest = msgspec.structs.replace(period, start=max(period.start, last.end))
    if rest.end and rest.end <= rest.start:
        return last
    changed.append(rest)
    return rest


def _continue_open(last: Period, period: Period, stored_until: float, changed: list[Period]) -> Period:
    """Continue the open period `last` with the observed `period`."""
    if period.end and period.end <= last.start:
        return last
    if last.facts == period.facts:
        if period.end:
            last = msgspec.structs.replace(period, start=last.start)
            changed.append(last)
        return last
    split = period.start if period.start > last.start else max(last.start, stored_until)
    closed = _ended(last, min(split, period.end) if period.end else split)
    changed.append(closed)
    return _append(closed, period, changed)


def _ended(period: Period, end: float) -> Period:
    return msgspec.structs.replace(period, end=max(period.start, end))
