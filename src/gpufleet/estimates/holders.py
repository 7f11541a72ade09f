"""The units that run in a forward simulation: those of the state, which all runs share, and those started since."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from gpufleet.estimates.fleet_state import RunningUnit, WaitingUnit
from gpufleet.estimates.free_gpus import Places
from gpufleet.placement.earliest import LEAST_REMAINING_S

_MOST_SOONEST = 2_000
_FOREVER = float("inf")


@dataclass(frozen=True, slots=True)
class Holder:
    """A unit that has GPUs since `since`; evicted, it runs for `runtime` again."""

    unit: WaitingUnit
    places: Places
    since: float
    runtime: float

    def expected_end(self, now: float) -> float:
        """Return the end that the scheduler expects: the declared one, or as long again as it has run."""
        declared = self.unit.job.declared
        return (
            self.since + declared if declared is not None else now + max(now - self.since, LEAST_REMAINING_S)
        )


class Holders:
    """Units with GPUs by number; the first numbers are the running units of the state."""

    def __init__(self, running: Sequence[RunningUnit]) -> None:
        self._running = running
        self._ends: NDArray[np.float64] = np.zeros(0)
        self._on: dict[int, list[int]] = {}
        self._by_priority: dict[int, list[int]] = {}
        self._running_now = Counter(unit.priority for unit in running)
        """Units by priority."""
        for number, unit in enumerate(running):
            for node, _ in unit.places:
                self._on.setdefault(node, []).append(number)
            self._by_priority.setdefault(unit.priority, []).append(number)
        for numbers in self._by_priority.values():
            numbers.sort(key=lambda number: -running[number].elapsed)
        soonest = sorted(range(len(running)), key=lambda number: _remaining(running[number]))
        self.soonest = list(
            dict.fromkeys(node for number in soonest[:_MOST_SOONEST] for node, _ in running[number].places)
        )
        """Nodes with the units that are expected to end first."""
        self._gone: set[int] = set()
        self._added: dict[int, Holder] = {}
        """Units started since, and those of the state that were looked at."""
        self._next = len(running)
        self._added_on: dict[int, dict[int, None]] = {}
        self._added_by_priority: dict[int, dict[int, None]] = {}

    def copy(self, ends: NDArray[np.float64]) -> "Holders":
        """Return the same units for one run, with their remaining run times."""
        twin = Holders.__new__(Holders)
        twin._running, twin._on, twin._by_priority = self._running, self._on, self._by_priority
        twin.soonest, twin._ends = self.soonest, ends
        twin._next, twin._running_now = len(self._running), self._running_now.copy()
        twin._gone, twin._added, twin._added_on, twin._added_by_priority = set(), {}, {}, {}
        return twin

    def add(self, holder: Holder) -> int:
        """Add a unit that starts; return its number."""
        number = self._next
        self._next += 1
        self._added[number] = holder
        self._running_now[holder.unit.priority] += 1
        for node, _ in holder.places:
            self._added_on.setdefault(node, {})[number] = None
        self._added_by_priority.setdefault(holder.unit.priority, {})[number] = None
        return number

    def get(self, number: int) -> Holder | None:
        """Return a unit that runs; None if it has ended."""
        if number in self._gone:
            return None
        if (known := self._added.get(number)) is not None or number >= len(self._running):
            return known
        unit = self._running[number]
        waiting = WaitingUnit(
            f"running {number}",
            unit.job,
            unit.places[0][1] if unit.places else 0,
            len(unit.places),
            unit.models,
            unit.priority,
            queue=unit.queue,
        )
        runtime = unit.elapsed + float(self._ends[number])
        holder = self._added[number] = Holder(waiting, unit.places, -unit.elapsed, runtime)
        return holder

    def remove(self, number: int) -> Holder | None:
        """Remove a unit; return None if it was removed before."""
        holder = self.get(number)
        if holder is not None:
            self._running_now[holder.unit.priority] -= 1
        self._gone.add(number)
        return holder

    def restore(self, number: int) -> None:
        """Undo a removal."""
        self._gone.discard(number)
        self._running_now[self._added[number].unit.priority] += 1

    def forget(self, number: int) -> None:
        """Leave a removed unit out of later searches; it can't be restored any more."""
        holder = self._added.get(number)
        if holder is not None and number >= len(self._running):
            del self._added[number]
            del self._added_by_priority[holder.unit.priority][number]
            for node, _ in holder.places:
                self._added_on[node].pop(number, None)

    def on(self, node: int) -> Iterator[tuple[int, Holder]]:
        """Return the units that have GPUs of a node."""
        for number in (*self._on.get(node, ()), *self._added_on.get(node, ())):
            if (holder := self.get(number)) is not None:
                yield number, holder

    @property
    def lowest(self) -> float:
        """Return the lowest priority of a unit; infinity if none runs."""
        return min((priority for priority, count in self._running_now.items() if count), default=_FOREVER)

    @property
    def priorities(self) -> list[int]:
        """Return the priorities of all units, the lowest first."""
        return sorted(priority for priority, count in self._running_now.items() if count)

    def youngest(self, priority: int) -> Iterator[Holder]:
        """Return the units of a priority, the youngest first."""
        for numbers in (self._added_by_priority.get(priority, {}), self._by_priority.get(priority, ())):
            for number in reversed(numbers):
                if (holder := self.get(number)) is not None:
                    yield holder


def _remaining(unit: RunningUnit) -> float:
    declared = unit.job.declared
    return declared - unit.elapsed if declared is not None else max(unit.elapsed, LEAST_REMAINING_S)
