"""Nodes by kind and occupancy: what equal nodes share.

A `Shape` is the part of a node that allocations don't change; an `Occupancy` is a shape with
what is left of each GPU. Fleets have few of both, so every answer about GPUs is found once
for an occupancy and holds for all nodes in it. Sets of GPUs are integers with the bit of
each GPU's id set: a free run of ids is a run of ones.
"""

from functools import cached_property

from gpufleet.errors import InvalidRequest
from gpufleet.placement.node import CandidateGpu
from gpufleet.placement.request import MOST_GPUS, WHOLE


def mask_of(ids: list[int]) -> int:
    """The set of `ids` as bits."""
    mask = 0
    for gpu in ids:
        mask |= 1 << gpu
    return mask


def ids_of(mask: int) -> tuple[int, ...]:
    """The ids in a mask, lowest first."""
    ids = []
    while mask:
        lowest = mask & -mask
        ids.append(lowest.bit_length() - 1)
        mask ^= lowest
    return tuple(ids)


class Shape:
    """GPUs of a node, by id, with what never changes while pods come and go."""

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
        """The islands as masks; a GPU that names none is alone on one."""
        by_name: dict[str, int] = {}
        alone = []
        for gpu in self.gpus:
            if gpu.island:
                by_name[gpu.island] = by_name.get(gpu.island, 0) | 1 << gpu.id
            else:
                alone.append(1 << gpu.id)
        return (*by_name.values(), *alone)

    def instance(self, gpu: int, instance: str) -> int:
        """The bit of a MIG instance of a GPU; 0 if there is no such instance."""
        known = self.gpus[self.position[gpu]].mig
        return next((1 << at for at, mig in enumerate(known) if mig.id == instance), 0)

    def at_least(self, bandwidth_gbps: int) -> int:
        """The GPUs with that much bandwidth to their peers."""
        return mask_of([gpu.id for gpu in self.gpus if gpu.bandwidth_gbps >= bandwidth_gbps])

    def of_models(self, models: frozenset[str]) -> int:
        """The GPUs of the models that are accepted (any, if none is named)."""
        return mask_of([gpu.id for gpu in self.gpus if not models or gpu.model in models])


class Occupancy:
    """What is left of each GPU of a shape: thousandths by position, and free MIG instances as bits."""

    __slots__ = ("free", "mig", "shape", "whole")

    def __init__(self, shape: Shape, free: tuple[int, ...], mig: tuple[int, ...]) -> None:
        self.shape = shape
        self.free = free
        self.mig = mig
        untouched = [gpu.id for gpu, left in zip(shape.gpus, free, strict=True) if left >= WHOLE]
        self.whole = mask_of(untouched) & shape.usable & shape.plain

    def with_share(self, milli: int) -> int:
        """The usable GPUs that have `milli` thousandths left."""
        enough = [gpu.id for gpu, left in zip(self.shape.gpus, self.free, strict=True) if left >= milli]
        return mask_of(enough) & self.shape.usable & self.shape.plain

    def without(
        self, gpus: tuple[int, ...], milli: int, instances: tuple[tuple[int, str], ...]
    ) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """What is left of shares and MIG instances once these are taken (with a negative `milli`, given back).

        GPUs that the node does not have are left out; a share may go below zero.
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
        """The first GPU that can't give that, and why; None if all can."""
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
        """What new work could take of each GPU, by position."""
        usable = self.shape.usable & self.shape.plain
        return [
            max(left, 0) if usable >> gpu.id & 1 else 0
            for gpu, left in zip(self.shape.gpus, self.free, strict=True)
        ]
