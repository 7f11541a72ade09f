"""Keep GPUs, free or still in use, from units that are behind in the queue.

In the inventory a reservation is an allocation beyond a GPU's capacity, so a GPU that becomes free stays taken.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager

from gpufleet.placement.allocation import Allocation
from gpufleet.placement.inventory import Inventory
from gpufleet.placement.verdict import Fits
from gpufleet.scheduler.state.holders import reservation_key


class ReservedGpus:
    """The GPUs that are reserved, by a name of the unit; `on_freed` is called when some no longer are."""

    def __init__(self, cluster: Inventory, on_freed: Callable[[], None]) -> None:
        self._cluster = cluster
        self._on_freed = on_freed
        self._places: dict[str, tuple[Fits, ...]] = {}

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def put(self, unit: str, places: Sequence[Fits]) -> None:
        """Reserve GPUs for a unit; replaces its earlier reservation."""
        if self._places.get(unit) == tuple(places):
            return
        self.drop(unit)
        self._places[unit] = tuple(places)
        self._apply(unit)

    def drop(self, unit: str) -> None:
        """Remove the reservation of a unit."""
        if unit in self._places:
            self._lift(unit)
            del self._places[unit]
            self._on_freed()

    @contextmanager
    def ignoring(self, units: Iterable[str]) -> Iterator[None]:
        """Return a context in which these units have no reservations."""
        units = [unit for unit in units if unit in self._places]
        for unit in units:
            self._lift(unit)
        try:
            yield
        finally:
            for unit in units:
                self._apply(unit)

    def _apply(self, unit: str) -> None:
        for at, fits in enumerate(self._places[unit]):
            key = reservation_key(unit, at)
            self._cluster.allocate(key, Allocation.of(key, fits), observed=True)

    def _lift(self, unit: str) -> None:
        for at in range(len(self._places[unit])):
            self._cluster.free(reservation_key(unit, at))
