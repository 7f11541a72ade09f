"""Nodes with what is free on them and who has the rest, and how many members of each need fit.

`total[need]` is the sum of the counts of all nodes. A change of one node adds the difference of two rows, whatever the
number of needs, so "may this unit start?" is one comparison. Nodes in one state share a bucket: an integer with a bit
for each node. Copies share everything that is immutable, so they cost little.
"""

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from gpufleet.placement.node import CandidateGpu
from gpufleet.placement.pick import Pick
from gpufleet.placement.reasons import Reason
from gpufleet.queueing.needs import UNLIMITED, Amounts, less, more
from gpufleet.queueing.tables import Counts, Tables
from gpufleet.queueing.units import NEVER, Holder, Place

Held = tuple[Holder, Place]


@dataclass(frozen=True, slots=True)
class NodeSpec:
    """A node as the caller describes it. `node_class` is what the caller's `Exclusion` knows it by.

    `free` are the amounts of the tables' resources that no holder here takes; missing ones are unlimited. `domains` are
    its values of the topology levels, each as the tuple of all labels from the widest level down; None without one.
    """

    gpus: tuple[CandidateGpu, ...]
    node_class: Hashable = frozenset()
    free: Amounts = ()
    domains: tuple[Hashable, ...] = ()
    cordoned: bool = False
    ready: bool = True


class Snapshot:
    """The nodes by number, with counts; `holders` are all that have GPUs."""

    def __init__(self, tables: Tables, nodes: Iterable[NodeSpec]) -> None:
        self.tables = tables
        self.holders: dict[str, Holder] = {}
        self.occupancy: list[int] = []
        self.free: list[Amounts] = []
        self.on: list[tuple[Held, ...]] = []
        self.classes: list[int] = []
        self.shapes: list[int] = []
        self.states: list[int] = []
        self.buckets: dict[int, int] = {}
        """The nodes in each state, as bits."""
        self.views: dict[Hashable, View] = {}
        self.overlays: list[tuple[Hashable, ...]] = []
        """The keys of the views that differ on each node."""
        self.domains: list[Domains] = []
        self._priorities: Counter[int] = Counter()
        """The number of holders that may be evicted, by priority."""
        self.freed = 0
        """Grows whenever GPUs or other resources become free."""
        self.version = 0
        """Grows with every change of a node."""
        self.changed: Callable[[int], None] | None = None
        """Is called with each node whose holders change."""
        specs = list(nodes)
        for number, spec in enumerate(specs):
            self._append(number, spec)
        for kind in range(max((len(spec.domains) for spec in specs), default=0)):
            values = [spec.domains[kind] if kind < len(spec.domains) else None for spec in specs]
            self.domains.append(Domains(values))
        self.recount()

    def _append(self, number: int, spec: NodeSpec) -> None:
        tables = self.tables
        shape = tables.shape(spec.gpus, spec.cordoned, spec.ready)
        self.shapes.append(shape)
        self.classes.append(tables.node_class(spec.node_class))
        self.occupancy.append(tables.idle(shape))
        missing = len(tables.resources) - len(spec.free)
        self.free.append((*spec.free, *(UNLIMITED,) * missing))
        self.on.append(())
        self.overlays.append(())
        state = tables.state(self.classes[number], self.occupancy[number])
        self.states.append(state)
        self.buckets[state] = self.buckets.get(state, 0) | 1 << number

    def __len__(self) -> int:
        return len(self.states)

    # -- counts ----------------------------------------------------------------------------

    def recount(self) -> None:
        """Count all nodes again, after needs were added; views are made again when they are needed."""
        tables, width = self.tables, len(self.tables.needs)
        self._named: dict[int, tuple[int, ...]] = {}
        for need, wanted in enumerate(tables.needs):
            for node in bits(wanted.nodes or 0):
                self._named[node] = (*self._named.get(node, ()), need)
        self.counts = [
            self.count(node, state, free)
            for node, (state, free) in enumerate(zip(self.states, self.free, strict=True))
        ]
        self.total: Counts = (
            np.sum(self.counts, axis=0, dtype=np.int64)
            if self.counts and width
            else np.zeros(width, np.int64)
        )
        self.totals: Counts = np.zeros((8, width), np.int64)
        self.spare_rows = list(range(8))
        self.views.clear()
        self.overlays = [()] * len(self.states)
        for domains in self.domains:
            domains.counts = None

    def sync(self) -> None:
        """Count again if needs were added since the last time."""
        if len(self.total) != len(self.tables.needs):
            self.recount()

    def count(self, node: int, state: int, free: Amounts) -> Counts:
        """Return how many members of each need would fit on a node in this state with these free resources."""
        row = self.tables.limited(state, free)
        if node in self._named:
            row = row.copy()
            for need in self._named[node]:
                row[need] = self.tables.count(need, state, free)
        return row

    def domain_counts(self, kind: int) -> Counts:
        """Return how many members of each need fit in each domain of a topology level."""
        domains = self.domains[kind]
        if domains.counts is None:
            domains.counts = np.zeros((len(domains.values), len(self.tables.needs)), np.int64)
            for node, domain in enumerate(domains.of):
                if domain >= 0:
                    domains.counts[domain] += self.counts[node]
        return domains.counts

    # -- changes ---------------------------------------------------------------------------

    def take(self, holder: Holder) -> None:
        """Give its places to a holder; they may be overbooked."""
        assert holder.key not in self.holders
        self.holders[holder.key] = holder
        if not holder.protected:
            self._priorities[holder.priority] += 1
        for place in holder.places:
            node = place.node
            self.on[node] = (*self.on[node], (holder, place))
            occupancy = self.tables.taken(self.occupancy[node], place)
            self._set(node, occupancy, less(self.free[node], place.amounts))

    def release(self, key: str) -> Holder | None:
        """Free the places of a holder and return it; None if it has none."""
        holder = self.holders.pop(key, None)
        if holder is None:
            return None
        self.freed += 1
        if not holder.protected:
            self._priorities[holder.priority] -= 1
        for place in holder.places:
            node = place.node
            on = list(self.on[node])
            on.remove((holder, place))
            self.on[node] = tuple(on)
            self._set(
                node,
                self.without(node, self.occupancy[node], [(holder, place)]),
                more(self.free[node], place.amounts),
            )
        return holder

    def replace(self, holder: Holder) -> None:
        """Replace a holder by one with the same key and places. Copies of the snapshot keep the old one."""
        before = self.holders[holder.key]
        self.holders[holder.key] = holder
        for node in {place.node for place in holder.places}:
            self.on[node] = tuple(
                (holder, place) if other is before else (other, place) for other, place in self.on[node]
            )
            if self.changed is not None:
                self.changed(node)

    @contextmanager
    def excluding(self, holder: Holder) -> Iterator[None]:
        """Return a context in which a holder has nothing."""
        freed = self.freed
        self.release(holder.key)
        self.freed = freed
        try:
            yield
        finally:
            self.take(holder)

    def without(self, node: int, occupancy: int, leaving: Iterable[Held]) -> int:
        """Return the occupancy of a node after these holders have left it."""
        tables, gone = self.tables, list(leaving)
        if not any(place.instances for _, place in gone):
            for _, place in gone:
                occupancy = tables.returned(occupancy, place)
            return occupancy
        # MIG instances may have several holders for a moment, so the occupancy is derived again from those that stay.
        occupancy = tables.idle(self.shapes[node])
        for held in self.on[node]:
            if held not in gone:
                occupancy = tables.taken(occupancy, held[1])
        return occupancy

    def _set(self, node: int, occupancy: int, free: Amounts) -> None:
        self.version += 1
        self.occupancy[node], self.free[node] = occupancy, free
        before, state = self.states[node], self.tables.state(self.classes[node], occupancy)
        if state != before:
            bit = 1 << node
            self.states[node] = state
            left = self.buckets[before] ^ bit
            if left:
                self.buckets[before] = left
            else:
                del self.buckets[before]
            self.buckets[state] = self.buckets.get(state, 0) | bit
        old, new = self.counts[node], self.count(node, state, free)
        if new is not old:
            self._add(node, new - old)
            self.counts[node] = new
        for key in self.overlays[node]:
            self.views[key].update(self, node)
        for view in self.views.values():
            if view.follows and node not in view.counts:
                view.update(self, node)
        if self.changed is not None:
            self.changed(node)

    def _add(self, node: int, change: Counts) -> None:
        self.total += change
        self.totals += change
        for key in self.overlays[node]:
            self.views[key].total -= change
        for domains in self.domains:
            if domains.counts is not None and domains.of[node] >= 0:
                domains.counts[domains.of[node]] += change

    def lowest_priority(self) -> float:
        """Return the lowest priority of a holder that may be evicted; infinity if there is none."""
        return min((priority for priority, number in self._priorities.items() if number), default=NEVER)

    # -- questions -------------------------------------------------------------------------

    @property
    def all_nodes(self) -> int:
        """Return all nodes, as bits."""
        return (1 << len(self.states)) - 1

    def fits(self, need: int, node: int, occupancy: int, free: Amounts) -> Pick | None:
        """Return the GPUs that a member would get on a node in this occupancy with these free resources."""
        wanted = self.tables.needs[need]
        if wanted.nodes is not None and not wanted.nodes >> node & 1:
            return None
        if any(ask and left < ask for left, ask in zip(free, self.tables.amounts[need], strict=True)):
            return None
        if self.tables.exclusion(self.classes[node], need) is not Reason.NONE:
            return None
        chosen = self.tables.pick(need, occupancy)
        return chosen if isinstance(chosen, Pick) else None

    # -- views -----------------------------------------------------------------------------

    def add_view(self, key: Hashable, view: "View") -> None:
        """Add a view of the nodes; it is kept up to date until it is dropped."""
        if not self.spare_rows:
            have = len(self.totals)
            self.totals = np.vstack([self.totals, np.zeros_like(self.totals)])
            self.spare_rows = list(range(have, 2 * have))
            for other in self.views.values():
                other.total = self.totals[other.row]
        self.views[key] = view
        view.attach(self, key, self.spare_rows.pop())

    def drop_view(self, key: Hashable) -> None:
        """Remove a view, if it exists."""
        view = self.views.pop(key, None)
        if view is not None:
            for node in view.counts:
                self.overlays[node] = tuple(other for other in self.overlays[node] if other != key)
            self.spare_rows.append(view.row)

    # -- copies ----------------------------------------------------------------------------

    def copy(self) -> "Snapshot":
        """Return an independent copy without views."""
        twin = Snapshot.__new__(Snapshot)
        twin.tables, twin.shapes, twin.classes = self.tables, self.shapes[:], self.classes[:]
        twin.holders = self.holders.copy()
        twin.occupancy, twin.free, twin.on = self.occupancy[:], self.free[:], self.on[:]
        twin.states, twin.buckets, twin.counts = self.states[:], self.buckets.copy(), self.counts[:]
        twin.total, twin._named = self.total.copy(), self._named
        twin.views, twin.overlays = {}, [()] * len(self.states)
        twin.totals, twin.spare_rows = np.zeros_like(self.totals), list(range(len(self.totals)))
        twin.domains = [domains.copy() for domains in self.domains]
        twin._priorities = self._priorities.copy()
        twin.freed, twin.version, twin.changed = 0, 0, None
        return twin


class View:
    """The nodes with some differences. Subclasses say where and how.

    A view keeps its own counts only for the nodes on which it differs, and a total for all. Its total is one row of the
    snapshot's matrix, so a change of a node changes the totals of all views at once.
    """

    follows = False
    """Whether nodes that do not differ yet may do so after a change."""

    def __init__(self) -> None:
        self.counts: dict[int, Counts] = {}
        self.row = -1
        self.total: Counts
        self._key: Hashable = None

    def attach(self, snapshot: "Snapshot", key: Hashable, row: int) -> None:
        """Count the nodes that differ; the total is kept in this row of the snapshot."""
        self._key, self.row = key, row
        self.total = snapshot.totals[row]
        self.total[:] = snapshot.total
        for node in self.nodes(snapshot):
            self.update(snapshot, node)

    def nodes(self, snapshot: "Snapshot") -> Iterable[int]:
        """Return the nodes that may differ."""
        raise NotImplementedError

    def on(self, snapshot: "Snapshot", node: int) -> tuple[int, Amounts] | None:
        """Return occupancy and free resources of a node as this view has them; None if it does not differ."""
        raise NotImplementedError

    def update(self, snapshot: "Snapshot", node: int) -> None:
        """Count a node again, after a change there."""
        before, seen = self.counts.get(node), self.on(snapshot, node)
        if seen is None:
            if before is not None:
                self.total += snapshot.counts[node] - before
                del self.counts[node]
                snapshot.overlays[node] = tuple(key for key in snapshot.overlays[node] if key != self._key)
            return
        if before is None:
            before = snapshot.counts[node]
            snapshot.overlays[node] = (*snapshot.overlays[node], self._key)
        occupancy, free = seen
        state = snapshot.tables.state(snapshot.classes[node], occupancy)
        count = self.counts[node] = snapshot.count(node, state, free)
        if count is not before:
            self.total += count - before


class Domains:
    """The groups of nodes that have one value of a topology level."""

    def __init__(self, values: Sequence[Hashable]) -> None:
        """`values` are those of each node; None without one."""
        self.values = list(dict.fromkeys(value for value in values if value is not None))
        numbers = {value: number for number, value in enumerate(self.values)}
        self.of = [numbers[value] if value is not None else -1 for value in values]
        self.nodes = [0] * len(self.values)
        """The nodes of each domain, as bits."""
        for node, domain in enumerate(self.of):
            if domain >= 0:
                self.nodes[domain] |= 1 << node
        self.counts: Counts | None = None

    def copy(self) -> "Domains":
        """Return the same domains with counts of their own."""
        twin = Domains.__new__(Domains)
        twin.values, twin.of, twin.nodes = self.values, self.of, self.nodes
        twin.counts = self.counts.copy() if self.counts is not None else None
        return twin


def bits(mask: int) -> Iterator[int]:
    """Return the numbers of the set bits, the lowest first."""
    while mask:
        lowest = mask & -mask
        yield lowest.bit_length() - 1
        mask ^= lowest
