"""The nodes as a unit sees them that respects reservations, or that may evict some holders."""

from collections.abc import Callable, Iterable

from gpufleet.queueing.needs import Amounts, more
from gpufleet.queueing.snapshot import Snapshot, View
from gpufleet.queueing.units import Holder, Place


class Hidden(View):
    """Some GPUs are taken: those that reservations keep for other units."""

    def __init__(self, places: Iterable[Place]) -> None:
        super().__init__()
        self._kept: dict[int, list[Place]] = {}
        for place in places:
            self._kept.setdefault(place.node, []).append(place)

    def nodes(self, snapshot: Snapshot) -> Iterable[int]:
        """Return the nodes with kept GPUs."""
        return self._kept

    def on(self, snapshot: Snapshot, node: int) -> tuple[int, Amounts] | None:
        """Return the node with the kept GPUs taken as well; they may be overbooked until their holders have left."""
        occupancy = snapshot.occupancy[node]
        for place in self._kept[node]:
            occupancy = snapshot.tables.taken(occupancy, place)
        return occupancy, snapshot.free[node]


class Evicted(View):
    """Some holders have left: all that a unit may evict. So a search that can't succeed is not begun."""

    follows = True

    def __init__(self, may_leave: Callable[[Holder], bool]) -> None:
        super().__init__()
        self._may_leave = may_leave

    def nodes(self, snapshot: Snapshot) -> Iterable[int]:
        """Return the nodes with such holders."""
        return dict.fromkeys(
            place.node
            for holder in snapshot.holders.values()
            if self._may_leave(holder)
            for place in holder.places
        )

    def on(self, snapshot: Snapshot, node: int) -> tuple[int, Amounts] | None:
        """Return the node without the holders that may leave."""
        leaving = [taken for taken in snapshot.on[node] if self._may_leave(taken[0])]
        if not leaving:
            return None
        free = snapshot.free[node]
        for _, place in leaving:
            free = more(free, place.amounts)
        return snapshot.without(node, snapshot.occupancy[node], leaving), free
