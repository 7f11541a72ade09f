"""The waiting units of a simulation, in groups of equal requests.

What is refused to one unit is refused to all equal units of the same cycle, so a cycle looks at groups
instead of units. It stays fast with thousands of units in the queue.
"""

from bisect import bisect_left, insort
from collections.abc import Iterator
from heapq import heapify, heappop, heappush

from gpufleet.placement.request import Request
from gpufleet.simulation.shares import Shares
from gpufleet.simulation.unit import Unit

Order = tuple[float, float, float, int]
Position = tuple[int, float, int]


class Group:
    """Units of one queue with the same request, in order."""

    def __init__(self, queue: str, request: Request, members: int) -> None:
        self.queue = queue
        self.request = request
        self.members = members
        self.units: list[tuple[Position, Unit]] = []
        self.declaring = 0
        """Units that declare a run time: only these can be backfilled before reserved GPUs are needed."""


class WaitingUnits:
    """The queue; `walk` yields units in order."""

    def __init__(self, shares: Shares, priorities: bool) -> None:
        self._shares = shares
        self._priorities = priorities
        self._groups: dict[tuple[str, Request, int], Group] = {}
        self._count = 0

    def __len__(self) -> int:
        return self._count

    def put(self, unit: Unit) -> None:
        """Add a unit."""
        key = (unit.queue, unit.request, unit.members)
        group = self._groups.get(key)
        if group is None:
            group = self._groups[key] = Group(*key)
        insort(group.units, (self.position(unit), unit))
        group.declaring += unit.declared is not None
        self._count += 1

    def remove(self, unit: Unit) -> bool:
        """Remove a unit; return whether it was waiting."""
        group = self._groups.get((unit.queue, unit.request, unit.members))
        at = bisect_left(group.units, (self.position(unit),)) if group else 0
        if group is None or at >= len(group.units) or group.units[at][1] is not unit:
            return False
        del group.units[at]
        group.declaring -= unit.declared is not None
        self._count -= 1
        if not group.units:
            del self._groups[unit.queue, unit.request, unit.members]
        return True

    def position(self, unit: Unit) -> Position:
        """Return the order of a unit within its queue: by priority, then by age."""
        return (-unit.priority if self._priorities else 0, unit.arrives, unit.number)

    def order(self, unit: Unit, now: float) -> Order:
        """Return the order of a unit in the whole queue."""
        return (self._shares.rank(unit.queue, now), *self.position(unit))

    def all(self, now: float) -> list[Unit]:
        """Return all units in order."""
        units = (unit for group in self._groups.values() for _, unit in group.units)
        return sorted(units, key=lambda unit: self.order(unit, now))

    def walk(self, now: float) -> "Walk":
        """Return a walk over the queue in order."""
        return Walk(list(self._groups.values()), self, now)


class Walk:
    """Yields the units in order; `skip_group` leaves out the rest of a group."""

    def __init__(self, groups: list[Group], waiting: WaitingUnits, now: float) -> None:
        self._waiting = waiting
        self._now = now
        self._heap = [
            (waiting.order(group.units[0][1], now), number, group, 0)
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
            order, number, group, at = heappop(heap)
            unit = group.units[at][1]
            current = waiting.order(unit, self._now)
            if current > order and heap and current > heap[0][0]:
                # Its queue got GPUs in this walk: others are first now.
                heappush(heap, (current, number, group, at))
                continue
            self._skip = self._took = False
            yield unit, group
            if self._skip:
                continue
            if not self._took or (at < len(group.units) and group.units[at][1] is unit):
                at += 1
            if at < len(group.units):
                heappush(heap, (waiting.order(group.units[at][1], self._now), number, group, at))
