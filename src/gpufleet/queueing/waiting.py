"""The waiting units in order, as columns, so that one comparison says which of them may start.

Units go by the rank between GpuQueues, then by priority and age. A unit that comes or goes moves the columns behind it.
"""

from bisect import bisect_left
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpufleet.queueing.placing import Sizes, sizes_of
from gpufleet.queueing.shares.order import FIRST, Rank
from gpufleet.queueing.snapshot import Snapshot
from gpufleet.queueing.units import NEVER, Unit

Integers = NDArray[np.int64]
_NEED, _MEMBERS, _TARGET, _ASKED = range(4)


class WaitingUnits:
    """The queue; iterate in order."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        self._units: list[Unit] = []
        self._orders: list[Any] = []
        self.ranks: dict[str, Rank] = {}
        self._columns: Integers = np.zeros((4, 16), np.int64)
        self._declared: NDArray[np.float64] = np.zeros(16)
        self.targets: dict[tuple[str | None, int], int] = {}
        """Numbers of pairs of queue and priority."""
        self.asks: dict[tuple[str | None, int], int] = {}
        """Numbers of pairs of queue and GPUs."""
        self._sizes: dict[Unit, list[Sizes]] = {}
        self.version = 0
        """Grows with every change."""

    def copy(self, snapshot: Snapshot) -> "WaitingUnits":
        """Return the same queue for a copy of the snapshot."""
        twin = WaitingUnits(snapshot)
        twin._units, twin._orders, twin.ranks = self._units[:], self._orders[:], self.ranks.copy()
        twin._columns, twin._declared = self._columns.copy(), self._declared.copy()
        twin.targets, twin.asks, twin._sizes = self.targets.copy(), self.asks.copy(), self._sizes.copy()
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
        position, number = bisect_left(self._orders, order), len(self._units)
        if number == len(self._declared):
            self._columns = np.pad(self._columns, ((0, 0), (0, number)))
            self._declared = np.pad(self._declared, (0, number))
        self._orders.insert(position, order)
        self._units.insert(position, unit)
        self._columns[:, position + 1 : number + 1] = self._columns[:, position:number]
        self._declared[position + 1 : number + 1] = self._declared[position:number]
        need, members = self.sizes(unit)[-1][0]
        target = self.targets.setdefault((unit.queue, unit.priority), len(self.targets))
        ask = self.asks.setdefault((unit.queue, unit.least_asked), len(self.asks))
        self._columns[:, position] = need, members, target, ask
        self._declared[position] = NEVER if unit.declared is None else unit.declared
        self.version += 1

    def drop(self, unit: Unit) -> None:
        """Remove a unit."""
        position, number = self.position(unit), len(self._units)
        del self._orders[position], self._units[position], self.ranks[unit.key]
        self._columns[:, position : number - 1] = self._columns[:, position + 1 : number]
        self._declared[position : number - 1] = self._declared[position + 1 : number]
        self._sizes.pop(unit, None)
        self.version += 1

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
        orders = [(ranks[unit.key], unit.order) for unit in self._units]
        by_order = sorted(range(len(orders)), key=orders.__getitem__)
        self._orders = [orders[at] for at in by_order]
        self._units = [self._units[at] for at in by_order]
        self._columns[:, : len(by_order)] = self._columns[:, by_order]
        self._declared[: len(by_order)] = self._declared[by_order]
        self.version += 1
        return True

    def sizes(self, unit: Unit) -> list[Sizes]:
        """Return the members to place, as many as possible first."""
        sizes = self._sizes.get(unit)
        if sizes is None:
            sizes = self._sizes[unit] = sizes_of(self._snapshot, unit)
        return sizes

    # -- columns ---------------------------------------------------------------------------

    @property
    def need(self) -> Integers:
        """Return the number of the need of each unit; one with several needs is known by its first."""
        return self._columns[_NEED, : len(self._units)]

    @property
    def members(self) -> Integers:
        """Return how many members of that need must fit."""
        return self._columns[_MEMBERS, : len(self._units)]

    @property
    def target(self) -> Integers:
        """Return the number of the queue and priority of each unit, as in `targets`."""
        return self._columns[_TARGET, : len(self._units)]

    @property
    def asked(self) -> Integers:
        """Return the number of the queue and GPUs of each unit, as in `asks`."""
        return self._columns[_ASKED, : len(self._units)]

    @property
    def declared(self) -> NDArray[np.float64]:
        """Return the declared run times; infinity for units that declare none."""
        return self._declared[: len(self._units)]
