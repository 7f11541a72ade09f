"""The default node policy: keep free GPUs usable for the demand to come.

Free capacity of a node is worth what the demand can make of it. It is lost in two ways, and
a placement costs what it adds to the losses:

- fragments: GPUs that the next task, drawn from the demand, could not use on that node
  (the measure of fragmentation gradient descent, FGD);
- stranded GPUs: more of them than the node's free CPU and memory can feed. One more task may
  still fit, so FGD doesn't see it, but not as many as there are GPUs. Tasks differ in what
  they eat, so the loss is counted for a lean, a mean and a hungry mix.

Of nodes that lose the same the fullest is taken. With `FGD` there are only the fragments.
"""

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from gpufleet.placement.demand import Demand
from gpufleet.placement.node_score import UNIT, UNKNOWN, Floats, Nodes
from gpufleet.placement.request import WHOLE, Request

_USUAL_CPU_PER_GPU = 8000  # milli; only where the demand names no CPU


@dataclass(frozen=True)
class Weights:
    """How much each loss counts, in GPUs; found on variations of a public trace (docs/placement.md)."""

    fragments: float = 1.0
    stranded: float = 2.0
    stranded_by_mix: float = 0.25
    mix_width: float = 0.3
    stranded_by_memory: float = 0.3
    leftover_cpu: float = 0.003
    leftover_gpu: float = 0.0001


@dataclass(frozen=True)
class Usability:
    """Scores placements by what they take away from `demand`."""

    demand: Demand
    weights: Weights = Weights()
    name: str = "default"
    _table: "_Table" = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_table", _Table(self.demand))

    def loss(self, nodes: Nodes) -> Floats:
        """GPU capacity of each node that the demand is expected not to use, in thousandths."""
        total: Floats = nodes.free.sum(axis=1).astype(np.float64)
        return self.weights.fragments * self._table.fragments(nodes, total) + self._stranded(nodes, total)

    def _stranded(self, nodes: Nodes, total: Floats) -> Floats:
        table, weights = self._table, self.weights
        lost = np.zeros(len(total))
        if table.cpu_per_gpu and (weights.stranded or weights.stranded_by_mix):
            fed = nodes.cpu * (WHOLE / table.cpu_per_gpu)
            lost += weights.stranded * np.maximum(total - fed, 0)
            for side in (1 - weights.mix_width, 1 + weights.mix_width):
                lost += weights.stranded_by_mix * np.maximum(total - fed / side, 0)
        if table.memory_per_gpu:
            fed = nodes.memory * (WHOLE / table.memory_per_gpu)
            lost += weights.stranded_by_memory * np.maximum(total - fed, 0)
        return lost

    def beside(self, request: Request, before: Nodes, after: Nodes) -> Floats:
        """A little for what is left over, so that of equal nodes the fullest is taken."""
        left: Floats = self.weights.leftover_gpu * after.free.sum(axis=1)
        cpu = np.where(after.cpu < UNKNOWN // 2, after.cpu, 0)
        return left + self.weights.leftover_cpu * cpu * (
            WHOLE / (self._table.cpu_per_gpu or _USUAL_CPU_PER_GPU)
        )


def fgd(demand: Demand) -> Usability:
    """Fragmentation gradient descent: fragments only, ties by name."""
    return Usability(demand, Weights(1.0, *[0.0] * 6), name="fgd")


class _Table:
    """The demand as columns: GPU sizes, and for each kind its size, CPU, memory and weight."""

    def __init__(self, demand: Demand) -> None:
        gpu = [(kind, weight) for kind, weight in demand.kinds if kind.count]
        sizes = sorted({(kind.count, kind.milli, kind.models) for kind, _ in gpu})
        self._models = [frozenset(models) for _, _, models in sizes]
        self._count = np.array([count for count, _, _ in sizes], np.int64)
        self._milli = np.array([milli for _, milli, _ in sizes], np.int64)
        at = {size: index for index, size in enumerate(sizes)}
        self._size = np.array([at[kind.count, kind.milli, kind.models] for kind, _ in gpu], np.intp)
        self._cpu = np.array([kind.cpu_milli for kind, _ in gpu], np.int64)
        self._memory = np.array([kind.memory_mib for kind, _ in gpu], np.int64)
        # Whole weights keep the weighted sums exact in floats, so that no order of summation shows.
        self._weight = _whole([weight for _, weight in gpu])
        gpus = sum(kind.gpu_milli * weight for kind, weight in gpu) / WHOLE
        self.cpu_per_gpu = sum(kind.cpu_milli * weight for kind, weight in gpu) / gpus if gpus else 0.0
        self.memory_per_gpu = sum(kind.memory_mib * weight for kind, weight in gpu) / gpus if gpus else 0.0

    def fragments(self, nodes: Nodes, total: Floats) -> Floats:
        """Free GPU capacity that the next task can't use, expected over the kinds."""
        if not len(self._weight):
            return np.zeros(len(total))
        fits = nodes.free[:, :, None] >= self._milli
        if any(self._models):
            fits &= self._accepted(nodes)
        enough = fits.sum(axis=1) >= self._count
        usable = np.where(enough, (nodes.free[:, :, None] * fits).sum(axis=1), 0)
        fed = (nodes.cpu[:, None] >= self._cpu) & (nodes.memory[:, None] >= self._memory)
        used = (usable[:, self._size] * fed) @ self._weight
        lost: Floats = total - used / self._weight.sum()
        return lost

    def _accepted(self, nodes: Nodes) -> NDArray[np.bool_]:
        """Which GPUs are of a model that each size accepts."""
        needed = np.unique(nodes.shape)
        table = np.zeros((len(nodes.shapes), nodes.free.shape[1], len(self._models)), np.bool_)
        for index in needed.tolist():
            for at, gpu in enumerate(nodes.shapes[index].gpus):
                table[index, at] = [not models or gpu.model in models for models in self._models]
        accepted: NDArray[np.bool_] = table[nodes.shape]
        return accepted


def _whole(weights: list[float]) -> Floats:
    """The weights as whole numbers that add up to about UNIT."""
    total = sum(weights)
    return np.array([max(1, round(weight / total * UNIT)) for weight in weights], np.float64)
