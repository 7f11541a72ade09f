"""Common node scores, as a baseline for comparison.

`best-fit` leaves the least free capacity. `packing` fills GPUs in use, then nodes in use, then
idle nodes. Random choice needs no score: see replay.py.
"""

from dataclasses import dataclass

import numpy as np

from gpufleet.placement.node_score import UNKNOWN, Floats, Nodes
from gpufleet.placement.request import WHOLE, Request


@dataclass(frozen=True)
class BestFit:
    """Prefer the node with the least capacity left, each resource relative to a large node."""

    large_cpu_milli: int = 128_000
    large_memory_mib: int = 1_048_576
    name: str = "best-fit"

    def loss(self, nodes: Nodes) -> Floats:
        """Return zero: only remaining capacity counts."""
        return np.zeros(len(nodes.cpu))

    def tie_break(self, request: Request, before: Nodes, after: Nodes) -> Floats:
        """Return the remaining CPU, memory and GPUs, equally weighted."""
        cpu = np.where(after.cpu < UNKNOWN // 2, after.cpu, 0) / self.large_cpu_milli
        memory = np.where(after.memory < UNKNOWN // 2, after.memory, 0) / self.large_memory_mib
        left: Floats = WHOLE * (cpu + memory + after.free.sum(axis=1) / (8 * WHOLE))
        return left


@dataclass(frozen=True)
class Packing:
    """Prefer GPUs in use, then nodes in use, then the fewest free GPUs."""

    name: str = "packing"

    def loss(self, nodes: Nodes) -> Floats:
        """Return zero: only the placement itself counts."""
        return np.zeros(len(nodes.cpu))

    def tie_break(self, request: Request, before: Nodes, after: Nodes) -> Floats:
        """Return a cost for using idle nodes, then idle GPUs, then for capacity left."""
        gpus = np.fromiter((len(shape.gpus) for shape in before.shapes), np.int64, len(before.shapes))
        whole = (before.free == WHOLE).sum(axis=1)
        opened = whole - (after.free == WHOLE).sum(axis=1)
        idle_node = (whole == gpus[before.shape]) & (opened > 0)
        left: Floats = (idle_node * 64 + opened) * float(WHOLE) + after.free.sum(axis=1) / WHOLE
        return left
