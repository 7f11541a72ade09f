"""Report how usable the free GPUs of a cluster are."""

from collections.abc import Sequence
from dataclasses import dataclass

from gpufleet.placement.demand import Demand
from gpufleet.placement.inventory import Inventory
from gpufleet.placement.request import WHOLE
from gpufleet.placement.usability import fgd

SIZES = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class Fragmentation:
    """Free GPUs, how many of them the next request is not expected to use, and what still fits.

    `gpus` and `free` count usable GPUs only. `fits_by_size` is the number of further requests
    that fit, for each number of whole GPUs by itself.
    """

    gpus: int
    free: float
    unusable: float
    fits_by_size: dict[int, int]

    @property
    def percent(self) -> float:
        """Return the percentage of free GPUs that is fragmented."""
        return 100.0 * self.unusable / self.free if self.free else 0.0


def fragmentation(inventory: Inventory, demand: Demand, sizes: Sequence[int] = SIZES) -> Fragmentation:
    """Return the fragmentation of the inventory for this demand."""
    live, population = inventory.population()
    nodes = inventory.states.nodes(live)
    whole = (nodes.free >= WHOLE).sum(axis=1)
    usable = [(shape.usable & shape.plain).bit_count() for shape in nodes.shapes]
    return Fragmentation(
        gpus=int(sum(usable[shape] * count for shape, count in zip(nodes.shape, population, strict=True))),
        free=float(nodes.free.sum(axis=1) @ population) / WHOLE,
        unusable=float(fgd(demand).loss(nodes) @ population) / WHOLE,
        fits_by_size={size: int((whole // size) @ population) for size in sizes},
    )
