"""List workloads: filtered, ordered, in pages that never repeat or drop a row.

Each order is a sorted list that is updated only where workloads changed, so that a page costs the
same for 10,000 workloads as for ten. Filtered lists are recomputed when the fleet changed, at most
every `MAX_STALENESS` seconds.
"""

import time
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from gpufleet.fleet.state import Fleet
from gpufleet.fleet.workloads.summary import Workload
from gpufleet.fleet.workloads.teams import is_user, team_of, user_of
from gpufleet.model.gpu_models import accepted_models
from gpufleet.model.label_selector import parse_label_selector
from gpufleet.model.namespaces import Namespaces
from gpufleet.model.workload import JOB_ID

MAX_STALENESS = 0.25
MAX_CACHED = 64
_MANY = 500
"""With more changes than this, sorting everything is cheaper than moving each."""

Key = tuple[Any, ...]
"""The sort key of a workload; its last part is the uid."""


class Filter(NamedTuple):
    """The filters of a list; empty means any."""

    name: str = ""
    """A part of the name, ignoring case, or the id of a Slurm job."""
    kind: str = ""
    namespace: str = ""
    status: str = ""
    source: str = ""
    model: str = ""
    """A GPU model that it holds, held or waits for, in any spelling."""
    namespaces: Namespaces = None
    """The namespaces that the caller may see."""
    label_selector: str = ""
    """A label selector that the workload's labels must match."""
    team: str = ""
    user: str = ""
    """The user in one of its spellings; see `gpufleet.fleet.workloads.teams.is_user`."""

    def predicate(self) -> Callable[[Workload], bool]:
        """Return a fast check whether a workload passes all but the model, for thousands of calls."""
        name, kind, namespace, status, source = self.name.casefold(), *self[1:5]
        visible, team, user = self.namespaces, self.team, self.user
        selects = parse_label_selector(self.label_selector) if self.label_selector else None

        def accepts(workload: Workload) -> bool:
            return (
                (visible is None or workload.namespace in visible)
                and (not namespace or workload.namespace == namespace)
                and (not kind or workload.kind == kind)
                and (not status or workload.status == status)
                and (not source or workload.source == source)
                and (not name or name in workload.name.casefold() or workload.annotations.get(JOB_ID) == name)
                and (selects is None or selects(workload.labels))
                and (not team or team_of(workload) == team)
                and (not user or is_user(user, user_of(workload)))
            )

        return accepts


class Page(NamedTuple):
    """Some rows, and the number of all rows."""

    rows: list[Workload]
    total: int


class Order:
    """The sorted keys of workloads."""

    def __init__(self, key: Callable[[Workload], Key | None]) -> None:
        self.sorted: list[Key] = []
        self._key = key
        self._keys: dict[str, Key] = {}

    def put(self, changed: Iterable[tuple[str, Workload | None]], many: bool) -> None:
        """Move changed workloads to their new positions; None for one that is gone."""
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
    """Pages of one fleet's workloads."""

    def __init__(
        self,
        fleet: Fleet,
        *,
        max_staleness: float = MAX_STALENESS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._fleet = fleet
        self._max_staleness = max_staleness
        self._clock = clock
        self._changed = fleet.watch_workloads()
        self._orders = {"start_at": Order(_by_start), "end_at": Order(_by_end), "consumers": Order(_by_gpus)}
        self._cache: dict[tuple[str, Filter], tuple[int, float, list[Workload]]] = {}
        """Fleet version, time and rows of filtered lists."""

    def workloads(
        self, filters: Filter, order: str, number: int, size: int, *, reverse: bool = False
    ) -> Page:
        """Return page `number` (from 1) of the workloads, existing and ended.

        Order by `start_at` or `end_at`, newest first; by `gpus`, most first; by `duration`, longest first; or
        by a key of `SORT_KEYS`, in alphabetical order.
        """
        self._update_orders()
        order = order or "start_at"
        if filters == Filter() and order in self._orders and not reverse:
            return self._page(self._orders[order], number, size)
        rows = self._filtered(order, filters)
        first, last = (number - 1) * size, number * size
        if reverse:
            shown = rows[max(0, len(rows) - last) : max(0, len(rows) - first)][::-1]
            return Page(shown, len(rows))
        return Page(rows[first:last], len(rows))

    def consumers(self, number: int, size: int, namespaces: Namespaces = None) -> Page:
        """Return page `number` of the workloads that hold GPUs, most GPUs first, then by name."""
        return self.workloads(Filter(namespaces=namespaces), "consumers", number, size)

    def _page(self, order: Order, number: int, size: int) -> Page:
        keys = order.sorted[(number - 1) * size : number * size]
        rows = [found for key in keys if (found := self._workload(key[-1])) is not None]
        return Page(rows, len(order.sorted))

    def _update_orders(self) -> None:
        self._fleet.refresh()
        if not self._changed:
            return
        existing, ended = self._fleet.workloads(), self._fleet.ended()
        changed = [
            (uid, existing.get(uid) or (ended[uid].workload if uid in ended else None))
            for uid in self._changed
        ]
        self._changed.clear()
        for order in self._orders.values():
            order.put(changed, len(changed) > _MANY)

    def _workload(self, uid: str) -> Workload | None:
        if (existing := self._fleet.workloads().get(uid)) is not None:
            return existing
        ended = self._fleet.ended().get(uid)
        return ended.workload if ended is not None else None

    def _models(self, workload: Workload) -> frozenset[str]:
        """Return the models that a workload holds or held, or those that it accepts while it holds none."""
        ended = self._fleet.ended().get(workload.uid) if workload.gone else None
        held = ended.models if ended else self._fleet.gpu_models(workload.counted)
        if held:
            return frozenset(held)
        return frozenset().union(*(accepted_models(model) for model in workload.models_requested))

    def _filtered(self, order: str, filters: Filter) -> list[Workload]:
        now = self._clock()
        cached = self._cache.get((order, filters))
        if cached is not None and (cached[0] == self._fleet.version or now - cached[1] < self._max_staleness):
            return cached[2]
        existing, ended = self._fleet.workloads(), self._fleet.ended()
        accepts = filters.predicate()
        models = accepted_models(filters.model) if filters.model else frozenset()
        rows = []
        base_order = self._orders.get(order, self._orders["start_at"])
        for key in base_order.sorted:
            workload = existing.get(key[-1]) or ended[key[-1]].workload
            if accepts(workload) and (not models or models & self._models(workload)):
                rows.append(workload)
        if order == "model":
            rows.sort(key=lambda workload: (min(self._models(workload), default="~"), *_identity(workload)))
        elif order == "duration":
            ends = time.time()
            rows.sort(key=lambda workload: (_by_duration(workload, ends), *_identity(workload)))
        elif order in SORT_KEYS:
            rows.sort(key=lambda workload: (SORT_KEYS[order](workload), *_identity(workload)))
        if len(self._cache) >= MAX_CACHED:
            del self._cache[next(iter(self._cache))]
        self._cache[order, filters] = (self._fleet.version, now, rows)
        return rows


def _by_gpus(workload: Workload) -> Key | None:
    if workload.gone or workload.gpus <= 0 or workload.status.ended:
        return None
    return (-workload.gpus, workload.name, workload.namespace, workload.uid)


# Rarely used, and sorting 10,000 takes milliseconds: not worth a list that every change updates.
SORT_KEYS: dict[str, Callable[[Workload], Any]] = {
    "gpus": lambda workload: -(workload.gpus or workload.requested),
    "name": lambda workload: "",
    "namespace": lambda workload: workload.namespace,
    "kind": lambda workload: workload.kind,
    "status": lambda workload: workload.status.value,
    "source": lambda workload: workload.source,
    "team": team_of,
    "user": lambda workload: user_of(workload) or "~",  # unknown users last
}


def _identity(workload: Workload) -> Key:
    return (workload.name, workload.namespace, workload.uid)


def _by_duration(workload: Workload, now: float) -> float:
    return workload.started - (workload.ended or now) if workload.started else 0.0


def _by_start(workload: Workload) -> Key:
    return (-workload.started, workload.uid)


def _by_end(workload: Workload) -> Key:
    return (-workload.ended, workload.uid)
