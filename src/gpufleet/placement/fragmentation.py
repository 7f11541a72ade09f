"""How usable the free GPUs of a cluster are, in figures for people and dashboards."""

from collections.abc import Sequence
from dataclasses import dataclass

from gpufleet.placement.demand import Demand
from gpufleet.placement.inventory import Inventory
from gpufleet.placement.request import WHOLE
from gpufleet.placement.usability import fgd

SIZES = (1, 2, 4, 8)


@dataclass(frozen=True, slots=True)
class Fragmentation:
    """Free GPUs, how many of them the next task is expected not to be able to use, and what still fits.

    `gpus` and `free` count usable GPUs only; `fits_by_size` says how many more requests for
    that many whole GPUs find a place, each size by itself.
    """

    gpus: int
    free: float
    unusable: float
    fits_by_size: dict[int, int]

    @property
    def percent(self) -> float:
        """The part of the free GPUs that is fragmented."""
        return 100.0 * self.unusable / self.free if self.free else 0.0


def fragmentation(cluster: Inventory, demand: Demand, sizes: Sequence[int] = SIZES) -> Fragmentation:
    """The figures as they are now, for this demand."""
    live, population = cluster.population()
    nodes = cluster.states.nodes(live)
    whole = (nodes.free >= WHOLE).sum(axis=1)
    usable = [(shape.usable & shape.plain).bit_count() for shape in nodes.shapes]
    return Fragmentation(
        gpus=int(sum(usable[shape] * count for shape, count in zip(nodes.shape, population, strict=True))),
        free=float(nodes.free.sum(axis=1) @ population) / WHOLE,
        unusable=float(fgd(demand).loss(nodes) @ population) / WHOLE,
        fits_by_size={size: int((whole // size) @ population) for size in sizes},
    )
