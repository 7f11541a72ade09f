"""The waiting units of a simulation, in groups of equal requests.

What is refused to one unit is refused to all equal units of the same cycle, so a cycle looks at groups
instead of units. It stays fast with thousands of units in the queue.
"""

from bisect import bisect_left, insort
from collections.abc import Callable, Iterator
from heapq import heapify, heappop, heappush

from gpufleet.placement.request import Request
from gpufleet.simulation.queues import Rank
from gpufleet.simulation.unit import Unit

Order = tuple[float, ...]
"""The rank between queues, then the position."""
Position = tuple[int, float, int]


class Group:
    """Units of one queue with the same request, in order."""

    def __init__(self, queue: str, request: Request, members: int) -> None:
        self.queue = queue
        self.request = request
        self.members = members
        self.units: list[tuple[Position, Unit]] = []
        self.declared: list[float] = []
        """The declared run times, the shortest first: only these units can be backfilled before reserved GPUs are needed."""


class WaitingUnits:
    """The queue; `walk` yields units in order."""

    def __init__(self, rank: Callable[[Unit], Rank], priorities: bool) -> None:
        """`rank` returns the place of a unit between queues."""
        self._rank = rank
        self._priorities = priorities
        self._groups: dict[tuple[str, Request, int], Group] = {}
        self._turns: dict[int, int] = {}
        """By which number units have come: those that arrive at the same moment keep their order."""
        self._puts = 0

    def __len__(self) -> int:
        return len(self._turns)

    def put(self, unit: Unit) -> None:
        """Add a unit."""
        key = (unit.queue, unit.request, unit.members)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Group(*key)
        self._puts += 1
        self._turns[unit.number] = self._puts
        insort(group.units, (self.position(unit), unit))
        if unit.declared is not None:
            insort(group.declared, unit.declared)

    def remove(self, unit: Unit) -> bool:
        """Remove a unit; return whether it was waiting."""
        group = self._groups.get((unit.queue, unit.request, unit.members))
        at = bisect_left(group.units, (self.position(unit),)) if group else 0
        if group is None or at >= len(group.units) or group.units[at][1] is not unit:
            return False
        del group.units[at]
        if unit.declared is not None:
            del group.declared[bisect_left(group.declared, unit.declared)]
        del self._turns[unit.number]
        if not group.units:
            del self._groups[unit.queue, unit.request, unit.members]
        return True

    def position(self, unit: Unit) -> Position:
        """Return the order of a unit within its queue: by priority, then by age."""
        turn = self._turns.get(unit.number, 0)
        return (-unit.priority if self._priorities else 0, unit.arrives, turn)

    def order(self, unit: Unit) -> Order:
        """Return the order of a unit in the whole queue."""
        return (*self._rank(unit), *self.position(unit))

    def all(self) -> list[Unit]:
        """Return all units in order."""
        units = (unit for group in self._groups.values() for _, unit in group.units)
        return sorted(units, key=self.order)

    def up_to(self, last: Order | None) -> Iterator[Unit]:
        """Return the units that are not behind `last`; none without it."""
        for group in self._groups.values() if last is not None else ():
            for _, unit in group.units:  # units of a group are in order
                if last is None or self.order(unit) > last:
                    break
                yield unit

    def by_queue(self) -> dict[str, list[Unit]]:
        """Return the units of each queue in the queue's own order."""
        found: dict[str, list[tuple[Position, Unit]]] = {}
        for group in self._groups.values():
            found.setdefault(group.queue, []).extend(group.units)
        return {queue: [unit for _, unit in sorted(units, key=_position)] for queue, units in found.items()}

    def walk(self) -> "Walk":
        """Return a walk over the queue in order."""
        return Walk(list(self._groups.values()), self)


def _position(entry: tuple[Position, Unit]) -> Position:
    return entry[0]


class Walk:
    """Yields the units in order; `skip_group` leaves out the rest of a group."""

    def __init__(self, groups: list[Group], waiting: WaitingUnits) -> None:
        self._waiting = waiting
        self._heap = [
            (waiting.order(group.units[0][1]), number, group, 0)
            for number, group in enumerate(groups)
            if group.units
        ]
        heapify(self._heap)
        self._skip = self._took = False

    def skip_group(self) -> None:
        """Yield no more units of the group of the last unit."""
        self._skip = True

    def took(self) -> None:
        """Note that the last unit has started and has left its group."""
        self._took = True

    def __iter__(self) -> Iterator[tuple[Unit, Group]]:
        heap, waiting = self._heap, self._waiting
        while heap:
            _, number, group, at = heappop(heap)
            unit = group.units[at][1]
            self._skip = self._took = False
            yield unit, group
            if self._skip:
                continue
            if not self._took or (at < len(group.units) and group.units[at][1] is unit):
                at += 1
            if at < len(group.units):
                heappush(heap, (waiting.order(group.units[at][1]), number, group, at))
