"""The shape and the occupancy of nodes: what equal nodes have in common.

A `Shape` is the part of a node that allocations don't change. An `Occupancy` is a shape with
the free capacity of each GPU. Fleets have few of both, so results are computed once per
occupancy and apply to all nodes in it. Sets of GPUs are integers with one bit per GPU id, so
that adjacent free ids are a run of ones.
"""

from functools import cached_property

from gpufleet.errors import InvalidRequest
from gpufleet.placement.node import CandidateGpu
from gpufleet.placement.request import MOST_GPUS, WHOLE


def mask_of(ids: list[int]) -> int:
    """Return the set of `ids` as bits."""
    mask = 0
    for gpu in ids:
        mask |= 1 << gpu
    return mask


def ids_of(mask: int) -> tuple[int, ...]:
    """Return the ids in a mask, lowest first."""
    ids = []
    while mask:
        lowest = mask & -mask
        ids.append(lowest.bit_length() - 1)
        mask ^= lowest
    return tuple(ids)


class Shape:
    """The GPUs of a node by id, without their allocations."""

    def __init__(self, gpus: tuple[CandidateGpu, ...], cordoned: bool = False, ready: bool = True) -> None:
        self.gpus = tuple(sorted(gpus, key=lambda gpu: gpu.id))
        self.cordoned = cordoned
        self.ready = ready
        self.position = {gpu.id: at for at, gpu in enumerate(self.gpus)}
        if len(self.position) < len(gpus) or any(not 0 <= gpu.id < MOST_GPUS for gpu in gpus):
            raise InvalidRequest(
                f"GPU ids {[gpu.id for gpu in gpus]}: they must differ and be 0 to {MOST_GPUS - 1}"
            )
        self.plain = mask_of([gpu.id for gpu in gpus if not gpu.mig])
        self.usable = 0 if cordoned or not ready else mask_of([gpu.id for gpu in gpus if gpu.usable])
        self.idle = tuple(0 if gpu.taken else WHOLE for gpu in self.gpus)
        self.idle_mig = tuple(0 if gpu.taken else (1 << len(gpu.mig)) - 1 for gpu in self.gpus)

    @cached_property
    def islands(self) -> tuple[int, ...]:
        """Return the islands as masks. A GPU without an island is an island of its own."""
        by_name: dict[str, int] = {}
        alone = []
        for gpu in self.gpus:
            if gpu.island:
                by_name[gpu.island] = by_name.get(gpu.island, 0) | 1 << gpu.id
            else:
                alone.append(1 << gpu.id)
        return (*by_name.values(), *alone)

    def instance(self, gpu: int, instance: str) -> int:
        """Return the bit of a MIG instance of a GPU; 0 if there is no such instance."""
        known = self.gpus[self.position[gpu]].mig
        return next((1 << at for at, mig in enumerate(known) if mig.id == instance), 0)

    def at_least(self, bandwidth_gbps: int) -> int:
        """Return the GPUs with at least this bandwidth to their peers."""
        return mask_of([gpu.id for gpu in self.gpus if gpu.bandwidth_gbps >= bandwidth_gbps])

    def of_models(self, models: frozenset[str]) -> int:
        """Return the GPUs of the accepted models; all GPUs if `models` is empty."""
        return mask_of([gpu.id for gpu in self.gpus if not models or gpu.model in models])


class Occupancy:
    """The free capacity of each GPU of a shape: thousandths by position, and free MIG instances as bits."""

    __slots__ = ("free", "mig", "shape", "whole")

    def __init__(self, shape: Shape, free: tuple[int, ...], mig: tuple[int, ...]) -> None:
        self.shape = shape
        self.free = free
        self.mig = mig
        untouched = [gpu.id for gpu, left in zip(shape.gpus, free, strict=True) if left >= WHOLE]
        self.whole = mask_of(untouched) & shape.usable & shape.plain

    def with_share(self, milli: int) -> int:
        """Return the usable GPUs with at least `milli` thousandths free."""
        enough = [gpu.id for gpu, left in zip(self.shape.gpus, self.free, strict=True) if left >= milli]
        return mask_of(enough) & self.shape.usable & self.shape.plain

    def without(
        self, gpus: tuple[int, ...], milli: int, instances: tuple[tuple[int, str], ...]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the free shares and MIG instances after these are taken (negative `milli`: returned).

        GPUs that the node does not have are ignored. A share may go below zero.
        """
        free, mig, position = list(self.free), list(self.mig), self.shape.position
        if milli:
            for gpu in gpus:
                if gpu in position:
                    free[position[gpu]] -= milli
        for gpu, instance in instances:
            if gpu in position:
                mig[position[gpu]] &= ~self.shape.instance(gpu, instance)
        return tuple(free), tuple(mig)

    def shortage(
        self, gpus: tuple[int, ...], milli: int, instances: tuple[tuple[int, str], ...]
    ) -> tuple[int, str] | None:
        """Return the first GPU without enough capacity and the reason; None if all have enough."""
        position = self.shape.position
        for gpu in gpus:
            if gpu not in position:
                return gpu, "the node has no such GPU"
            if self.free[position[gpu]] < milli:
                return gpu, f"{self.free[position[gpu]] / WHOLE:g} of it is free"
        for gpu, instance in instances:
            if gpu not in position or not self.mig[position[gpu]] & self.shape.instance(gpu, instance):
                return gpu, f"MIG instance {instance} is not free"
        return None

    def open_milli(self) -> list[int]:
        """Return the capacity of each GPU available to new work, by position."""
        usable = self.shape.usable & self.shape.plain
        return [
            max(left, 0) if usable >> gpu.id & 1 else 0
            for gpu, left in zip(self.shape.gpus, self.free, strict=True)
        ]
