"""Summarise a cluster: nodes by state, allocation, utilization, the hottest GPUs."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gpufleet.fleet.gpu_columns import GpuColumns
from gpufleet.fleet.node_view import NodeState
from gpufleet.fleet.state import Fleet
from gpufleet.model.reading import Quantity

_MAX_CACHED = 64


class Overview(NamedTuple):
    """Counts of GPU nodes and the two rates, 0 to 1."""

    nodes: int
    healthy: int
    faulty: int
    idle: int
    partial: int
    busy: int
    gpus: int
    allocated: int
    allocation_rate: float
    """Allocated among the healthy, schedulable GPUs."""
    utilization: float | None
    """Mean over the allocated GPUs; None if none of them has a reading."""


@dataclass(frozen=True, slots=True)
class HotGpu:
    """A GPU with a high value of a quantity."""

    node: str
    index: int
    model: str
    value: float


def overview(fleet: Fleet) -> Overview:
    """Return the counts and rates of the cluster."""
    fleet.refresh()
    totals = fleet.totals
    faulty = totals.states[NodeState.FAULTY]
    columns = fleet.gpu_columns
    utilization = columns.column(Quantity.UTILIZATION)[columns.allocated[: len(columns.keys)]]
    known = utilization[~np.isnan(utilization)]
    return Overview(
        nodes=totals.nodes,
        healthy=totals.nodes - faulty,
        faulty=faulty,
        idle=totals.states[NodeState.IDLE],
        partial=totals.states[NodeState.PARTIAL],
        busy=totals.states[NodeState.BUSY],
        gpus=totals.gpus,
        allocated=totals.allocated,
        allocation_rate=totals.usable_allocated / totals.usable if totals.usable else 0.0,
        utilization=float(known.mean()) / 100 if len(known) else None,
    )


def hottest(fleet: Fleet, quantity: Quantity, count: int) -> list[HotGpu]:
    """Return the `count` GPUs with the highest values of a quantity, highest first, then by name."""
    fleet.refresh()
    cache = fleet.gpu_columns.cache
    found: list[HotGpu] | None = cache.get((quantity, count))
    if found is None:
        if len(cache) >= _MAX_CACHED:
            cache.clear()
        found = cache[quantity, count] = _hottest(fleet.gpu_columns, quantity, count)
    return found


def _hottest(columns: GpuColumns, quantity: Quantity, count: int) -> list[HotGpu]:
    column = columns.column(quantity)
    known = np.flatnonzero(~np.isnan(column))
    if len(known) > count:
        # Keep ties at the threshold until the names decide.
        threshold = np.partition(column[known], len(known) - count)[len(known) - count]
        known = known[column[known] >= threshold]
    found = [
        HotGpu(key[0], key[1], columns.models[slot], float(column[slot]))
        for slot in known.tolist()
        if (key := columns.keys[slot]) is not None
    ]
    return sorted(found, key=lambda gpu: (-gpu.value, gpu.node, gpu.index))[:count]


def utilization_of(fleet: Fleet, gpus: list[tuple[str, int]]) -> float | None:
    """Return the mean utilization of some GPUs, 0 to 1, or None if none of them has a reading."""
    slots = [slot for node, index in gpus for slot in fleet.gpu_columns.slots_of(node, [index])]
    values = fleet.gpu_columns.column(Quantity.UTILIZATION)[slots]
    known = values[~np.isnan(values)]
    return float(known.mean()) / 100 if len(known) else None
