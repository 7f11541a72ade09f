"""Summarise a cluster: nodes by state, allocation, utilization, the hottest GPUs."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from gpufleet.fleet.gpu_columns import GpuColumns
from gpufleet.fleet.node_view import NodeState
from gpufleet.fleet.state import Fleet
from gpufleet.fleet.visibility import held_slots
from gpufleet.model.hours import IDLE_BELOW
from gpufleet.model.namespaces import Namespaces
from gpufleet.model.reading import Column, Quantity

_MAX_CACHED = 64


class Overview(NamedTuple):
    """Counts of GPU nodes and the two rates, 0 to 1."""

    nodes: int
    healthy: int
    faulty: int
    idle: int
    partial: int
    busy: int
    unknown: int
    """Healthy nodes whose allocation is not known."""
    gpus: int
    allocated: int | None
    """None if the allocation is not known."""
    allocation_rate: float | None
    """Allocated among the healthy, schedulable GPUs; None if the allocation is not known."""
    utilization: float | None
    """Mean over the allocated GPUs; None if none of them has a reading."""
    schedulable: int
    """GPUs that are healthy and not cordoned, on such nodes: the denominator of `allocation_rate`."""
    schedulable_allocated: int | None
    """Allocated GPUs among them; None if the allocation is not known."""
    measured: int
    """Allocated GPUs with a reading: the denominator of `utilization` and of the idle share."""
    idle_gpus: int
    """Those with a utilization below `IDLE_BELOW`."""


@dataclass(frozen=True, slots=True)
class HotGpu:
    """A GPU with a high value of a quantity."""

    node: str
    index: int
    model: str
    value: float


def overview(fleet: Fleet, namespaces: Namespaces = None) -> Overview:
    """Return the counts and rates of the cluster; utilization and idle GPUs are those of `namespaces`."""
    fleet.refresh()
    totals = fleet.totals
    faulty = totals.states[NodeState.FAULTY]
    columns = fleet.gpu_columns
    utilization = columns.column(Quantity.UTILIZATION)
    if namespaces is None:
        utilization = utilization[columns.allocated[: len(columns.keys)]]
    else:
        utilization = utilization[held_slots(fleet, namespaces)]
    known = utilization[~np.isnan(utilization)]
    allocation_known = not totals.allocation_unknown
    rate = totals.usable_allocated / totals.usable if totals.usable else 0.0
    return Overview(
        nodes=totals.nodes,
        healthy=totals.nodes - faulty,
        faulty=faulty,
        idle=totals.states[NodeState.IDLE],
        partial=totals.states[NodeState.PARTIAL],
        busy=totals.states[NodeState.BUSY],
        unknown=totals.states[NodeState.UNKNOWN],
        gpus=totals.gpus,
        allocated=totals.allocated if allocation_known else None,
        allocation_rate=rate if allocation_known else None,
        utilization=float(known.mean()) / 100 if len(known) else None,
        schedulable=totals.usable,
        schedulable_allocated=totals.usable_allocated if allocation_known else None,
        measured=len(known),
        idle_gpus=int(np.count_nonzero(known < IDLE_BELOW)),
    )


def hottest(fleet: Fleet, quantity: Quantity, count: int, namespaces: Namespaces = None) -> list[HotGpu]:
    """Return the `count` GPUs of `namespaces` with the highest values, highest first, then by name."""
    fleet.refresh()
    if namespaces is not None:
        column = np.full(len(fleet.gpu_columns.keys), np.nan)
        slots = held_slots(fleet, namespaces)
        column[slots] = fleet.gpu_columns.column(quantity)[slots]
        return _hottest(fleet.gpu_columns, column, count)
    cache = fleet.gpu_columns.cache
    found: list[HotGpu] | None = cache.get((quantity, count))
    if found is None:
        if len(cache) >= _MAX_CACHED:
            cache.clear()
        found = cache[quantity, count] = _hottest(
            fleet.gpu_columns, fleet.gpu_columns.column(quantity), count
        )
    return found


def _hottest(columns: GpuColumns, column: Column, count: int) -> list[HotGpu]:
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
