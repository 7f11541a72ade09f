"""A slow core without counts, views and memories: every unit and every node is tried every time."""

from collections.abc import Iterable, Sequence

import numpy as np

from gpufleet.placement.earliest import LEAST_REMAINING_S
from gpufleet.placement.pick import Pick
from gpufleet.queueing.core import Core
from gpufleet.queueing.ends import Kept
from gpufleet.queueing.evictions import EvictionSearch
from gpufleet.queueing.needs import Amounts, less, more
from gpufleet.queueing.placing import Sizes
from gpufleet.queueing.reservations import Reservation, Reservations
from gpufleet.queueing.snapshot import Snapshot, View
from gpufleet.queueing.units import NEVER, Holder, Level, Place, Unit
from gpufleet.queueing.victims import Evictions, Targets, lost_work
from gpufleet.queueing.waiting import Integers

Nodes = dict[int, tuple[int, Amounts]]
"""Occupancy and free resources of nodes."""


def nodes_of(snapshot: Snapshot, hidden: Iterable[Place], gone: Iterable[Holder] = ()) -> Nodes:
    """Return all nodes, derived from their holders, with hidden GPUs taken."""
    tables, away, found = snapshot.tables, list(gone), Nodes()
    for node in range(len(snapshot)):
        occupancy, free = tables.idle(snapshot.shapes[node]), snapshot.free[node]
        for holder, place in snapshot.on[node]:
            if holder in away:
                free = more(free, place.amounts)
            else:
                occupancy = tables.taken(occupancy, place)
        found[node] = occupancy, free
    for place in hidden:
        occupancy, free = found[place.node]
        found[place.node] = tables.taken(occupancy, place), free
    return found


def best(snapshot: Snapshot, nodes: Nodes, need: int, area: Iterable[int]) -> Place | None:
    """Return the place that costs least on these nodes."""
    options = []
    for node in area:
        occupancy, free = nodes[node]
        chosen = snapshot.fits(need, node, occupancy, free)
        if chosen is not None:
            options.append((snapshot.tables.cost(need, occupancy), node, chosen))
    if not options:
        return None
    _, node, chosen = min(options, key=lambda option: option[:2])
    return snapshot.tables.place(need, node, chosen)


def take(snapshot: Snapshot, nodes: Nodes, place: Place) -> None:
    occupancy, free = nodes[place.node]
    nodes[place.node] = snapshot.tables.taken(occupancy, place), less(free, place.amounts)


def place_all(snapshot: Snapshot, nodes: Nodes, sizes: Sizes, area: Iterable[int]) -> list[Place] | None:
    """Place members of one need, one after the other."""
    ((need, members),) = sizes
    nodes, places = dict(nodes), []
    for _ in range(members):
        place = best(snapshot, nodes, need, area)
        if place is None:
            return None
        take(snapshot, nodes, place)
        places.append(place)
    return places


def place_unit(snapshot: Snapshot, nodes: Nodes, sizes: Sizes, level: Level | None) -> list[Place] | None:
    """Place a unit; a level must be required."""
    if level is None:
        return place_all(snapshot, nodes, sizes, range(len(snapshot)))
    domains = snapshot.domains[level.kinds[0]]
    tables = snapshot.tables
    by_free = sorted(
        (sum(tables.open_milli(snapshot.occupancy[node]) for node in members), number, members)
        for number in range(len(domains.values))
        if (members := [node for node, domain in enumerate(domains.of) if domain == number])
    )
    tries = (place_all(snapshot, nodes, sizes, members) for *_, members in by_free)
    return next((places for places in tries if places is not None), None)


class ReferenceCore(Core):
    """The same rules, decided the slow way; units have members of one need."""

    def _promising(self, now: float) -> Integers:
        return np.arange(len(self.waiting))

    def _fit(
        self, unit: Unit, hidden: View | None, respected: Sequence[Reservation], own: Holder | None
    ) -> list[Place] | None:
        kept = [place for made in respected for place in made.places]
        nodes = nodes_of(self.snapshot, kept, [] if own is None else [own])
        sizes = self.waiting.sizes(unit)
        for size in sizes:
            if size is not sizes[-1] and own is None and self._exceeds(unit):
                continue
            if (places := place_unit(self.snapshot, nodes, size, unit.level)) is not None:
                return places
        return None

    def _refuse(self, key: object) -> None:
        """Remember nothing."""


class ReferenceSearch(EvictionSearch):
    """Victims for one member, by trying all sets of holders of each node."""

    core: ReferenceCore

    def find(
        self, unit: Unit, sizes: Sizes, targets: Targets, hidden: View | None, now: float
    ) -> Evictions | None:
        """Evict for one member only: what many members evict depends on the order of the search."""
        ((need, _),) = sizes
        ahead = self.core._ahead(self._waiting.position(unit))
        respected = self.core.reservations.respected(ahead, unit, now)
        kept = [place for made in respected for place in made.places]
        snapshot, options = self._snapshot, []
        for node in range(len(snapshot)):
            if targets.nodes is not None and not targets.nodes >> node & 1:
                continue
            may = list(dict.fromkeys(held for held, _ in snapshot.on[node] if targets.rank(held) is not None))
            found = self._cheapest(need, node, may, targets, kept, now)
            if found is not None:
                options.append(found)
        if not options:
            return None
        *_, node, gone = min(options, key=lambda option: option[:3])
        occupancy, free = nodes_of(snapshot, kept, gone)[node]
        chosen = snapshot.fits(need, node, occupancy, free)
        assert chosen is not None
        return Evictions((snapshot.tables.place(need, node, chosen),), tuple(gone))

    def _cheapest(
        self, need: int, node: int, may: list[Holder], targets: Targets, kept: list[Place], now: float
    ) -> tuple[int, tuple[object, ...], int, list[Holder]] | None:
        """Return the cheapest set of holders on a node that makes room, by trying all sets."""
        snapshot, found = self._snapshot, None

        def fits(gone: list[Holder]) -> bool:
            occupancy, free = nodes_of(snapshot, kept, gone)[node]
            return isinstance(snapshot.fits(need, node, occupancy, free), Pick)

        def rank(holder: Holder) -> int:
            known = targets.rank(holder)
            assert known is not None
            return -(2**31) if holder.leaving else known

        def name(holder: Holder) -> tuple[str, int]:
            first = next(place for held, place in snapshot.on[node] if held is holder)
            return holder.key, holder.places.index(first)

        may.sort(key=lambda holder: (rank(holder), name(holder)))
        for chosen in range(1, 1 << len(may)):
            gone = [holder for at, holder in enumerate(may) if chosen >> at & 1]
            highest = max(map(rank, gone))
            # Holders of higher rank stay if those of lower rank are enough.
            lower = [holder for holder in may if rank(holder) < highest]
            if not fits(gone) or (lower and fits(lower)):
                continue
            lost = sum(0.0 if holder.leaving else lost_work(holder, now) for holder in gone)
            pods = sum(len(holder.places) for holder in gone)
            cost = (lost, pods, sum(map(rank, gone)), tuple(map(name, gone)))
            if found is None or (highest, cost) < found[:2]:
                found = highest, cost, node, gone
        return found


class ReferenceReservations(Reservations):
    """Reservations that look at every node closely."""

    def _soonest(
        self, unit: Unit, made: Reservation | None, ahead: Sequence[Reservation], now: float
    ) -> tuple[tuple[Place, ...], float] | None:
        snapshot = self._snapshot
        ((need, members),) = _least(snapshot, unit)
        kept = [
            Kept(other.unit.key, place, NEVER if other.free_at is None else other.free_at)
            for other in ahead
            for place in other.places
        ]
        for area in self._areas(unit, made):
            nodes = [node for node in range(len(snapshot)) if area is None or area >> node & 1]
            drained = {
                node: _Drained(snapshot, node, now, [each for each in kept if each.place.node == node])
                for node in nodes
            }
            places, times = list[Place](), list[float]()
            while len(places) < members:
                offers = [
                    (offer, node) for node in nodes if (offer := drained[node].ready_at(need)) is not None
                ]
                if not offers:
                    break
                at, node = min(offers)
                places.append(drained[node].take(need))
                times.append(at)
            if len(places) == members:
                return tuple(places), max(times)
        return None


def _least(snapshot: Snapshot, unit: Unit) -> Sizes:
    (group,) = unit.groups
    return ((snapshot.tables.need(group.need), group.least),)


class _Drained:
    """A node whose holders leave one after the other, derived again for each question."""

    def __init__(self, snapshot: Snapshot, node: int, now: float, kept: list[Kept]) -> None:
        self._snapshot, self._node = snapshot, node
        here = [
            (h.expected_end(now, LEAST_REMAINING_S), h.key, place, False) for h, place in snapshot.on[node]
        ]
        here += [(each.free_at, each.key, each.place, True) for each in kept]
        self._leaving = sorted(here, key=lambda each: each[:2])
        self._taken: list[Place] = []
        self._at = now
        self._gone = 0

    def ready_at(self, need: int) -> float | None:
        """Return when a member fits."""
        found = self._find(need)
        return found[0] if found is not None else None

    def take(self, need: int) -> Place:
        """Take the GPUs that a member gets."""
        found = self._find(need)
        assert found is not None
        self._at, self._gone, chosen = found
        place = self._snapshot.tables.place(need, self._node, chosen)
        self._taken.append(place)
        return place

    def _find(self, need: int) -> tuple[float, int, Pick] | None:
        snapshot, tables, at = self._snapshot, self._snapshot.tables, self._at
        for gone in range(self._gone, len(self._leaving) + 1):
            if gone > self._gone:
                if self._leaving[gone - 1][0] == NEVER:
                    return None
                at = max(at, self._leaving[gone - 1][0])
            occupancy, free = tables.idle(snapshot.shapes[self._node]), snapshot.free[self._node]
            for number, (_, _, place, is_kept) in enumerate(self._leaving):
                if number >= gone:
                    occupancy = tables.taken(occupancy, place)
                elif not is_kept:
                    free = more(free, place.amounts)
            for place in self._taken:
                occupancy, free = tables.taken(occupancy, place), less(free, place.amounts)
            chosen = snapshot.fits(need, self._node, occupancy, free)
            if chosen is not None:
                return at, gone, chosen
        return None
