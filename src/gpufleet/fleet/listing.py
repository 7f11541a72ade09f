"""Lists of workloads: filtered, ordered, in pages that never repeat or drop a row.

Each order is kept sorted and changed only where workloads changed, so that a page costs no more at
10,000 workloads than at ten. What a filter lets through is found anew when the fleet changed, and
not more often than every `PATIENCE` seconds when it changes all the time.
"""

import time
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from gpufleet.fleet.state import Fleet
from gpufleet.fleet.workload_summary import Workload

PATIENCE = 0.25
KEPT_ANSWERS = 64
_MANY = 500
"""Changes from which on sorting everything is cheaper than moving each."""

Key = tuple[Any, ...]
"""What a workload is sorted by; its last part is the uid."""


class Filter(NamedTuple):
    """What a list is narrowed to; empty means any."""

    name: str = ""
    """A part of the name, in any case."""
    kind: str = ""
    namespace: str = ""
    status: str = ""
    source: str = ""

    def acceptor(self) -> Callable[[Workload], bool]:
        """What tells whether a workload belongs in the list; called for each of thousands."""
        name, kind, namespace, status, source = self.name.casefold(), *self[1:]

        def accepts(workload: Workload) -> bool:
            return (
                (not namespace or workload.namespace == namespace)
                and (not kind or workload.kind == kind)
                and (not status or workload.status == status)
                and (not source or workload.source == source)
                and (not name or name in workload.name.casefold())
            )

        return accepts


class Page(NamedTuple):
    """Some rows, and how many there are in all."""

    rows: list[Workload]
    total: int


class Order:
    """The keys of workloads, kept sorted."""

    def __init__(self, key: Callable[[Workload], Key | None]) -> None:
        self.sorted: list[Key] = []
        self._key = key
        self._keys: dict[str, Key] = {}

    def put(self, changed: Iterable[tuple[str, Workload | None]], many: bool) -> None:
        """Give workloads their new places; None for one that is no more."""
        for uid, workload in changed:
            new = self._key(workload) if workload is not None else None
            old = self._keys.pop(uid, None)
            if new is not None:
                self._keys[uid] = new
            if many or old == new:
                continue
            if old is not None:
                del self.sorted[bisect_left(self.sorted, old)]
            if new is not None:
                insort(self.sorted, new)
        if many:
            self.sorted = sorted(self._keys.values())


class Listing:
    """Answers questions for lists of one fleet's workloads."""

    def __init__(
        self, fleet: Fleet, *, patience: float = PATIENCE, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._fleet = fleet
        self._patience = patience
        self._clock = clock
        self._changed = fleet.watch_workloads()
        self._orders = {"start_at": Order(_by_start), "end_at": Order(_by_end), "consumers": Order(_by_gpus)}
        self._answers: dict[tuple[str, Filter], tuple[int, float, list[Workload]]] = {}

    def workloads(self, wanted: Filter, order: str, number: int, size: int, *, reverse: bool = False) -> Page:
        """Page `number` (from 1) of the workloads, living and ended.

        By `start_at` or `end_at`, newest first; by `gpus`, most first; by `name`. Or the other way round.
        """
        self._catch_up()
        order = order or "start_at"
        if wanted == Filter() and order in self._orders and not reverse:
            return self._page(self._orders[order], number, size)
        rows = self._accepted(order, wanted)
        first, last = (number - 1) * size, number * size
        if reverse:
            shown = rows[max(0, len(rows) - last) : max(0, len(rows) - first)][::-1]
            return Page(shown, len(rows))
        return Page(rows[first:last], len(rows))

    def consumers(self, number: int, size: int) -> Page:
        """Page `number` of the workloads that hold GPUs, most GPUs first, then by name."""
        self._catch_up()
        return self._page(self._orders["consumers"], number, size)

    def _page(self, order: Order, number: int, size: int) -> Page:
        keys = order.sorted[(number - 1) * size : number * size]
        rows = [found for key in keys if (found := self._workload(key[-1])) is not None]
        return Page(rows, len(order.sorted))

    def _catch_up(self) -> None:
        self._fleet.refresh()
        if not self._changed:
            return
        living, ended = self._fleet.workloads(), self._fleet.ended()
        changed = [
            (uid, living.get(uid) or (ended[uid].workload if uid in ended else None)) for uid in self._changed
        ]
        self._changed.clear()
        for order in self._orders.values():
            order.put(changed, len(changed) > _MANY)

    def _workload(self, uid: str) -> Workload | None:
        if (living := self._fleet.workloads().get(uid)) is not None:
            return living
        ended = self._fleet.ended().get(uid)
        return ended.workload if ended is not None else None

    def _accepted(self, order: str, wanted: Filter) -> list[Workload]:
        now = self._clock()
        kept = self._answers.get((order, wanted))
        if kept is not None and (kept[0] == self._fleet.version or now - kept[1] < self._patience):
            return kept[2]
        living, ended = self._fleet.workloads(), self._fleet.ended()
        accepts = wanted.acceptor()
        rows = []
        kept_order = self._orders.get(order, self._orders["start_at"])
        for key in kept_order.sorted:
            workload = living.get(key[-1]) or ended[key[-1]].workload
            if accepts(workload):
                rows.append(workload)
        if order in _SORTED_WHEN_ASKED:
            rows.sort(key=_SORTED_WHEN_ASKED[order])
        if len(self._answers) >= KEPT_ANSWERS:
            del self._answers[next(iter(self._answers))]
        self._answers[order, wanted] = (self._fleet.version, now, rows)
        return rows


def _by_gpus(workload: Workload) -> Key | None:
    if workload.gone or workload.gpus <= 0 or workload.status.ended:
        return None
    return (-workload.gpus, workload.name, workload.namespace, workload.uid)


# Few ask for these, and sorting 10,000 costs them milliseconds: not worth a sorted list that every change moves.
_SORTED_WHEN_ASKED: dict[str, Callable[[Workload], Key]] = {
    "gpus": lambda workload: (-workload.gpus, workload.name, workload.namespace, workload.uid),
    "name": lambda workload: (workload.name, workload.namespace, workload.uid),
}


def _by_start(workload: Workload) -> Key:
    return (-workload.started, workload.uid)


def _by_end(workload: Workload) -> Key:
    return (-workload.ended, workload.uid)
