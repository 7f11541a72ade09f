"""What faults cost: lost GPU-hours by fault, cause, node and model, and the mean times between failures and to repair.

A fault costs the hours of its GPUs from the moment it was found until the node was returned, also if the GPUs would have
been idle. The history of a node is in its GpuRepair, which keeps its last 50 faults.
"""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec

_MAX_LISTED = 20


class Fault(NamedTuple):
    """One fault; `closed` is None while it lasts. Times are Unix seconds."""

    node: str
    model: str
    cause: str
    gpus: int
    opened: float
    closed: float | None = None


class FaultCost(msgspec.Struct, frozen=True):
    """What one fault cost."""

    node: str
    model: str
    cause: str
    gpus: int
    opened: datetime
    closed: datetime | None
    """Null while it lasts."""
    lost_gpu_hours: float


class FaultCosts(msgspec.Struct, kw_only=True):
    """The costs of faults in a span of time; the largest come first."""

    faults: int = 0
    """Those that began in this time."""
    open_faults: int = 0
    lost_gpu_hours: float = 0.0
    mean_hours_between_failures: float | None = None
    """Of a node with GPUs; null without a fault."""
    mean_hours_to_repair: float | None = None
    """Of the faults that ended in this time."""
    by_cause: dict[str, float] = msgspec.field(default_factory=dict)
    by_node: dict[str, float] = msgspec.field(default_factory=dict)
    by_model: dict[str, float] = msgspec.field(default_factory=dict)
    costliest: list[FaultCost] = msgspec.field(default_factory=list)
    """The faults that cost most, at most 20."""


def fault_costs(faults: Iterable[Fault], nodes: int, start: float, end: float) -> FaultCosts:
    """Return the costs between `start` and `end` of a cluster with so many nodes with GPUs."""
    costs, repaired, listed = FaultCosts(), [], []
    tables: tuple[dict[str, float], ...] = ({}, {}, {})
    for fault in faults:
        until = min(end, fault.closed if fault.closed is not None else end)
        since = max(start, fault.opened)
        if until < since:
            continue
        hours = fault.gpus * (until - since) / 3600
        listed.append((hours, fault))
        costs.lost_gpu_hours += hours
        for table, key in zip(tables, (fault.cause, fault.node, fault.model), strict=True):
            table[key] = table.get(key, 0.0) + hours
        costs.faults += start <= fault.opened <= end
        costs.open_faults += fault.closed is None or fault.closed > end
        if fault.closed is not None and fault.closed <= end:
            repaired.append(fault.closed - fault.opened)
    costs.lost_gpu_hours = round(costs.lost_gpu_hours, 3)
    costs.by_cause, costs.by_node, costs.by_model = map(_largest_first, tables)
    listed.sort(key=lambda pair: (-pair[0], pair[1]))
    costs.costliest = [_cost(fault, hours) for hours, fault in listed[:_MAX_LISTED]]
    if costs.faults and nodes:
        costs.mean_hours_between_failures = round(nodes * (end - start) / 3600 / costs.faults, 3)
    if repaired:
        costs.mean_hours_to_repair = round(sum(repaired) / len(repaired) / 3600, 3)
    return costs


def _cost(fault: Fault, hours: float) -> FaultCost:
    return FaultCost(
        fault.node,
        fault.model,
        fault.cause,
        fault.gpus,
        datetime.fromtimestamp(fault.opened, UTC),
        None if fault.closed is None else datetime.fromtimestamp(fault.closed, UTC),
        round(hours, 3),
    )


def _largest_first(hours: dict[str, float]) -> dict[str, float]:
    return {
        key: round(value, 3) for key, value in sorted(hours.items(), key=lambda pair: (-pair[1], pair[0]))
    }
