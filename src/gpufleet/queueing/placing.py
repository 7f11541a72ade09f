"""Place all members of a unit, or none; nothing is taken.

Each member gets the node that costs least (docs/placement.md), ties by number. A `Trial` is the snapshot with what its
members would take, and without what would leave for them; it keeps only the nodes that differ.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from heapq import heappop, heappush

import numpy as np

from gpufleet.placement.pick import Pick
from gpufleet.queueing.needs import Amounts, less, more
from gpufleet.queueing.snapshot import Held, Snapshot, View, bits
from gpufleet.queueing.tables import IMPOSSIBLE
from gpufleet.queueing.units import Level, Place, Unit

_MOST_ORDERS = 16
"""Orders of members that are tried if they need different nodes."""

_NONE = (IMPOSSIBLE, -1)


class Trial:
    """Nodes while members are placed one after the other; `hidden` are GPUs that may not be used."""

    def __init__(self, snapshot: Snapshot, hidden: View | None = None) -> None:
        self._snapshot = snapshot
        self._hidden = hidden
        self._changed: dict[int, tuple[int, Amounts]] = {}
        self._skip = 0
        """The changed nodes, as bits."""
        self._gone: dict[int, list[Held]] = {}
        self._taken: dict[int, list[Place]] = {}
        for node in hidden.counts if hidden is not None else ():
            self._put(node, self._start_of(node))

    def on(self, node: int) -> tuple[int, Amounts]:
        """Return occupancy and free resources of a node."""
        changed = self._changed.get(node)
        return changed if changed is not None else self._start_of(node)

    def copy_of(self, node: int) -> "Trial":
        """Return a trial of its own that starts with this state of one node."""
        twin = Trial(self._snapshot)
        twin._hidden = self._hidden
        twin._put(node, self.on(node))
        twin._gone[node], twin._taken[node] = self._gone.get(node, [])[:], self._taken.get(node, [])[:]
        return twin

    def fits(self, need: int, node: int) -> Pick | None:
        """Return the GPUs that a member gets on a node, if it fits there."""
        return self._snapshot.fits(need, node, *self.on(node))

    def take(self, place: Place) -> None:
        """Take the GPUs of a place."""
        occupancy, free = self.on(place.node)
        self._taken.setdefault(place.node, []).append(place)
        self._put(place.node, (self._snapshot.tables.taken(occupancy, place), less(free, place.amounts)))

    def leave(self, node: int, leaving: Iterable[Held]) -> None:
        """Let holders leave a node."""
        occupancy, free = self.on(node)
        for leaver in leaving:
            self._gone.setdefault(node, []).append(leaver)
            free = more(free, leaver[1].amounts)
            occupancy = self._snapshot.tables.returned(occupancy, leaver[1])
        if any(place.instances for _, place in self._gone.get(node, ())):
            occupancy = self._snapshot.without(node, self._start_of(node)[0], self._gone[node])
            for place in self._taken.get(node, ()):
                occupancy = self._snapshot.tables.taken(occupancy, place)
        self._put(node, (occupancy, free))

    def place(self, need: int, members: int, within: int | None = None) -> list[Place]:
        """Take the best places for as many of these members as fit, and return them; `within` are nodes as bits."""
        tables, places, heap = self._snapshot.tables, list[Place](), list[tuple[int, int]]()
        for node in self._changed:
            if within is None or within >> node & 1:
                self._offer(heap, need, node)
        unchanged = self._unchanged(need, within)
        first = next(unchanged, _NONE)
        while len(places) < members and (heap or first is not _NONE):
            if heap and heap[0] < first:
                _, node = heappop(heap)
            else:
                _, node = first
                first = next(unchanged, _NONE)
            chosen = tables.pick(need, self.on(node)[0])
            assert isinstance(chosen, Pick)
            place = tables.place(need, node, chosen)
            self.take(place)
            places.append(place)
            if len(places) < members:
                self._offer(heap, need, node)
        return places

    def _offer(self, heap: list[tuple[int, int]], need: int, node: int) -> None:
        if self.fits(need, node) is not None:
            heappush(heap, (self._snapshot.tables.cost(need, self.on(node)[0]), node))

    def _unchanged(self, need: int, within: int | None) -> Iterator[tuple[int, int]]:
        """Yield cost and number of the nodes on which a member fits and that did not differ at first, best first."""
        snapshot, tables = self._snapshot, self._snapshot.tables
        area = ~self._skip if within is None else within & ~self._skip
        if (named := tables.needs[need].nodes) is not None:
            fitting = [
                node for node in bits(named & area & snapshot.all_nodes) if snapshot.counts[node][need] > 0
            ]
            yield from sorted((tables.cost(need, snapshot.occupancy[node]), node) for node in fitting)
            return
        live = np.fromiter(snapshot.buckets, np.int64, len(snapshot.buckets))
        costs = tables.column(need)[live]
        while len(costs) and (cost := costs.min()) < IMPOSSIBLE:
            cheapest, nodes = costs == cost, 0
            for state in live[cheapest].tolist():
                nodes |= snapshot.buckets[state]
            for node in bits(nodes & area):
                if snapshot.counts[node][need] > 0:
                    yield int(cost), node
            live, costs = live[~cheapest], costs[~cheapest]

    def _put(self, node: int, what: tuple[int, Amounts]) -> None:
        self._changed[node] = what
        self._skip |= 1 << node

    def _start_of(self, node: int) -> tuple[int, Amounts]:
        if self._hidden is not None and node in self._hidden.counts:
            start = self._hidden.on(self._snapshot, node)
            assert start is not None
            return start
        return self._snapshot.occupancy[node], self._snapshot.free[node]


Sizes = tuple[tuple[int, int], ...]
"""Numbers of needs with the members to place."""


def sizes_of(snapshot: Snapshot, unit: Unit) -> list[Sizes]:
    """Return the members to place, as many as possible first, then those without which the unit does not start."""
    most, least = Counter[int](), Counter[int]()
    for group in unit.groups:
        need = snapshot.tables.need(group.need)
        most[need] += group.most
        least[need] += group.least
    return [tuple(most.items())] if most == least else [tuple(most.items()), tuple(least.items())]


def place_members(
    snapshot: Snapshot, sizes: Sizes, level: Level | None = None, hidden: View | None = None
) -> list[Place] | None:
    """Return places for all members, or None; a `level` keeps them together."""
    total = snapshot.total if hidden is None else hidden.total
    if any(total[need] < members for need, members in sizes):
        return None
    for kind in level.kinds if level is not None else ():
        for domain in domains_with_room(snapshot, sizes, kind):
            places = _place_all(snapshot, sizes, hidden, snapshot.domains[kind].nodes[domain])
            if places is not None:
                return places
    if level is not None and level.required:
        return None
    if level is not None and level.kinds:
        places = _fill_domains(snapshot, sizes, level.kinds[-1], hidden)
        if places is not None:
            return places
    return _place_all(snapshot, sizes, hidden, None)


def domains_with_room(snapshot: Snapshot, sizes: Sizes, kind: int) -> list[int]:
    """Return the domains that may have room for all members, those with the least free GPUs first."""
    counts = snapshot.domain_counts(kind)
    enough = np.ones(len(counts), np.bool_)
    for need, members in sizes:
        enough &= counts[:, need] >= members
    return sorted(np.flatnonzero(enough).tolist(), key=lambda domain: (_free(snapshot, kind, domain), domain))


def _fill_domains(snapshot: Snapshot, sizes: Sizes, kind: int, hidden: View | None) -> list[Place] | None:
    """Place members in one domain after the other, the emptiest first, so that few are used."""
    domains = snapshot.domains[kind]
    order = sorted(range(len(domains.nodes)), key=lambda domain: (-_free(snapshot, kind, domain), -domain))
    trial, places = Trial(snapshot, hidden), list[Place]()
    for need, members in sizes:
        left = members
        for area in (*(domains.nodes[domain] for domain in order), None):
            placed = trial.place(need, left, area) if left else []
            places += placed
            left -= len(placed)
        if left:
            return None
    return places


def _free(snapshot: Snapshot, kind: int, domain: int) -> int:
    tables = snapshot.tables
    return sum(
        tables.open_milli(snapshot.occupancy[node]) for node in bits(snapshot.domains[kind].nodes[domain])
    )


def _place_all(
    snapshot: Snapshot, sizes: Sizes, hidden: View | None, within: int | None
) -> list[Place] | None:
    """Place members of several needs in some orders: what did not fit goes first in the next one."""
    order = in_order(snapshot, sizes)
    for _ in range(_MOST_ORDERS if len(order) > 1 else 1):
        trial, places = Trial(snapshot, hidden), dict[int, list[Place]]()
        for need, members in order:
            places[need] = trial.place(need, members, within)
            if len(places[need]) < members:
                break
        else:
            return [place for need, _ in sizes for place in places[need]]
        order = [(need, members), *(each for each in order if each[0] != need)]
    return None


def in_order(snapshot: Snapshot, sizes: Sizes) -> list[tuple[int, int]]:
    """Return members with the fewest possible nodes first, then the largest."""
    needs = snapshot.tables.needs

    def rank(size: tuple[int, int]) -> tuple[int, int, int]:
        need = size[0]
        return int(snapshot.total[need]), -needs[need].request.gpu_milli, need

    return sorted(((need, members) for need, members in sizes if members), key=rank)
