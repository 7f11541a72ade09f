"""Which holders may be evicted for a unit, and the views that show whether that could help.

Priorities count within a queue. A unit inside a guarantee first reclaims what others have borrowed, the youngest first.
Work inside its own guarantee is never evicted for another queue.
"""

from collections.abc import Iterator

import numpy as np

from gpufleet.queueing.placing import Sizes
from gpufleet.queueing.queues import Queues
from gpufleet.queueing.shares.order import FIRST
from gpufleet.queueing.snapshot import Snapshot, View
from gpufleet.queueing.units import Holder, Unit
from gpufleet.queueing.victims import Evictions, Targets, find_victims
from gpufleet.queueing.views import Evicted
from gpufleet.queueing.waiting import Integers, WaitingUnits

_RECLAIM = "reclaim"
_SPARE_VIEWS = 8
"""Views that are kept for units that may come again."""


class EvictionSearch:
    """Finds the victims for the units of a queue."""

    def __init__(self, snapshot: Snapshot, waiting: WaitingUnits, queues: Queues | None) -> None:
        self._snapshot = snapshot
        self._waiting = waiting
        self._queues = queues

    def targets(self, unit: Unit) -> Iterator[Targets]:
        """Yield the groups of holders that may be evicted for a unit, in the order in which to try them."""
        if (reclaim := self._borrowed(unit)) is not None:
            yield reclaim
        if unit.priority > self._snapshot.lowest_priority():
            yield self.lower(unit.queue, unit.priority)

    def lower(self, queue: str | None, priority: int) -> Targets:
        """Return the holders of lower priority, in the same queue if there are queues."""
        any_queue = self._queues is None

        def rank(holder: Holder) -> int | None:
            if holder.protected or holder.priority >= priority or not (any_queue or holder.queue == queue):
                return None
            return holder.priority

        return Targets(("lower", queue, priority), rank)

    def _borrowed(self, unit: Unit) -> Targets | None:
        """Return the holders of borrowed GPUs, the youngest first, if the unit is inside a guarantee."""
        if self._queues is None or unit.queue is None or self._waiting.ranks[unit.key][0] != FIRST[0]:
            return None
        entitlement = self._queues.entitlement(unit.queue, unit.least_asked)
        if entitlement is None:
            return None
        may = self._queues.may_reclaim(unit.queue, entitlement.level)

        def rank(holder: Holder) -> int | None:
            return None if holder.protected or not may(holder) else -int(holder.since)

        nodes = None if entitlement.models is None else self._nodes_with(entitlement.models)
        return Targets(("borrowed", unit.queue, entitlement), rank, nodes, reclaims=True)

    def find(
        self, unit: Unit, sizes: Sizes, targets: Targets, hidden: View | None, now: float
    ) -> Evictions | None:
        """Return the victims for a unit among these targets and its places; None if that does not help."""
        if targets.reclaims:
            # Who borrows changes with every start and end of a queue, so this view serves one search.
            view: View = Evicted(lambda holder: targets.rank(holder) is not None)
            self._snapshot.add_view(_RECLAIM, view)
        else:
            view = self.view(targets)
        try:
            if unit.level is not None and unit.level.required:
                return self._find_in_domain(unit, sizes, targets, view, hidden, now)
            return find_victims(self._snapshot, sizes, targets, view, hidden, now)
        finally:
            if targets.reclaims:
                self._snapshot.drop_view(_RECLAIM)

    def _find_in_domain(
        self, unit: Unit, sizes: Sizes, targets: Targets, view: View, hidden: View | None, now: float
    ) -> Evictions | None:
        assert unit.level is not None
        domains = self._snapshot.domains[unit.level.kinds[-1]].nodes
        for nodes in sorted(domains, key=lambda domain: -domain.bit_count()):
            evictions = find_victims(self._snapshot, sizes, targets, view, hidden, now, nodes)
            if evictions is not None:
                return evictions
        return None

    def view(self, targets: Targets) -> View:
        """Return the snapshot as if all targets had left."""
        view = self._snapshot.views.get(targets.key)
        if view is None:
            view = Evicted(lambda holder: targets.rank(holder) is not None)
            self._snapshot.add_view(targets.key, view)
        return view

    def drop_old_views(self, units: Integers) -> None:
        """Drop the views for queues and priorities of which no unit waits any more."""
        lower = [key for key in self._snapshot.views if isinstance(key, tuple) and key[0] == "lower"]
        if len(lower) > np.count_nonzero(units) + _SPARE_VIEWS:
            needed = {("lower", *target) for target, number in self._waiting.targets.items() if units[number]}
            for key in lower:
                if key not in needed:
                    self._snapshot.drop_view(key)

    def _nodes_with(self, models: frozenset[str]) -> int:
        """Return the nodes whose GPUs are all of these models, as bits."""
        tables, nodes = self._snapshot.tables, 0
        fitting = [all(gpu.model in models for gpu in shape.gpus) for shape in tables.shapes]
        for node, shape in enumerate(self._snapshot.shapes):
            if fitting[shape]:
                nodes |= 1 << node
        return nodes
