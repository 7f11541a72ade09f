"""A copy of one node on which holders leave and requests are placed, without scores.

Victims and reservations are found by trying what fits on one node after some holders have left. That
needs the choice of GPUs but no comparison with other nodes.
"""

from collections.abc import Iterable

from gpufleet.placement.allocation import Allocation
from gpufleet.placement.inventory import Inventory
from gpufleet.placement.node_shape import Occupancy, Shape
from gpufleet.placement.pick import Pick, pick
from gpufleet.placement.request import Request
from gpufleet.placement.verdict import Fits


class LoneNode:
    """One node and its holders."""

    def __init__(self, inventory: Inventory, name: str) -> None:
        self._node = node = inventory.nodes[name]
        self._shape = Shape(node.gpus, node.cordoned, node.ready)
        self.held: dict[str, Allocation] = {
            holder: inventory.allocations[holder] for holder in inventory.holders_on(name)
        }

    def place(self, request: Request, without: Iterable[str] = ()) -> Fits | None:
        """Return the GPUs that a request gets when these holders have left; None if it does not fit."""
        node, gone = self._node, set(without)
        staying = [held for holder, held in self.held.items() if holder not in gone]
        cpu = None if node.cpu_milli is None else node.cpu_milli - sum(held.cpu_milli for held in staying)
        memory = (
            None if node.memory_mib is None else node.memory_mib - sum(held.memory_mib for held in staying)
        )
        if not request.match_labels <= node.labels.items():
            return None
        if (cpu is not None and cpu < request.cpu_milli) or (
            memory is not None and memory < request.memory_mib
        ):
            return None
        found = pick(request, self._occupancy(staying))
        return Fits(request, node.name, found.gpus, found.instances) if isinstance(found, Pick) else None

    def free_milli(self) -> int:
        """Return the free capacity of all GPUs in thousandths, healthy or not."""
        return sum(max(left, 0) for left in self._occupancy(self.held.values()).free)

    def _occupancy(self, staying: Iterable[Allocation]) -> Occupancy:
        shape = self._shape
        free, mig = list(shape.idle), list(shape.idle_mig)
        for held in staying:
            for gpu in held.gpus:
                if (at := shape.position.get(gpu)) is not None:
                    free[at] -= held.milli
            for gpu, instance in held.instances:
                if (at := shape.position.get(gpu)) is not None:
                    mig[at] &= ~shape.instance(gpu, instance)
        return Occupancy(shape, tuple(free), tuple(mig))
