"""`/api/findings` and `/api/repairs*`: what is wrong with nodes, what is done about it, and what it cost.

Messages may name pods, so callers who are limited to namespaces get none of this.
"""

import time
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from typing import Annotated, Protocol

import msgspec
from msgspec import Meta

from gpufleet.accounting.fault_costs import Fault, FaultCosts, fault_costs
from gpufleet.fleet.clusters import Clusters
from gpufleet.kubernetes.crds.gpu_node_status import FindingStatus, GpuNodeStatus
from gpufleet.kubernetes.crds.gpu_repair import Episode, GpuRepair
from gpufleet.server.http.routing import Route, get
from gpufleet.server.routes.params import ClusterParams, PageNumber, PageSize

_MONTH = 30 * 86400


class FaultSource(Protocol):
    """The reports of agents and the repairs of one cluster."""

    def reports(self) -> Iterable[GpuNodeStatus]:
        """Return what agents report."""
        ...

    def repairs(self) -> Iterable[GpuRepair]:
        """Return the repairs."""
        ...


class FindingParams(ClusterParams, rename="camel"):
    """Filter and page of the findings."""

    page_num: PageNumber = 1
    page_size: PageSize = 100
    node: Annotated[str, Meta(max_length=253, description="Findings of this node only.")] = ""
    severity: Annotated[
        str, Meta(max_length=20, description="Warning, Degraded or Unhealthy; empty for all.")
    ] = ""


class RepairParams(ClusterParams, rename="camel"):
    """Filter and page of the repairs."""

    page_num: PageNumber = 1
    page_size: PageSize = 100
    node: Annotated[str, Meta(max_length=253, description="The repair of this node only.")] = ""
    open: Annotated[bool, Meta(description="Only nodes that have a fault now.")] = False


class CostParams(ClusterParams, rename="camel"):
    """The span of the costs."""

    start: Annotated[int, Meta(ge=0, description="Unix seconds; default: 30 days before the end.")] = 0
    end: Annotated[int, Meta(ge=0, description="Unix seconds; default: now.")] = 0


class FindingRow(msgspec.Struct, rename="camel"):
    """An open finding of a node or of one of its GPUs."""

    node: str
    gpu: int | None
    signal: str
    severity: str
    scope: str
    message: str
    action: str
    since: datetime | None


class FindingPage(msgspec.Struct):
    """One page of findings, and how many there are in all."""

    data: list[FindingRow]
    total: int


class EpisodeRow(msgspec.Struct, rename="camel"):
    """A fault that is over."""

    cause: str
    message: str
    gpus: int
    model: str
    opened: datetime
    closed: datetime
    steps: list[str]


class RepairRow(msgspec.Struct, rename="camel"):
    """The repair of a node: what happens now, and its earlier faults."""

    node: str
    phase: str
    since: datetime | None
    message: str
    cause: str
    gpus: list[int]
    action: str
    attempts: int
    passes: int
    opened: datetime | None
    acknowledged_by: str
    silenced_until: datetime | None
    steps: list[str]
    history: list[EpisodeRow]


class RepairPage(msgspec.Struct):
    """One page of repairs, and how many there are in all."""

    data: list[RepairRow]
    total: int


class Costs(msgspec.Struct, rename="camel"):
    """What faults cost in a span of time."""

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


def fault_routes(clusters: Clusters, sources: Mapping[str, FaultSource]) -> list[Route]:
    """Return the routes; a cluster that is not on Kubernetes has no findings."""

    def source_of(name: str) -> FaultSource | None:
        return sources.get(clusters.synced(name).name)

    @get("/api/findings", scope="unscoped", example=FindingPage([_FINDING], 1))
    async def list_findings(query: FindingParams) -> FindingPage:
        """Open findings about nodes and GPUs, the worst first."""
        source = source_of(query.cluster)
        rows = [
            row
            for row in (finding_rows(source.reports()) if source else ())
            if query.node in ("", row.node) and query.severity in ("", row.severity)
        ]
        rows.sort(key=lambda row: (_SEVERITIES.index(row.severity), row.node, row.gpu or 0, row.signal))
        first = (query.page_num - 1) * query.page_size
        return FindingPage(rows[first : first + query.page_size], len(rows))

    @get("/api/repairs", scope="unscoped", example=RepairPage([_REPAIR], 1))
    async def list_repairs(query: RepairParams) -> RepairPage:
        """Repairs of nodes by name, with the history of their faults."""
        source = source_of(query.cluster)
        found = [
            repair
            for repair in (source.repairs() if source else ())
            if query.node in ("", repair.metadata.name)
            and (not query.open or repair.status.phase != "Healthy")
        ]
        found.sort(key=lambda repair: repair.metadata.name)
        first = (query.page_num - 1) * query.page_size
        rows = [_repair_row(each) for each in found[first : first + query.page_size]]
        return RepairPage(rows, len(found))

    @get("/api/repairs/costs", scope="unscoped", example=_COSTS)
    async def read_costs(query: CostParams) -> Costs:
        """Lost GPU-hours by cause, node and model, and mean times between failures and to repair."""
        source = source_of(query.cluster)
        end = query.end or int(time.time())
        start = query.start or max(0, end - _MONTH)
        if source is None:
            return _costs(FaultCosts(), start, end)
        nodes = sum(1 for report in source.reports() if report.status.total)
        return _costs(fault_costs(faults_of(source.repairs()), nodes, start, end), start, end)

    return [list_findings, read_costs, list_repairs]


def faults_of(repairs: Iterable[GpuRepair]) -> list[Fault]:
    """Return the faults of all nodes, those that last included."""
    found = []
    for repair in repairs:
        node, status = repair.metadata.name, repair.status
        for episode in status.history:
            opened, closed = episode.opened.timestamp(), episode.closed.timestamp()
            found.append(Fault(node, episode.model, episode.cause, episode.gpus, opened, closed))
        if status.phase != "Healthy" and status.opened is not None:
            model = status.history[-1].model if status.history else ""
            found.append(Fault(node, model, status.cause, len(status.gpus), status.opened.timestamp()))
    return found


def finding_rows(reports: Iterable[GpuNodeStatus]) -> list[FindingRow]:
    """Return the findings of nodes."""
    return [
        FindingRow(
            node=report.metadata.name,
            gpu=each.gpu,
            signal=each.signal,
            severity=each.severity,
            scope=each.scope,
            message=each.message,
            action=each.action,
            since=each.since,
        )
        for report in reports
        for each in report.status.findings or _findings_of_devices(report)
    ]


def _findings_of_devices(report: GpuNodeStatus) -> Iterator[FindingStatus]:
    """Yield the unhealthy GPUs of an agent that reports no findings: it is older than they are."""
    for device in report.status.devices:
        if device.health == "Unhealthy":
            yield FindingStatus(
                "health", "Unhealthy", "GPU", device.health_reason, gpu=device.id, since=device.health_since
            )


def _repair_row(repair: GpuRepair) -> RepairRow:
    status = repair.status
    return RepairRow(
        node=repair.metadata.name,
        phase=status.phase,
        since=status.since,
        message=status.message,
        cause=status.cause,
        gpus=list(status.gpus),
        action=status.action,
        attempts=status.attempts,
        passes=status.passes,
        opened=status.opened,
        acknowledged_by=repair.spec.acknowledged_by,
        silenced_until=repair.spec.silenced_until,
        steps=list(status.steps),
        history=[_episode_row(each) for each in status.history],
    )


def _episode_row(episode: Episode) -> EpisodeRow:
    return EpisodeRow(
        episode.cause,
        episode.message,
        episode.gpus,
        episode.model,
        episode.opened,
        episode.closed,
        list(episode.steps),
    )


def _costs(costs: FaultCosts, start: int, end: int) -> Costs:
    return Costs(
        start=start,
        end=end,
        faults=costs.faults,
        open_faults=costs.open_faults,
        lost_gpu_hours=round(costs.lost_gpu_hours, 3),
        mean_hours_between_failures=_rounded(costs.mean_hours_between_failures),
        mean_hours_to_repair=_rounded(costs.mean_hours_to_repair),
        by_cause=_table(costs.by_cause),
        by_node=_table(costs.by_node),
        by_model=_table(costs.by_model),
    )


def _table(hours: Mapping[str, float]) -> dict[str, float]:
    """Return the largest first."""
    return {key: round(value, 3) for key, value in sorted(hours.items(), key=lambda pair: -pair[1])}


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, 3)


_SEVERITIES = ("Unhealthy", "Degraded", "Warning")
_OPENED, _CLOSED = (
    datetime.fromisoformat("2026-01-01T10:00:00Z"),
    datetime.fromisoformat("2026-01-01T11:30:00Z"),
)
_FINDING = FindingRow(
    "gpu-node-1", 3, "xid-48", "Unhealthy", "GPU", "XID 48: uncorrectable ECC error", "reset", _OPENED
)
_REPAIR = RepairRow(
    node="gpu-node-1",
    phase="Healthy",
    since=_CLOSED,
    message="all tests passed",
    cause="",
    gpus=[],
    action="",
    attempts=0,
    passes=0,
    opened=None,
    acknowledged_by="",
    silenced_until=None,
    steps=[],
    history=[EpisodeRow("xid-48", "XID 48: uncorrectable ECC error", 1, "NVIDIA_H200", _OPENED, _CLOSED, [])],
)
_COSTS = Costs(
    1767225600, 1767312000, 1, 0, 1.5, 960.0, 1.5, {"xid-48": 1.5}, {"gpu-node-1": 1.5}, {"NVIDIA_H200": 1.5}
)
