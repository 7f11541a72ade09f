"""`/api/findings` and `/api/repairs*`: what is wrong with nodes, what is done about it, and what operators say about it.

Messages may name pods, so callers who are limited to namespaces get none of this.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Annotated, Literal, Protocol

import msgspec
from msgspec import Meta

from gpufleet.errors import NotFound
from gpufleet.fleet.clusters import Clusters
from gpufleet.fleet.stragglers import Straggler, StragglerWatch
from gpufleet.gpus.rules import RULES, Severity, advice
from gpufleet.kubernetes.crds.gpu_node_status import FindingStatus, GpuNodeStatus
from gpufleet.kubernetes.crds.gpu_repair import Episode, GpuRepair
from gpufleet.kubernetes.repair_requests import Spec, acknowledged, resumed, silenced
from gpufleet.repair.decide import drains_of, is_disrupted
from gpufleet.server.http.request_context import RequestContext
from gpufleet.server.http.routing import Route, get, post
from gpufleet.server.routes.params import ClusterParams, PageNumber, PageSize

SeverityName = Literal["Unhealthy", "Degraded", "Warning"]
_MAX_SILENCE = 30 * 86400


class FaultSource(Protocol):
    """The reports of agents and the repairs of one cluster."""

    def reports(self) -> Iterable[GpuNodeStatus]:
        """Return what agents report."""
        ...

    def repairs(self) -> Iterable[GpuRepair]:
        """Return the repairs."""
        ...

    async def change_repair(self, node: str, spec: Spec) -> GpuRepair:
        """Write what an operator says about a node."""
        ...


class FindingParams(ClusterParams, rename="camel"):
    """Filter and page of the findings."""

    page_num: PageNumber = 1
    page_size: PageSize = 100
    node: Annotated[str, Meta(max_length=253, description="Findings of this node only.")] = ""
    severity: Annotated[
        Literal["", "Unhealthy", "Degraded", "Warning"], Meta(description="Findings of this severity only.")
    ] = ""


class RepairParams(ClusterParams, rename="camel"):
    """Filter and page of the repairs."""

    page_num: PageNumber = 1
    page_size: PageSize = 100
    node: Annotated[str, Meta(max_length=253, description="The repair of this node only.")] = ""
    open: Annotated[bool, Meta(description="Only nodes that have a fault now.")] = False


class AcknowledgeBody(msgspec.Struct):
    """Who acknowledges."""

    by: Annotated[str, Meta(max_length=100, description="Default: the caller.")] = ""


class SilenceBody(msgspec.Struct):
    """How long a node is silenced."""

    seconds: Annotated[int, Meta(ge=0, le=_MAX_SILENCE, description="0 ends the silence.")] = 3600


class ResumeBody(msgspec.Struct):
    """Nothing to say."""


class FindingRow(msgspec.Struct, rename="camel"):
    """An open finding of a node, of one of its GPUs, or of a rank of a job."""

    node: str
    gpu: int | None
    signal: str
    severity: SeverityName
    scope: str
    message: str
    action: str
    since: datetime | None
    advice: str = ""
    """What a human should do."""
    workload_uid: str = ""
    """The job that is held up, for stragglers and hangs."""
    workload: str = ""
    rank: int | None = None
    acknowledged_by: str = ""
    """Empty if it was not acknowledged since it began."""
    silenced_until: datetime | None = None


class FindingPage(msgspec.Struct, rename="camel"):
    """One page of findings, and how many there are in all."""

    data: list[FindingRow]
    total: int
    kernel_log_unread: dict[str, int] = msgspec.field(default_factory=dict)
    """Why agents do not read the kernel log, where they don't, with the number of nodes."""


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


class RepairPage(msgspec.Struct, rename="camel"):
    """One page of repairs, how many there are in all, and what the disruption budget counts."""

    data: list[RepairRow]
    total: int
    nodes: int = 0
    """Nodes with GPUs."""
    disrupted: int = 0
    """Nodes that are drained, repaired, tested, or wait for a human after a drain (`repair.max_share`)."""
    drains_in_hour: int = 0
    """Drains that started in the last hour (`repair.max_per_hour`)."""


def fault_routes(
    clusters: Clusters,
    sources: Mapping[str, FaultSource],
    watches: Mapping[str, StragglerWatch] | None = None,
    now: Callable[[], datetime] = lambda: datetime.now(UTC),
) -> list[Route]:
    """Return the routes; a cluster that is not on Kubernetes has no findings but those about its jobs."""

    def source_of(name: str) -> FaultSource | None:
        return sources.get(clusters.synced(name).name)

    async def change(name: str, node: str, spec: Callable[[GpuRepair | None], Spec]) -> RepairRow:
        source = source_of(name)
        if source is None:
            raise NotFound(f"cluster {clusters.synced(name).name} has no repairs: it is not on Kubernetes")
        found = next((each for each in source.repairs() if each.metadata.name == node), None)
        return _repair_row(await source.change_repair(node, spec(found)))

    @get("/api/findings", scope="unscoped", example=FindingPage([_FINDING], 1))
    async def list_findings(query: FindingParams) -> FindingPage:
        """Open findings about nodes, GPUs and ranks of jobs, the worst first."""
        source, watch = source_of(query.cluster), (watches or {}).get(clusters.synced(query.cluster).name)
        found = finding_rows(source.reports()) if source else []
        found += [_straggler_row(each) for each in (watch.stragglers() if watch else ())]
        said = {each.metadata.name: each for each in (source.repairs() if source else ())}
        rows = [
            _with_operator(row, said.get(row.node))
            for row in found
            if query.node in ("", row.node) and query.severity in ("", row.severity)
        ]
        rows.sort(key=lambda row: (_SEVERITIES.index(row.severity), row.node, row.gpu or 0, row.signal))
        first = (query.page_num - 1) * query.page_size
        unread = Counter(each.status.kernel_log for each in (source.reports() if source else ()))
        del unread[""]
        return FindingPage(rows[first : first + query.page_size], len(rows), dict(unread.most_common(5)))

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
        every = list(source.repairs()) if source else []
        return RepairPage(
            rows,
            len(found),
            nodes=sum(1 for each in (source.reports() if source else ()) if each.status.total),
            disrupted=sum(is_disrupted(each.status) for each in every),
            drains_in_hour=sum(
                (now() - started).total_seconds() < 3600
                for each in every
                for started in drains_of(each.status)
            ),
        )

    @post(
        "/api/repairs/{node:str}/acknowledge",
        scope="unscoped",
        example=_REPAIR,
        body_example=AcknowledgeBody("ana"),
    )
    async def acknowledge(
        node: str, query: ClusterParams, body: AcknowledgeBody, context: RequestContext
    ) -> RepairRow:
        """Stop alerts about the present fault and findings of a node (role operator)."""
        by = body.by or (context.caller.name if context.caller else "operator")
        return await change(
            query.cluster,
            node,
            lambda found: acknowledged(by, found.status.episode if found else 0, now()),
        )

    @post(
        "/api/repairs/{node:str}/silence", scope="unscoped", example=_REPAIR, body_example=SilenceBody(7200)
    )
    async def silence(node: str, query: ClusterParams, body: SilenceBody) -> RepairRow:
        """Send no alerts about a node for a while (role operator)."""
        return await change(query.cluster, node, lambda found: silenced(body.seconds, now()))

    @post("/api/repairs/{node:str}/resume", scope="unscoped", example=_REPAIR, body_example=ResumeBody())
    async def resume(node: str, query: ClusterParams, body: ResumeBody) -> RepairRow:
        """Have a node in phase Manual tested, and returned if it passes (role operator)."""
        return await change(query.cluster, node, lambda found: resumed(now()))

    return [list_findings, list_repairs, acknowledge, silence, resume]


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
            advice=advice(each.signal, each.action),
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


def _straggler_row(each: Straggler) -> FindingRow:
    rule = RULES[each.signal]
    severity: SeverityName = "Degraded" if rule.severity is Severity.DEGRADED else "Warning"
    rank = "" if each.rank is None else f", rank {each.rank}"
    return FindingRow(
        node=each.node,
        gpu=each.gpu,
        signal=each.signal,
        severity=severity,
        scope=rule.scope.value,
        message=f"{each.namespace}/{each.workload}{rank}: {each.message}",
        action=rule.remedy.value,
        since=datetime.fromtimestamp(int(each.since), UTC),
        advice=advice(each.signal, rule.remedy.value),
        workload_uid=each.workload_uid,
        workload=each.workload,
        rank=each.rank,
    )


def _with_operator(row: FindingRow, repair: GpuRepair | None) -> FindingRow:
    """Return the row with what an operator says about its node."""
    if repair is None:
        return row
    spec, status = repair.spec, repair.status
    at = spec.acknowledged_at
    since = at is not None and (row.since is None or at >= row.since)
    episode = status.phase != "Healthy" and spec.acknowledged_episode == status.episode
    known = since or (episode and row.severity == "Unhealthy")
    return msgspec.structs.replace(
        row, acknowledged_by=spec.acknowledged_by if known else "", silenced_until=spec.silenced_until
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
        acknowledged_by=repair.spec.acknowledged_by
        if repair.spec.acknowledged_episode == status.episode
        else "",
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


_SEVERITIES = ("Unhealthy", "Degraded", "Warning")
_OPENED, _CLOSED = (
    datetime.fromisoformat("2026-01-01T10:00:00Z"),
    datetime.fromisoformat("2026-01-01T11:30:00Z"),
)
_FINDING = FindingRow(
    "gpu-node-1",
    3,
    "xid-48",
    "Unhealthy",
    "GPU",
    "XID 48: uncorrectable ECC error",
    "reset",
    _OPENED,
    "Drain the GPU, then reset it.",
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
