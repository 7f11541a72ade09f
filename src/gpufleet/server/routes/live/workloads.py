"""`/api/workloads*` and `/api/workloadMetadata`: workloads, their pods and owners."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from gpufleet.fleet.clusters import Cluster, Clusters
from gpufleet.fleet.state import Fleet
from gpufleet.fleet.workloads.archive import WorkloadRecord
from gpufleet.fleet.workloads.hierarchy import ObjectTree
from gpufleet.fleet.workloads.listing import Filter
from gpufleet.fleet.workloads.lookup import find_workload
from gpufleet.fleet.workloads.summary import Workload
from gpufleet.fleet.workloads.teams import team_of, user_of
from gpufleet.model.gpu_models import UNKNOWN_MODEL
from gpufleet.model.label_selector import parse_label_selector
from gpufleet.model.namespaces import Namespaces, is_visible
from gpufleet.model.workload import QueueEntry, Status
from gpufleet.server.http.routing import Route, get
from gpufleet.server.routes.live.node_groups import rack_of
from gpufleet.server.routes.params import ClusterParams, LabelSelector, Model, PageParams, Team, User

COLORS = {
    Status.RUNNING: "green",
    Status.COMPLETED: "green",
    Status.FAILED: "red",
    Status.PENDING: "yellow",
    Status.UNKNOWN: "gray",
}


class WorkloadParams(PageParams, rename="camel"):
    """Filter, order and page of the list of workloads."""

    name: Annotated[
        str, Meta(max_length=253, description="Part of the name, in any case, or the id of a Slurm job.")
    ] = ""
    kind: Annotated[str, Meta(max_length=253, description="Kind, such as Job or Deployment.")] = ""
    namespace: Annotated[str, Meta(max_length=253, description="Namespace.")] = ""
    status: Annotated[
        Literal["Running", "Completed", "Failed", "Pending", "Unknown"] | None, Meta(description="Status.")
    ] = None
    source: Annotated[str, Meta(max_length=63, description="Source: k8s, slurm, docker, local.")] = ""
    model: Model = ""
    order_by: Annotated[
        Literal["start_at", "end_at"] | None,
        Meta(description="Sort field, newest first; start_at if not given."),
    ] = None
    sort: Annotated[
        Literal[
            "gpus",
            "name",
            "namespace",
            "kind",
            "status",
            "source",
            "model",
            "duration",
            "team",
            "user",
        ]
        | None,
        Meta(description="Sort by this instead: most GPUs first, longest first, the others by name."),
    ] = None
    reverse: Annotated[bool, Meta(description="Reverse the order.")] = False
    label_selector: LabelSelector = ""
    team: Team = ""
    user: User = ""

    def __post_init__(self) -> None:
        """Reject a wrong selector."""
        parse_label_selector(self.label_selector)


class WorkloadQueue(msgspec.Struct, rename="camel"):
    """A workload in a queue of Kueue."""

    queue: str
    """The LocalQueue."""
    cluster_queue: str
    """The ClusterQueue that its quota is from; empty until it is reserved."""
    state: str
    """Queued, QuotaReserved, Admitted, Inactive or Finished."""
    reason: str
    """Why it is not admitted."""


class WorkloadRow(msgspec.Struct, rename="camel"):
    """A workload in a list; times in Unix seconds, 0 if not yet."""

    kind: str
    name: str
    namespace: str
    uid: str
    gpu_allocated: int
    gpu_allocation: dict[str, int]
    status: str
    status_color: str
    start_at: int
    end_at: int
    source: str
    gpu_requested: int = 0
    """GPUs that its existing pods request, whether or not they have them."""
    gpu_model_requested: str = ""
    """The GPU model that they request; empty for any."""
    waiting_reason: str = ""
    """Why a pending workload waits."""
    expected_start: int = 0
    """When its own scheduler, such as Slurm's, expects it to start; 0 if it does not say. /api/queue has estimates."""
    queue: WorkloadQueue | None = None
    """Its place in Kueue; null if it is in no queue."""
    team: str = ""
    """By its labels and annotations; its namespace if none names a team."""
    user: str = ""
    """By its labels and annotations; empty if none names a user."""
    claims: list[str] = []
    """GpuClaims that a pending workload waits for."""


class WorkloadPage(msgspec.Struct):
    """One page of workloads, and how many there are in all."""

    data: list[WorkloadRow]
    total: int


class WorkloadPod(msgspec.Struct, rename="camel"):
    """A pod of a workload, and its node."""

    node_name: str
    pod_namespace: str
    pod_name: str
    status: str
    claim: str = ""
    """The GpuClaim that it names."""


class WorkloadDetail(msgspec.Struct, rename="camel"):
    """A workload; times in Unix seconds, 0 if not yet."""

    api_version: str
    kind: str
    name: str
    namespace: str
    uid: str
    gpu_allocation: dict[str, int]
    pods: list[WorkloadPod]
    start_time: int
    end_time: int
    source: str
    status: str
    labels: dict[str, str]
    annotations: dict[str, str]
    gpu_requested: int = 0
    """GPUs that its existing pods request, whether or not they have them."""
    gpu_model_requested: str = ""
    """The GPU model that they request; empty for any."""
    waiting_reason: str = ""
    """Why a pending workload waits."""
    expected_start: int = 0
    """When its own scheduler, such as Slurm's, expects it to start; 0 if it does not say. /api/queue has estimates."""
    queue: WorkloadQueue | None = None
    """Its place in Kueue; null if it is in no queue."""
    claims: list[str] = []
    """The GpuClaims that its pods name."""
    team: str = ""
    """By its labels and annotations; its namespace if none names a team."""
    user: str = ""
    """By its labels and annotations; empty if none names a user."""


class HierarchyItem(msgspec.Struct, omit_defaults=True):
    """An object and its children."""

    kind: str
    name: str
    namespace: str
    uid: str
    children: list["HierarchyItem"]
    queue: WorkloadQueue | None = None
    """Only of a Workload of Kueue: the queue that its parent is in."""


class WorkloadMetadata(msgspec.Struct):
    """Values to filter lists of workloads by."""

    namespaces: list[str]
    kinds: list[str]
    models: list[str] = []
    """GPU models of the nodes and of the workloads."""
    teams: list[str] = []
    users: list[str] = []
    sources: list[str] = []
    """Sources of the nodes and of the workloads."""
    racks: list[str] = []
    """Racks of the nodes with GPUs."""


def workload_routes(clusters: Clusters) -> list[Route]:
    """Return the routes for lists, details and hierarchies of workloads."""

    @get("/api/workloads", scope="filtered", example=_PAGE)
    async def list_workloads(query: WorkloadParams, namespaces: Namespaces) -> WorkloadPage:
        """Workloads that request or requested GPUs, newest first."""
        cluster = clusters.synced(query.cluster)
        filters = Filter(
            query.name,
            query.kind,
            query.namespace,
            query.status or "",
            query.source,
            query.model,
            namespaces,
            query.label_selector,
            query.team,
            query.user,
        )
        page = cluster.listing.workloads(
            filters,
            query.sort or query.order_by or "",
            query.page_num,
            query.page_size,
            reverse=query.reverse,
        )
        return WorkloadPage([_row(cluster, workload) for workload in page.rows], page.total)

    @get("/api/workloads/{uid:str}", scope="filtered", example=_DETAIL)
    async def workload(uid: str, query: ClusterParams, namespaces: Namespaces) -> WorkloadDetail:
        """One workload with its pods."""
        return _detail(find_workload(clusters.synced(query.cluster).fleet, uid, namespaces))

    @get("/api/workloads/{uid:str}/hierarchy", scope="filtered", example=_HIERARCHY)
    async def hierarchy(uid: str, query: ClusterParams, namespaces: Namespaces) -> HierarchyItem:
        """The objects that a workload controls, down to its pods."""
        fleet = clusters.synced(query.cluster).fleet
        return _item(find_workload(fleet, uid, namespaces).tree, fleet)

    @get("/api/workloadMetadata", scope="filtered", example=_METADATA)
    async def workload_metadata(query: ClusterParams, namespaces: Namespaces) -> WorkloadMetadata:
        """Values to filter workloads and nodes by."""
        fleet = clusters.synced(query.cluster).fleet
        ended = [each for each in fleet.ended().values() if is_visible(namespaces, each.workload.namespace)]
        existing = [each for each in fleet.workloads().values() if is_visible(namespaces, each.namespace)]
        workloads = [*existing, *(each.workload for each in ended)]
        nodes = [view.node for view in fleet.views().values() if view.total]
        return WorkloadMetadata(
            sorted({workload.namespace for workload in workloads}),
            sorted({workload.kind for workload in workloads}),
            _models(fleet, ended),
            sorted({team_of(workload) for workload in workloads}),
            sorted({user_of(workload) for workload in workloads} - {""}),
            sorted({workload.source for workload in workloads} | {node.source for node in nodes}),
            sorted({rack_of(node.labels) for node in nodes} - {""}),
        )

    return [list_workloads, workload, hierarchy, workload_metadata]


def _models(fleet: Fleet, ended: list[WorkloadRecord]) -> list[str]:
    present = (model for view in fleet.views().values() for model in view.models)
    past = (model for each in ended for model in each.models)
    return sorted({*present, *past} - {UNKNOWN_MODEL})


def _row(cluster: Cluster, workload: Workload) -> WorkloadRow:
    ended = cluster.fleet.ended().get(workload.uid) if workload.gone else None
    return WorkloadRow(
        kind=workload.kind,
        name=workload.name,
        namespace=workload.namespace,
        uid=workload.uid,
        gpu_allocated=workload.gpus,
        gpu_allocation=ended.models if ended else cluster.fleet.gpu_models(workload.counted),
        status=workload.status.value,
        status_color=COLORS[workload.status],
        start_at=int(workload.started),
        end_at=int(workload.ended),
        source=workload.source,
        gpu_requested=workload.requested,
        gpu_model_requested=", ".join(workload.models_requested),
        waiting_reason=workload.waiting_reason,
        expected_start=int(workload.expected_start),
        queue=_queue(workload.queued),
        team=team_of(workload),
        user=user_of(workload),
        claims=_claims(workload) if workload.status is Status.PENDING else [],
    )


def _claims(workload: Workload) -> list[str]:
    return sorted({pod.claim for pod in workload.pods if pod.claim})


def _detail(found: WorkloadRecord) -> WorkloadDetail:
    workload = found.workload
    return WorkloadDetail(
        api_version=workload.api_version,
        kind=workload.kind,
        name=workload.name,
        namespace=workload.namespace,
        uid=workload.uid,
        gpu_allocation=found.models,
        pods=[
            WorkloadPod(pod.node, pod.namespace, pod.name, pod.phase.value, pod.claim)
            for pod in workload.pods
        ],
        start_time=int(workload.started),
        end_time=int(workload.ended),
        source=workload.source,
        status=workload.status.value,
        labels=workload.labels,
        annotations=workload.annotations,
        gpu_requested=workload.requested,
        gpu_model_requested=", ".join(workload.models_requested),
        waiting_reason=workload.waiting_reason,
        expected_start=int(workload.expected_start),
        queue=_queue(workload.queued),
        claims=_claims(workload),
        team=team_of(workload),
        user=user_of(workload),
    )


def _queue(entry: QueueEntry | None) -> WorkloadQueue | None:
    if entry is None:
        return None
    return WorkloadQueue(entry.queue, entry.cluster_queue, entry.state.value, entry.reason)


def _item(branch: ObjectTree, fleet: Fleet) -> HierarchyItem:
    children = [_item(child, fleet) for child in branch.children]
    owner = fleet.ownership.owners.get(branch.uid)
    queue = _queue(owner.queued) if owner is not None else None
    return HierarchyItem(branch.kind, branch.name, branch.namespace, branch.uid, children, queue)


_METADATA = WorkloadMetadata(
    ["default", "research"],
    ["Deployment", "Job"],
    ["AMD_Instinct_MI300X_OAM"],
    ["nlp", "vision"],
    ["alice", "bob"],
    ["k8s"],
    ["r01", "r02"],
)
_PAGE = WorkloadPage(
    [
        WorkloadRow(
            kind="Job",
            name="training-job-1",
            namespace="default",
            uid="abc123",
            gpu_allocated=8,
            gpu_allocation={"AMD_Instinct_MI300X_OAM": 8},
            status="Running",
            status_color="green",
            start_at=1609459200,
            end_at=0,
            source="k8s",
            gpu_requested=8,
        )
    ],
    50,
)
_DETAIL = WorkloadDetail(
    api_version="batch/v1",
    kind="Job",
    name="training-job-1",
    namespace="default",
    uid="abc123",
    gpu_allocation={"AMD_Instinct_MI300X_OAM": 8},
    pods=[WorkloadPod("gpu-node-1", "default", "training-job-1-pod-0", "Running")],
    start_time=1609459200,
    end_time=0,
    source="k8s",
    status="Running",
    labels={"team": "research"},
    annotations={},
    gpu_requested=8,
)
_HIERARCHY = HierarchyItem(
    "Deployment",
    "inference-service",
    "production",
    "root-uid-123",
    [HierarchyItem("ReplicaSet", "inference-service-7d8f9c", "production", "rs-uid-456", [])],
)
