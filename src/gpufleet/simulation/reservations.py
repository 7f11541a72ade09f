"""Reservations of a simulation: the rules of the scheduler's `planning/reserving.py` on simulated units.

The scheduler looks at the 1,000 nodes with the most free GPUs. Here the nodes are first ordered by the time at
which enough of their GPUs are free, from a table of expected ends, and only the first are looked at closely.
"""

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpufleet.placement import Fits, earliest
from gpufleet.placement.earliest import LEAST_REMAINING_S
from gpufleet.placement.request import WHOLE, Request
from gpufleet.simulation.fleet import Fleet
from gpufleet.simulation.unit import Unit
from gpufleet.simulation.waiting_units import Order

RECHOOSE_S = 60.0
MOST_UNKNOWN = 1
"""As in the scheduler."""

_ALL_S = 600.0
"""Simulated seconds after which the times of nodes on which nothing has changed are computed again."""

_FEW_NODES = 64
"""Nodes that are looked at closely, besides those that a gang needs."""


@dataclass(slots=True)
class Reservation:
    """GPUs kept for a unit; see the scheduler's `Reservation`."""

    unit: Unit
    order: Order
    places: tuple[Fits, ...]
    made_at: float
    needed_at: float | None = None
    free_at: float | None = None


class Reservations:
    """Makes, keeps and drops the reservations of the first `most` units that do not fit."""

    def __init__(self, fleet: Fleet, most: int) -> None:
        self._fleet = fleet
        self._most = most
        self._made: dict[int, Reservation] = {}
        self._drains = _DrainTimes(fleet, self._end_of)
        self.lifted = False
        """Whether a reservation was dropped, so that other units may fit."""

    def __bool__(self) -> bool:
        return bool(self._made)

    def let_end(self, at: float) -> bool:
        """Return whether a unit that ends then may use some reserved GPUs before they are needed."""
        return any(made.needed_at is not None and at <= made.needed_at for made in self._made.values())

    @property
    def last(self) -> Order | None:
        """Return the order of the last unit with a reservation."""
        return max((made.order for made in self._made.values()), default=None)

    @property
    def numbers(self) -> set[int]:
        """Return the units with reservations."""
        return set(self._made)

    def ahead(self, unit: Unit, order: Order) -> set[int]:
        """Return the reserving units ahead of a unit."""
        return {number for number, made in self._made.items() if made.order < order and number != unit.number}

    def full(self, order: Order) -> bool:
        """Return whether a unit with this order gets no reservation: there are enough ahead of it."""
        ahead = [made for made in self._made.values() if made.order < order]
        unknown = sum(made.needed_at is None for made in ahead)
        return len(ahead) >= self._most or unknown >= MOST_UNKNOWN

    def ignored(self, unit: Unit, order: Order, now: float) -> tuple[int, ...]:
        """Return the reservations that a unit may use: its own, those behind it, and those for backfill."""
        ends_at = now + unit.declared if unit.declared is not None else None
        return tuple(
            number
            for number, made in self._made.items()
            if made.order >= order
            or number == unit.number
            or (ends_at is not None and made.needed_at is not None and ends_at <= made.needed_at)
        )

    def lift(self, numbers: Collection[int]) -> None:
        """Release the GPUs of these reservations for a trial."""
        for number in numbers:
            for at in range(len(self._made[number].places)):
                self._fleet.release(f"r{number}.{at}")

    def apply(self, numbers: Collection[int]) -> None:
        """Keep the GPUs of these reservations again, where they still exist."""
        for number in numbers:
            if (made := self._made.get(number)) is not None:
                self._hold(made)

    def drop(self, number: int, *, lifted: bool = False) -> None:
        """Drop the reservation of a unit; `lifted` if its GPUs are released for a trial now."""
        if number in self._made:
            if not lifted:
                self.lift((number,))
            del self._made[number]
            self.lifted = True

    def reorder(self, order: Callable[[Unit], Order]) -> None:
        """Use the present order of the units."""
        for made in self._made.values():
            made.order = order(made.unit)

    def yielded(self, order: Order, places: Sequence[Fits]) -> None:
        """Drop reservations behind a unit on the nodes of which it has taken GPUs."""
        nodes = {fits.node for fits in places}
        for number, made in list(self._made.items()):
            if made.order > order and any(fits.node in nodes for fits in made.places):
                self.drop(number)

    def reserve(self, unit: Unit, order: Order, now: float) -> None:
        """Keep, make or drop the reservation of a unit that does not fit."""
        if self.full(order):
            self.drop(unit.number)
            return
        known = self._made.get(unit.number)
        if known is not None and not all(map(self._fleet.inventory.offers, known.places)):
            self.drop(unit.number)
            known = None
        if known is not None:
            known.order = order
            if now - known.made_at < RECHOOSE_S:
                return
        remaining = self._expected(known, now) - now if known is not None else float("inf")
        behind = [number for number, made in self._made.items() if made.order > order]
        hidden = [*behind, *([unit.number] if known is not None else [])]
        self.lift(hidden)
        found = self._earliest(unit, now)
        self.apply(hidden)
        if found is None or (known is not None and (found[1] - now) * 2 > remaining):
            if known is not None:
                self._renew(known, known.places, now)
                self._drop_beyond()
            return
        self.drop(unit.number)
        made = Reservation(unit, order, found[0], now)
        self.yielded(order, found[0])
        self._made[unit.number] = made
        self._renew(made, found[0], now)
        self._hold(made)
        self._drop_beyond()

    def _drop_beyond(self) -> None:
        """Drop the reservations behind as many as there may be."""
        for other in list(self._made.values()):
            if self.full(other.order):
                self.drop(other.unit.number)

    def _renew(self, made: Reservation, places: tuple[Fits, ...], now: float) -> None:
        made.places, made.made_at = places, now
        made.needed_at = self._needed_at(made, now)
        declared = made.unit.declared
        made.free_at = None if made.needed_at is None or declared is None else made.needed_at + declared

    def _hold(self, made: Reservation) -> None:
        for at, fits in enumerate(made.places):
            self._fleet.hold(f"r{made.unit.number}.{at}", fits)

    def _earliest(self, unit: Unit, now: float) -> tuple[tuple[Fits, ...], float] | None:
        self._now = now
        nodes = self._drains.first_nodes(unit, now)
        requests = [unit.request] * unit.members
        found = earliest(
            self._fleet.inventory, requests, [nodes] * unit.members, lambda h: self._end_of(h, now), _Room()
        )
        return (found.places, found.ready_at) if found is not None else None

    def _end_of(self, holder: str, now: float) -> float | None:
        """Return when a unit, or a reservation, is expected to leave its GPUs; None if that is unknown."""
        end = self._declared_end_of(holder, now)
        if end is not None or holder[0] == "r":
            return end
        started, _ = self._run_of(holder, now)
        return now + max(now - started, LEAST_REMAINING_S)

    def _declared_end_of(self, holder: str, now: float) -> float | None:
        """Return when a unit, or a reservation, leaves its GPUs at the latest; None if that is unknown.

        The planner sees that pods terminate only after the walk over the queue in which it has evicted them.
        """
        if holder[0] == "r":
            made = self._made.get(_number(holder))
            return made.free_at if made is not None else None
        if holder[0] == "t" and _number(holder) not in self._fleet.just_evicted:
            return self._fleet.held_until[holder]
        started, declared = self._run_of(holder, now)
        return started + declared if declared is not None else None

    def _run_of(self, holder: str, now: float) -> tuple[float, float | None]:
        """Return the start of a unit, which is now if it is nominated, and its declared run time."""
        fleet = self._fleet
        if holder[0] == "n":
            return now, fleet.nominated[_number(holder)].unit.declared
        running = (
            fleet.terminating[_number(holder)] if holder[0] == "t" else fleet.running[fleet.holders[holder]]
        )
        return running.started, running.unit.declared

    def _expected(self, made: Reservation, now: float) -> float:
        ends = [self._end_of(holder, now) for holder in self._holders(made)]
        return max((float("inf") if end is None else end for end in ends), default=now)

    def _needed_at(self, made: Reservation, now: float) -> float | None:
        needed = now
        for holder in self._holders(made):
            end = self._declared_end_of(holder, now)
            if end is None:
                return None
            needed = max(needed, end)
        return needed

    def _holders(self, made: Reservation) -> list[str]:
        """Return the units, and the reservations ahead, that have some of the reserved GPUs."""
        inventory = self._fleet.inventory
        return [
            holder
            for fits in made.places
            for holder in inventory.holders_on(fits.node)
            if not self._is_behind(holder, made)
            and not set(fits.gpus).isdisjoint(inventory.allocations[holder].gpus)
        ]

    def _is_behind(self, holder: str, made: Reservation) -> bool:
        if holder[0] != "r":
            return False
        other = self._made.get(_number(holder))
        return other is None or other is made or other.order > made.order


def _number(holder: str) -> int:
    """Return the number of the unit of a reservation or nomination."""
    return int(holder[1 : holder.index(".")])


class _Room:
    """Nodes always have room: CPU and memory are part of the requests."""

    def has(self, node: str, member: int, left: Collection[str]) -> bool:
        return True

    def take(self, node: str, member: int) -> None:
        return None


class _DrainTimes:
    """When how many GPUs of each node are expected to be free, for the choice of nodes."""

    def __init__(self, fleet: Fleet, end_of: Callable[[str, float], float | None]) -> None:
        self._fleet = fleet
        self._end_of = end_of
        self._names = sorted(fleet.inventory.nodes)
        self._row = {name: at for at, name in enumerate(self._names)}
        most = max((len(node.gpus) for node in fleet.inventory.nodes.values()), default=0)
        self._until = np.full((len(self._names), most), np.inf)
        """When each GPU is free if that is known, else infinity."""
        self._since = np.full((len(self._names), most), np.inf)
        """When the holder that does not declare its run time has started."""
        self._sorted = self._until.copy()
        self._at, self._all_at = -1.0, float("-inf")
        self._models: dict[Request, NDArray[np.bool_]] = {}
        fleet.changed.update(self._names)

    def first_nodes(self, unit: Unit, now: float) -> frozenset[str]:
        """Return the nodes whose GPUs are expected to be free first for the unit."""
        if len(self._names) <= _FEW_NODES or not unit.request.count:
            return frozenset(self._names)
        self._refresh(now)
        count, width = unit.request.count, self._sorted.shape[1]
        if count > width:
            return frozenset()
        whole = unit.request.milli_per_gpu == WHOLE
        columns = [each * count - 1 for each in range(1, width // count + 1)] if whole else [0]
        times = self._sorted[:, columns][self._offering(unit.request)]
        rows = np.flatnonzero(self._offering(unit.request))
        few = min(_FEW_NODES + unit.members, times.size)
        if not few:
            return frozenset()
        best = np.argpartition(times.ravel(), few - 1)[:few] // len(columns)
        return frozenset(self._names[rows[at]] for at in best.tolist())

    def _offering(self, request: Request) -> NDArray[np.bool_]:
        found = self._models.get(request)
        if found is None:
            nodes = self._fleet.inventory.nodes
            found = self._models[request] = np.array(
                [
                    sum(not request.models or gpu.model in request.models for gpu in nodes[name].gpus)
                    >= request.count
                    for name in self._names
                ]
            )
        return found

    def _refresh(self, now: float) -> None:
        changed = self._fleet.changed
        if not changed and self._at == now:
            return
        for name in changed:
            self._update(name, now)
        if now - self._all_at < _ALL_S:
            rows: NDArray[np.intp] | slice = np.fromiter(map(self._row.__getitem__, changed), np.intp)
        else:
            rows, self._all_at = slice(None), now
        since = self._since[rows]
        elapsed = np.maximum(now - since, LEAST_REMAINING_S)
        self._sorted[rows] = np.sort(np.where(np.isfinite(since), now + elapsed, self._until[rows]), axis=1)
        changed.clear()
        self._at = now

    def _update(self, name: str, now: float) -> None:
        row, inventory = self._row[name], self._fleet.inventory
        node = inventory.nodes[name]
        self._since[row] = np.inf
        self._until[row] = np.inf
        if not node.ready or node.cordoned:
            return
        self._until[row, : len(node.gpus)] = 0.0
        for holder in inventory.holders_on(name):
            end = self._end_of(holder, now)
            running = self._fleet.running.get(self._fleet.holders.get(holder, -1))
            for gpu in inventory.allocations[holder].gpus:
                if running is not None and running.unit.declared is None:
                    self._since[row, gpu] = min(self._since[row, gpu], running.started)
                else:
                    self._until[row, gpu] = max(self._until[row, gpu], np.inf if end is None else end)
