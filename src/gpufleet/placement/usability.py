"""The default node score: keep free GPUs usable for the expected demand.

Free capacity of a node is lost in two ways, and a placement costs what it adds to the losses:

- fragments: GPUs that the next request, drawn from the demand, could not use on that node
  (the measure of fragmentation gradient descent, FGD);
- stranded GPUs: GPUs for which the node lacks free CPU or memory. FGD does not see them as long
  as one more request fits. Requests differ in CPU per GPU, so the loss is computed for a low, a
  mean and a high ratio.

Ties go to the fullest node. `fgd` counts fragments only.
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
    """The weight of each loss, in GPUs; tuned on variations of a public trace (docs/placement.md)."""

    fragments: float = 1.0
    stranded: float = 2.0
    stranded_by_mix: float = 0.25
    mix_width: float = 0.3
    stranded_by_memory: float = 0.3
    leftover_cpu: float = 0.003
    leftover_gpu: float = 0.0001


@dataclass(frozen=True)
class Usability:
    """Score placements by the capacity that they make unusable for `demand`."""

    demand: Demand
    weights: Weights = Weights()
    name: str = "default"
    _table: "_Table" = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_table", _Table(self.demand))

    def loss(self, nodes: Nodes) -> Floats:
        """Return the GPU capacity of each node that the demand is not expected to use, in thousandths."""
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

    def tie_break(self, request: Request, before: Nodes, after: Nodes) -> Floats:
        """Return a small cost for free capacity, so that ties go to the fullest node."""
        left: Floats = self.weights.leftover_gpu * after.free.sum(axis=1)
        cpu = np.where(after.cpu < UNKNOWN // 2, after.cpu, 0)
        return left + self.weights.leftover_cpu * cpu * (
            WHOLE / (self._table.cpu_per_gpu or _USUAL_CPU_PER_GPU)
        )


def fgd(demand: Demand) -> Usability:
    """Return the score of fragmentation gradient descent: fragments only, ties by name."""
    return Usability(demand, Weights(1.0, *[0.0] * 6), name="fgd")


class _Table:
    """The demand as columns: GPU sizes, and the size, CPU, memory and weight of each kind."""

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
        # Integer weights keep the weighted sums exact in floats, whatever the order of summation.
        self._weight = _whole([weight for _, weight in gpu])
        gpus = sum(kind.gpu_milli * weight for kind, weight in gpu) / WHOLE
        self.cpu_per_gpu = sum(kind.cpu_milli * weight for kind, weight in gpu) / gpus if gpus else 0.0
        self.memory_per_gpu = sum(kind.memory_mib * weight for kind, weight in gpu) / gpus if gpus else 0.0

    def fragments(self, nodes: Nodes, total: Floats) -> Floats:
        """Return the expected free GPU capacity that the next request can't use."""
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
        """Return which GPUs have a model that each size accepts."""
        needed = np.unique(nodes.shape)
        table = np.zeros((len(nodes.shapes), nodes.free.shape[1], len(self._models)), np.bool_)
        for index in needed.tolist():
            for at, gpu in enumerate(nodes.shapes[index].gpus):
                table[index, at] = [not models or gpu.model in models for models in self._models]
        accepted: NDArray[np.bool_] = table[nodes.shape]
        return accepted


def _whole(weights: list[float]) -> Floats:
    """Scale the weights to integers that sum to about UNIT."""
    total = sum(weights)
    return np.array([max(1, round(weight / total * UNIT)) for weight in weights], np.float64)
