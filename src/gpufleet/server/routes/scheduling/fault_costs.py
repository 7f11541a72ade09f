"""`/api/repairs/costs`: what faults cost, by fault, cause, node and model."""

import time
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import Meta

from gpufleet.accounting.fault_costs import Fault, FaultCosts, fault_costs
from gpufleet.fleet.clusters import Clusters
from gpufleet.server.http.routing import Route, get
from gpufleet.server.routes.params import ClusterParams
from gpufleet.server.routes.scheduling.faults import FaultSource

_MONTH = 30 * 86400


class CostParams(ClusterParams, rename="camel"):
    """The span of the costs."""

    start: Annotated[int, Meta(ge=0, description="Unix seconds; default: 30 days before the end.")] = 0
    end: Annotated[int, Meta(ge=0, description="Unix seconds; default: now.")] = 0


class CostlyFault(msgspec.Struct, rename="camel"):
    """What one fault cost."""

    node: str
    model: str
    cause: str
    gpus: int
    opened: datetime
    closed: datetime | None
    """Null while it lasts."""
    lost_gpu_hours: float


class Costs(msgspec.Struct, rename="camel"):
    """What faults cost in a span of time; the largest come first."""

    start: int
    end: int
    faults: int
    open_faults: int
    lost_gpu_hours: float
    mean_hours_between_failures: float | None
    mean_hours_to_repair: float | None
    by_cause: dict[str, float]
    by_node: dict[str, float]
    by_model: dict[str, float]
    costliest: list[CostlyFault]
    """The faults that cost most, at most 20."""


def fault_cost_routes(
    clusters: Clusters, sources: Mapping[str, FaultSource], now: Callable[[], float] = time.time
) -> list[Route]:
    """Return the route; a cluster that is not on Kubernetes has no faults."""

    @get("/api/repairs/costs", scope="unscoped", example=_COSTS)
    async def read_costs(query: CostParams) -> Costs:
        """Lost GPU-hours by fault, cause, node and model, and mean times between failures and to repair."""
        source = sources.get(clusters.synced(query.cluster).name)
        end = query.end or int(now())
        start = query.start or max(0, end - _MONTH)
        found = costs_of(source, start, end) if source else FaultCosts()
        listed = [CostlyFault(*msgspec.structs.astuple(each)) for each in found.costliest]
        values = {**msgspec.structs.asdict(found), "costliest": listed}
        return Costs(start=start, end=end, **values)

    return [read_costs]


def costs_of(source: FaultSource, start: float, end: float) -> FaultCosts:
    """Return what the faults of a cluster cost."""
    reports = list(source.reports())
    models = {
        each.metadata.name: each.status.devices[0].model or "" for each in reports if each.status.devices
    }
    nodes = sum(1 for each in reports if each.status.total)
    return fault_costs(faults_of(source, models), nodes, start, end)


def faults_of(source: FaultSource, models: Mapping[str, str]) -> list[Fault]:
    """Return the faults of all nodes, those that last included."""
    found = []
    for repair in source.repairs():
        node, status = repair.metadata.name, repair.status
        for episode in status.history:
            opened, closed = episode.opened.timestamp(), episode.closed.timestamp()
            found.append(Fault(node, episode.model, episode.cause, episode.gpus, opened, closed))
        if status.phase != "Healthy" and status.opened is not None:
            model, opened = models.get(node, ""), status.opened.timestamp()
            found.append(Fault(node, model, status.cause, len(status.gpus), opened))
    return found


_OPENED = datetime.fromisoformat("2026-01-01T10:00:00Z")
_COSTS = Costs(
    start=1767225600,
    end=1767312000,
    faults=1,
    open_faults=0,
    lost_gpu_hours=1.5,
    mean_hours_between_failures=960.0,
    mean_hours_to_repair=1.5,
    by_cause={"xid-48": 1.5},
    by_node={"gpu-node-1": 1.5},
    by_model={"NVIDIA_H200": 1.5},
    costliest=[
        CostlyFault(
            "gpu-node-1",
            "NVIDIA_H200",
            "xid-48",
            1,
            _OPENED,
            datetime.fromisoformat("2026-01-01T11:30:00Z"),
            1.5,
        )
    ],
)
