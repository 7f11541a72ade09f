"""Reservations: GPUs that are kept for the first units of the queue that do not fit.

A reservation names the GPUs that are expected to become free first for all members. Units behind may use these GPUs
(backfill) only if they declare a run time that ends before the GPUs are needed. Units ahead ignore the reservation. If
a unit declares its run time, it is known when its GPUs will be free again, and units behind reserve them for then.
"""

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, replace

from gpufleet.placement.earliest import LEAST_REMAINING_S
from gpufleet.queueing.ends import Ends, Kept, held_by, soonest
from gpufleet.queueing.placing import sizes_of
from gpufleet.queueing.snapshot import Snapshot, View
from gpufleet.queueing.units import NEVER, Place, Unit
from gpufleet.queueing.views import Hidden

RECHOOSE_S = 60.0
"""Seconds after which GPUs that become free much earlier may replace a reservation."""

MOST_UNKNOWN = 1
"""Reservations without a known start: no unit behind may use their GPUs meanwhile."""

_MOST_DOMAINS = 8
"""Groups of nodes in which GPUs are sought for a unit that must stay in one."""


@dataclass(slots=True, eq=False)
class Reservation:
    """GPUs kept for a unit; `needed_at` is None if a holder of them does not declare when it ends."""

    unit: Unit
    places: tuple[Place, ...]
    made_at: float
    needed_at: float | None
    free_at: float | None
    """When the unit will have left the GPUs again; None if that is unknown."""
    looked_at: int = -1
    """The value of `Snapshot.freed` when the unit was last looked at."""


class Reservations:
    """Makes reservations for the first `most` units that do not fit; 0 turns them off."""

    def __init__(self, snapshot: Snapshot, most: int, ends: Ends | None = None) -> None:
        self._snapshot = snapshot
        self._ends = ends or Ends(snapshot)
        self.most = most
        self.made: list[Reservation] = []
        """In the order of their units."""
        self._impossible: dict[str, int] = {}
        """The value of `Snapshot.freed` when no GPUs could be reserved for a unit."""
        self.version = 0
        """Grows with every change."""

    def copy(self, snapshot: Snapshot) -> "Reservations":
        """Return the same reservations for a copy of the snapshot."""
        twin = Reservations(snapshot, self.most, self._ends.copy(snapshot))
        twin.made = [replace(made) for made in self.made]
        return twin

    def of(self, unit: Unit) -> Reservation | None:
        """Return the reservation of a unit."""
        return next((made for made in self.made if made.unit is unit), None)

    def is_full(self, ahead: Sequence[Reservation]) -> bool:
        """Return whether a unit behind these reservations gets none."""
        return len(ahead) >= self.most or sum(made.needed_at is None for made in ahead) >= MOST_UNKNOWN

    def respected(self, ahead: Iterable[Reservation], unit: Unit, now: float) -> tuple[Reservation, ...]:
        """Return those of the reservations ahead of a unit whose GPUs it may not use."""
        ends = NEVER if unit.declared is None else now + unit.declared
        return tuple(made for made in ahead if made.needed_at is None or ends > made.needed_at)

    def view(self, respected: Sequence[Reservation]) -> View | None:
        """Return the snapshot without the GPUs that these reservations keep."""
        if not respected:
            return None
        key: Hashable = ("kept", *map(id, respected))
        if key not in self._snapshot.views:
            self._snapshot.add_view(key, Hidden(place for made in respected for place in made.places))
        return self._snapshot.views[key]

    def is_due(self, unit: Unit, made: Reservation | None, now: float) -> bool:
        """Return whether a reservation of a unit should be made, or chosen again."""
        if made is None:
            return self._impossible.get(unit.key) != self._snapshot.freed
        return now - made.made_at >= RECHOOSE_S and made.looked_at != self._snapshot.freed

    def are_due(self, now: float) -> bool:
        """Return whether a reservation should be chosen again."""
        return any(self.is_due(made.unit, made, now) for made in self.made)

    def reserve(self, unit: Unit, ahead: Sequence[Reservation], now: float) -> None:
        """Keep, make or drop the reservation of a unit that does not fit."""
        made = self.of(unit)
        if self.is_full(ahead):
            self.drop(unit)
            return
        if not self.is_due(unit, made, now):
            return
        remaining = NEVER if made is None else self._ready_at(made, ahead, now) - now
        soonest_places = self._soonest(unit, made, ahead, now)
        if made is not None and (soonest_places is None or (soonest_places[1] - now) * 2 > remaining):
            places = made.places
        elif soonest_places is not None:
            places = soonest_places[0]
        else:
            self._impossible[unit.key] = self._snapshot.freed
            return
        self._put(unit, made, ahead, places, now)

    def drop(self, unit: Unit) -> None:
        """Drop the reservation of a unit, if it has one."""
        if any(made.unit is unit for made in self.made):
            self._replace([made for made in self.made if made.unit is not unit])

    def yielded(self, behind: Iterable[Reservation], places: Iterable[Place]) -> None:
        """Drop reservations behind a unit on the nodes of which it has taken GPUs; they are made again."""
        nodes = {place.node for place in places}
        gone = {id(made) for made in behind if any(place.node in nodes for place in made.places)}
        if gone:
            self._replace([made for made in self.made if id(made) not in gone])

    def looked_at(self) -> None:
        """Note that the units with reservations were looked at."""
        for made in self.made:
            made.looked_at = self._snapshot.freed

    def reorder(self, position: Callable[[Unit], int]) -> None:
        """Sort the reservations by the new positions of their units; those that overtook others are looked at again."""
        before = self.made
        self.made = sorted(before, key=lambda made: position(made.unit))
        for at, made in enumerate(self.made):
            if not set(map(id, before[: before.index(made)])) <= set(map(id, self.made[:at])):
                made.looked_at = -1
        self.version += 1

    def _put(
        self,
        unit: Unit,
        made: Reservation | None,
        ahead: Sequence[Reservation],
        places: tuple[Place, ...],
        now: float,
    ) -> None:
        needed = self._needed_at(places, ahead, now)
        free = None if needed is None or unit.declared is None else needed + unit.declared
        behind = self.made[len(ahead) + (made is not None) :]
        if made is None or made.places != places:
            nodes = {place.node for place in places}
            behind = [other for other in behind if not any(place.node in nodes for place in other.places)]
        kept = [*ahead, Reservation(unit, places, now, needed, free)]
        for other in behind:
            if not self.is_full(kept):
                kept.append(other)
        freed = made is not None and made.places != places
        self._replace(kept, freed=freed or len(kept) <= len(self.made) - (made is not None))
        kept[len(ahead)].looked_at = self._snapshot.freed

    def _replace(self, made: list[Reservation], *, freed: bool = True) -> None:
        """Use other reservations; `freed` if GPUs are kept no more."""
        self.made = made
        self.version += 1
        self._snapshot.freed += freed
        for key in [key for key in self._snapshot.views if isinstance(key, tuple) and key[0] == "kept"]:
            self._snapshot.drop_view(key)

    def _soonest(
        self, unit: Unit, made: Reservation | None, ahead: Sequence[Reservation], now: float
    ) -> tuple[tuple[Place, ...], float] | None:
        sizes = sizes_of(self._snapshot, unit)[-1]
        kept = [
            Kept(other.unit.key, place, NEVER if other.free_at is None else other.free_at)
            for other in ahead
            for place in other.places
        ]
        for area in self._areas(unit, made):
            earliest = soonest(self._snapshot, self._ends, sizes, now, kept, area)
            if earliest is not None:
                return earliest.places, earliest.ready_at
        return None

    def _areas(self, unit: Unit, made: Reservation | None) -> Iterable[int | None]:
        """Return the nodes among which GPUs are sought: all, or those of each domain that may take the unit."""
        if unit.level is None or not unit.level.required:
            return [None]
        domains = self._snapshot.domains[unit.level.kinds[-1]]
        last = sum({1 << place.node for place in made.places}) if made is not None else 0
        order = sorted(
            range(len(domains.nodes)),
            key=lambda domain: (not domains.nodes[domain] & last, -domains.nodes[domain].bit_count(), domain),
        )
        return [domains.nodes[domain] for domain in order[:_MOST_DOMAINS]]

    def _ready_at(self, made: Reservation, ahead: Sequence[Reservation], now: float) -> float:
        """Return when the reserved GPUs are expected to be free."""
        holders = held_by(self._snapshot, made.places)
        ends = [holder.expected_end(now, LEAST_REMAINING_S) for holder in holders]
        ends += (NEVER if other.free_at is None else other.free_at for other in _sharing(ahead, made.places))
        return max(ends, default=now)

    def _needed_at(self, places: Sequence[Place], ahead: Sequence[Reservation], now: float) -> float | None:
        """Return when these GPUs will be free at the latest; None if a holder of them does not say."""
        ends = [holder.declared_end for holder in held_by(self._snapshot, places)]
        ends += (other.free_at for other in _sharing(ahead, places))
        return None if None in ends else max([now, *(end for end in ends if end is not None)])


def _sharing(ahead: Iterable[Reservation], places: Sequence[Place]) -> list[Reservation]:
    """Return the reservations that keep some of these GPUs, too."""
    by_node: dict[int, list[Place]] = {}
    for place in places:
        by_node.setdefault(place.node, []).append(place)
    return [
        made
        for made in ahead
        if any(place.overlaps(mine) for place in made.places for mine in by_node.get(place.node, ()))
    ]
