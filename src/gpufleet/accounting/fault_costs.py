"""What faults cost: lost GPU-hours by cause, node and model, and the mean times between failures and to repair.

A fault costs the hours of its GPUs from the moment it was found until the node was returned, also if the GPUs would have
been idle. The history of a node is in its GpuRepair, which keeps its last 50 faults.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple


class Fault(NamedTuple):
    """One fault; `closed` is None while it lasts. Times are Unix seconds."""

    node: str
    model: str
    cause: str
    gpus: int
    opened: float
    closed: float | None = None


@dataclass
class FaultCosts:
    """The costs of faults in a span of time."""

    faults: int = 0
    open_faults: int = 0
    lost_gpu_hours: float = 0.0
    mean_hours_between_failures: float | None = None
    """Per node with GPUs; None without a fault."""
    mean_hours_to_repair: float | None = None
    """Of the faults that are over."""
    by_cause: dict[str, float] = field(default_factory=dict)
    by_node: dict[str, float] = field(default_factory=dict)
    by_model: dict[str, float] = field(default_factory=dict)


def fault_costs(faults: Iterable[Fault], nodes: int, start: float, end: float) -> FaultCosts:
    """Return the costs between `start` and `end` of a cluster with so many nodes with GPUs."""
    costs, repaired = FaultCosts(), []
    for fault in faults:
        until = min(end, fault.closed if fault.closed is not None else end)
        since = max(start, fault.opened)
        if until < since:
            continue
        hours = fault.gpus * (until - since) / 3600
        costs.lost_gpu_hours += hours
        for table, key in (
            (costs.by_cause, fault.cause),
            (costs.by_node, fault.node),
            (costs.by_model, fault.model),
        ):
            table[key] = table.get(key, 0.0) + hours
        costs.faults += start <= fault.opened <= end
        costs.open_faults += fault.closed is None or fault.closed > end
        if fault.closed is not None and fault.closed <= end:
            repaired.append(fault.closed - fault.opened)
    if costs.faults and nodes:
        costs.mean_hours_between_failures = nodes * (end - start) / 3600 / costs.faults
    if repaired:
        costs.mean_hours_to_repair = sum(repaired) / len(repaired) / 3600
    return costs
