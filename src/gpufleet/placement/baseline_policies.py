"""Simple node policies that others use, to compare with.

`best-fit` leaves the least of everything; `packing` fills GPUs in use, then nodes in use,
then idle nodes. Random choice needs no score: see replay.py.
"""

from dataclasses import dataclass

import numpy as np

from gpufleet.placement.node_score import UNKNOWN, Floats, Nodes
from gpufleet.placement.request import WHOLE, Request


@dataclass(frozen=True)
class BestFit:
    """The least left over, all resources counted as parts of a large node."""

    large_cpu_milli: int = 128_000
    large_memory_mib: int = 1_048_576
    name: str = "best-fit"

    def loss(self, nodes: Nodes) -> Floats:
        """None: only what is left over counts."""
        return np.zeros(len(nodes.cpu))

    def beside(self, request: Request, before: Nodes, after: Nodes) -> Floats:
        """CPU, memory and GPUs that remain, equally weighted."""
        cpu = np.where(after.cpu < UNKNOWN // 2, after.cpu, 0) / self.large_cpu_milli
        memory = np.where(after.memory < UNKNOWN // 2, after.memory, 0) / self.large_memory_mib
        left: Floats = WHOLE * (cpu + memory + after.free.sum(axis=1) / (8 * WHOLE))
        return left


@dataclass(frozen=True)
class Packing:
    """GPUs in use before idle GPUs, nodes in use before idle nodes, then the fewest GPUs left."""

    name: str = "packing"

    def loss(self, nodes: Nodes) -> Floats:
        """None: only the step counts."""
        return np.zeros(len(nodes.cpu))

    def beside(self, request: Request, before: Nodes, after: Nodes) -> Floats:
        """Idle nodes, then idle GPUs opened, then what is left."""
        gpus = np.fromiter((len(shape.gpus) for shape in before.shapes), np.int64, len(before.shapes))
        whole = (before.free == WHOLE).sum(axis=1)
        opened = whole - (after.free == WHOLE).sum(axis=1)
        idle_node = (whole == gpus[before.shape]) & (opened > 0)
        left: Floats = (idle_node * 64 + opened) * float(WHOLE) + after.free.sum(axis=1) / WHOLE
        return left
