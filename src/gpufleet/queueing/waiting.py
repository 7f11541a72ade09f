"""The waiting units in order, as columns, so that one comparison says which of them may start.

Units go by the rank between GpuQueues, then by priority and age. The columns are made again when a unit comes or goes.
"""

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpufleet.queueing.placing import Sizes, sizes_of
from gpufleet.queueing.shares.order import FIRST, Rank
from gpufleet.queueing.snapshot import Snapshot
from gpufleet.queueing.units import NEVER, Unit

Integers = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Columns:
    """What is compared for all units at once; a unit with members of several needs is known by its first one."""

    need: Integers
    members: Integers
    declared: NDArray[np.float64]
    target: Integers
    """The number of its pair of queue and priority."""
    targets: list[tuple[str | None, int]]
    asked: Integers
    """The number of its pair of queue and GPUs."""
    asks: list[tuple[str | None, int]]


class WaitingUnits:
    """The queue; iterate in order."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._units: list[Unit] = []
        self._orders: list[Any] = []
        self.ranks: dict[str, Rank] = {}
        self._columns: Columns | None = None
        self._sizes: dict[Unit, list[Sizes]] = {}
        self.version = 0
        """Grows with every change."""

    def copy(self, snapshot: Snapshot) -> "WaitingUnits":
        """Return the same queue for a copy of the snapshot."""
        twin = WaitingUnits(snapshot)
        twin._units, twin._orders, twin.ranks = self._units[:], self._orders[:], self.ranks.copy()
        twin._sizes, twin._columns = self._sizes.copy(), self._columns
        return twin

    def __len__(self) -> int:
        return len(self._units)

    def __iter__(self) -> Iterator[Unit]:
        return iter(self._units)

    def __getitem__(self, at: int) -> Unit:
        return self._units[at]

    def put(self, unit: Unit, rank: Rank = FIRST) -> None:
        """Add a unit."""
        self.ranks[unit.key] = rank
        order = (rank, unit.order)
        at = bisect_left(self._orders, order)
        self._orders.insert(at, order)
        self._units.insert(at, unit)
        self._changed()

    def drop(self, unit: Unit) -> None:
        """Remove a unit."""
        at = self.position(unit)
        del self._orders[at], self._units[at], self.ranks[unit.key]
        self._sizes.pop(unit, None)
        self._changed()

    def position(self, unit: Unit) -> int:
        """Return the place of a unit, from 0."""
        return bisect_left(self._orders, (self.ranks[unit.key], unit.order))

    def by_age(self) -> list[Unit]:
        """Return the units by priority and age, whatever their ranks."""
        return sorted(self._units, key=lambda unit: unit.order)

    def rank(self, ranks: dict[str, Rank]) -> bool:
        """Use these ranks; return whether the order has changed."""
        if ranks == self.ranks:
            return False
        self.ranks = ranks
        before = self._units
        self._units = sorted(before, key=lambda unit: (ranks[unit.key], unit.order))
        self._orders = [(ranks[unit.key], unit.order) for unit in self._units]
        self._changed()
        return True

    def sizes(self, unit: Unit) -> list[Sizes]:
        """Return the members to place, as many as possible first."""
        found = self._sizes.get(unit)
        if found is None:
            found = self._sizes[unit] = sizes_of(self._snapshot, unit)
        return found

    def columns(self) -> Columns:
        """Return the units as columns."""
        if self._columns is None:
            targets: dict[tuple[str | None, int], int] = {}
            asks: dict[tuple[str | None, int], int] = {}
            first = [self.sizes(unit)[-1][0] for unit in self._units]
            self._columns = Columns(
                np.array([need for need, _ in first], np.int64),
                np.array([members for _, members in first], np.int64),
                np.array([NEVER if unit.declared is None else unit.declared for unit in self._units]),
                np.array(
                    [targets.setdefault((unit.queue, unit.priority), len(targets)) for unit in self._units],
                    np.int64,
                ),
                list(targets),
                np.array(
                    [asks.setdefault((unit.queue, unit.least_asked), len(asks)) for unit in self._units],
                    np.int64,
                ),
                list(asks),
            )
        return self._columns

    def _changed(self) -> None:
        self._columns = None
        self.version += 1
