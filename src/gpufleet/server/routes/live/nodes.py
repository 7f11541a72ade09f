"""`/api/nodes*`: nodes, their GPUs and holders, and their GPUs over time."""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from gpufleet.errors import NotFound
from gpufleet.fleet.clusters import Cluster, Clusters
from gpufleet.fleet.node_view import NodeView
from gpufleet.fleet.visibility import held_indices, visible_processes
from gpufleet.fleet.workloads.lookup import AllocatedGpu
from gpufleet.fleet.workloads.teams import is_user, team_of, user_of
from gpufleet.model.gpu_models import accepted_models
from gpufleet.model.label_selector import parse_label_selector
from gpufleet.model.metric_source import check_span
from gpufleet.model.namespaces import Namespaces, is_visible
from gpufleet.model.node import FleetGpu
from gpufleet.model.reading import GpuRef, Quantity
from gpufleet.server.http.routing import Route, get
from gpufleet.server.routes.live.node_groups import rack_of
from gpufleet.server.routes.live.workload_metrics import (
    Graph,
    GraphConfig,
    MetricsParams,
    Series,
    encode_points,
    held_series,
)
from gpufleet.server.routes.params import ClusterParams, LabelSelector, Model, PageNumber, PageSize

_SORT_STATES = ("faulty", "busy", "partial", "idle", "unknown")
_GRAPHS = (
    ("GPU Utilization", Quantity.UTILIZATION, 100.0, "%"),
    ("GPU Memory Utilization", Quantity.MEMORY_UTILIZATION, 100.0, "%"),
    ("GPU Power", Quantity.POWER, 1.0, "W"),
    ("GPU Temperature", Quantity.TEMPERATURE, 1.0, "℃"),
)


class NodeParams(ClusterParams, rename="camel"):
    """Filter, order and page of the list of nodes."""

    page_num: PageNumber = 1
    page_size: PageSize = 100
    state: Annotated[
        Literal["faulty", "idle", "partial", "busy", "unknown"] | None,
        Meta(description="Nodes in this state only; unknown: it is not known which GPUs are allocated."),
    ] = None
    name: Annotated[str, Meta(max_length=253, description="Part of the name, in any case.")] = ""
    model: Model = ""
    sort: Annotated[
        Literal["name", "state", "free", "utilization", "model", "source", "rack", "fault"],
        Meta(
            description="Sort by name, faulty first, most free GPUs first, busiest first, or by model, source, "
            "rack or fault."
        ),
    ] = "name"
    reverse: Annotated[bool, Meta(description="Reverse the order.")] = False
    label_selector: LabelSelector = ""
    source: Annotated[str, Meta(max_length=63, description="Source: k8s, slurm, docker, local.")] = ""
    rack: Annotated[str, Meta(max_length=253, description="Rack, by the label of the node.")] = ""
    team: Annotated[str, Meta(max_length=253, description="Nodes with GPUs that this team holds.")] = ""
    user: Annotated[str, Meta(max_length=253, description="Nodes with GPUs that this user holds.")] = ""

    def __post_init__(self) -> None:
        """Reject a wrong selector."""
        parse_label_selector(self.label_selector)


class NodeRow(msgspec.Struct, rename="camel"):
    """A GPU node in a list."""

    name: str
    source: str
    state: str
    ready: bool
    cordoned: bool
    fault: str
    gpu_total: int
    gpu_allocated: int | None
    """Null if its source does not say which GPUs are allocated."""
    gpu_model: str
    utilization: float | None
    """Mean over its GPUs, 0.0 to 1.0; null without a reading."""
    rack: str = ""
    """Its label topology.kubernetes.io/rack."""


class NodePage(msgspec.Struct):
    """One page of nodes, and how many there are in all."""

    data: list[NodeRow]
    total: int


class GpuHolder(msgspec.Struct, rename="camel"):
    """A pod that holds a GPU, and its workload; all names are empty if the caller may not see them."""

    pod_namespace: str
    pod_name: str
    pod_uid: str
    workload_uid: str
    share: float


class NodeGpu(msgspec.Struct, rename="camel"):
    """A GPU of a node; rates 0.0 to 1.0, memory in GiB, null if not measured."""

    index: int
    uuid: str
    model: str
    vendor: str
    island: str
    bandwidth_g_bps: int = msgspec.field(name="bandwidthGBps")
    health: str = ""
    health_reason: str = ""
    health_since: datetime | None = None
    cordoned: bool = False
    draining: bool = False
    """Whether processes of deleted pods still use it."""
    mig_profiles: list[str] = []
    utilization: float | None = None
    memory_used: float | None = None
    memory_total: float | None = None
    temperature: float | None = None
    power: float | None = None
    holders: list[GpuHolder] = []


class NodeProcess(msgspec.Struct, rename="camel"):
    """A process on a GPU; memory in MiB."""

    gpu_index: int
    pid: int
    process_name: str
    user: str
    gpu_memory: float | None


class NodeDetail(NodeRow, rename="camel", kw_only=True):
    """A node with its GPUs, their holders and processes."""

    labels: dict[str, str]
    gpus: list[NodeGpu]
    processes: list[NodeProcess]


def node_routes(clusters: Clusters) -> list[Route]:
    """Return the routes under `/api/nodes`."""

    @get("/api/nodes", scope="filtered", example=NodePage([_ROW], 1))
    async def list_nodes(query: NodeParams, namespaces: Namespaces) -> NodePage:
        """GPU nodes, by default sorted by name."""
        cluster = clusters.synced(query.cluster)
        name, models = query.name.casefold(), accepted_models(query.model)
        selects = parse_label_selector(query.label_selector)
        held = _nodes_held_by(cluster, query.team, query.user, namespaces)
        views = [
            view
            for _, view in sorted(cluster.fleet.views().items())
            if view.total
            and query.state in (None, view.state.value)
            and name in view.node.name.casefold()
            and (not query.model or not models.isdisjoint(view.models))
            and selects(view.node.labels)
            and query.source in ("", view.node.source)
            and query.rack in ("", rack_of(view.node.labels))
            and (held is None or view.node.name in held)
        ]
        utilization = _mean_utilization(cluster, namespaces)
        if query.sort != "name":
            views.sort(key=_sort_key(utilization, query.sort))
        if query.reverse:
            views.reverse()
        first = (query.page_num - 1) * query.page_size
        page = views[first : first + query.page_size]
        return NodePage([_row(view, utilization(view)) for view in page], len(views))

    @get("/api/nodes/{name:str}", scope="filtered", example=_DETAIL)
    async def node(name: str, query: ClusterParams, namespaces: Namespaces) -> NodeDetail:
        """One node with the health, readings, holders and processes of its GPUs."""
        cluster = clusters.synced(query.cluster)
        return await _detail(cluster, find_node(cluster, name), namespaces)

    @get("/api/nodes/{name:str}/metrics", scope="filtered", example=_METRICS)
    async def node_metrics(name: str, query: MetricsParams, namespaces: Namespaces) -> dict[str, Graph]:
        """Utilization, memory, power and temperature of a node's GPUs over time.

        A caller who is limited to namespaces gets the GPUs that pods in them hold, since they hold them.
        """
        check_span(query.start, query.end, query.step)
        cluster = clusters.synced(query.cluster)
        view = find_node(cluster, name)
        gpus = {GpuRef(name, gpu.index) for gpu in view.gpus}
        held = None if namespaces is None else _held(cluster, view, namespaces)

        async def series(quantity: Quantity, scale: float) -> list[Series]:
            if held is not None:
                return await held_series(cluster, held, False, quantity, query, scale)
            return await _series(cluster, quantity, gpus, query, scale)

        return {
            title: Graph(serial, await series(quantity, scale), GraphConfig(unit))
            for serial, (title, quantity, scale, unit) in enumerate(_GRAPHS, start=1)
        }

    return [list_nodes, node, node_metrics]


def find_node(cluster: Cluster, name: str) -> NodeView:
    """Return a node of a cluster; raise NotFound if there is none of that name."""
    view = cluster.fleet.views().get(name)
    if view is None:
        raise NotFound(f"no node {name[:64]!r} in cluster {cluster.name}")
    return view


def _held(cluster: Cluster, view: NodeView, namespaces: frozenset[str]) -> list[AllocatedGpu]:
    """Return the GPUs of a node that pods of `namespaces` hold, and since when."""
    pods = cluster.fleet.ownership.pods
    return [
        AllocatedGpu(GpuRef(view.node.name, index), pods[uid].bound, 0.0)
        for index, uids in view.holders.items()
        for uid in uids
        if uid in pods and pods[uid].namespace in namespaces
    ]


def _nodes_held_by(cluster: Cluster, team: str, user: str, namespaces: Namespaces) -> set[str] | None:
    """Return the nodes on which a team or user holds GPUs that the caller may see; None without such a filter."""
    if not team and not user:
        return None
    return {
        pod.node
        for workload in cluster.fleet.workloads().values()
        if is_visible(namespaces, workload.namespace)
        and team in ("", team_of(workload))
        and (not user or is_user(user, user_of(workload)))
        for pod in workload.pods
        if pod.holds
    }


def _sort_key(utilization: Callable[[NodeView], float | None], order: str) -> Callable[[NodeView], Any]:
    texts: dict[str, Callable[[NodeView], str]] = {
        "model": lambda view: view.model or next(iter(view.models), ""),
        "source": lambda view: view.node.source,
        "rack": lambda view: rack_of(view.node.labels),
        "fault": lambda view: view.fault,
    }
    if order in texts:
        return lambda view: (not texts[order](view), texts[order](view))
    if order == "state":
        return lambda view: _SORT_STATES.index(view.state.value)
    if order == "free":
        return lambda view: view.usable_allocated - view.usable
    return lambda view: 1.0 if (mean := utilization(view)) is None else -mean


def _mean_utilization(cluster: Cluster, namespaces: Namespaces) -> Callable[[NodeView], float | None]:
    """Return a function for the mean utilization of a node's visible GPUs, 0.0 to 1.0."""
    gpu_columns = cluster.fleet.gpu_columns
    column = gpu_columns.column(Quantity.UTILIZATION)

    def mean(view: NodeView) -> float | None:
        indices = [gpu.index for gpu in view.gpus]
        if namespaces is not None:
            indices = held_indices(cluster.fleet, view, namespaces)
        slots = gpu_columns.slots_of(view.node.name, indices)
        values = [value for value in column[slots].tolist() if value == value]
        return round(sum(values) / len(values) / 100, 4) if values else None

    return mean


def _row(view: NodeView, utilization: float | None) -> NodeRow:
    return NodeRow(
        name=view.node.name,
        source=view.node.source,
        state=view.state.value,
        ready=view.node.ready,
        cordoned=view.node.cordoned,
        fault=view.fault,
        gpu_total=view.total,
        gpu_allocated=view.allocated if view.node.allocation_known else None,
        gpu_model=view.model or next(iter(view.models), ""),
        utilization=utilization,
        rack=rack_of(view.node.labels),
    )


async def _detail(cluster: Cluster, view: NodeView, namespaces: Namespaces) -> NodeDetail:
    processes = visible_processes(cluster.fleet, (await cluster.processes()).rows, namespaces)
    return NodeDetail(
        **msgspec.structs.asdict(_row(view, _mean_utilization(cluster, namespaces)(view))),
        labels=view.node.labels,
        gpus=[node_gpu(cluster, view, gpu, namespaces) for gpu in view.gpus],
        processes=[
            NodeProcess(row.gpu.index, row.pid, row.name, row.user, _scaled(row.gpu_memory_bytes, 1024**2))
            for row in processes
            if row.gpu.node == view.node.name
        ],
    )


def node_gpu(cluster: Cluster, view: NodeView, gpu: FleetGpu, namespaces: Namespaces) -> NodeGpu:
    """Return a GPU of a node, without readings and names that the caller may not see."""
    gpu_columns = cluster.fleet.gpu_columns
    slots = gpu_columns.slots_of(view.node.name, [gpu.index])
    visible = namespaces is None or gpu.index in held_indices(cluster.fleet, view, namespaces)

    def reading(quantity: Quantity, unit: float = 1.0) -> float | None:
        if not visible and quantity is not Quantity.MEMORY_TOTAL:
            return None
        value = float(gpu_columns.column(quantity)[slots[0]]) if slots else float("nan")
        return _scaled(value if value == value else None, unit)

    return NodeGpu(
        index=gpu.index,
        uuid=gpu.uuid,
        model=gpu.model,
        vendor=gpu.vendor,
        island=gpu.island,
        bandwidth_g_bps=gpu.bandwidth_gbps,
        health=gpu.health.value,
        health_reason=gpu.health_reason,
        health_since=datetime.fromtimestamp(gpu.health_since, UTC) if gpu.health_since is not None else None,
        cordoned=gpu.cordoned,
        draining=gpu.draining,
        mig_profiles=list(gpu.mig_profiles),
        utilization=reading(Quantity.UTILIZATION, 100),
        memory_used=reading(Quantity.MEMORY_USED, 1024**3),
        memory_total=reading(Quantity.MEMORY_TOTAL, 1024**3),
        temperature=reading(Quantity.TEMPERATURE),
        power=reading(Quantity.POWER),
        holders=_holders(cluster, view, gpu, namespaces),
    )


def _holders(cluster: Cluster, view: NodeView, gpu: FleetGpu, namespaces: Namespaces) -> list[GpuHolder]:
    """Return who holds a GPU; pods of other namespaces are one holder without a name."""
    ownership = cluster.fleet.ownership
    pods = [ownership.pods[uid] for uid in view.holders.get(gpu.index, ()) if uid in ownership.pods]
    holders = [
        GpuHolder(pod.namespace, pod.name, pod.uid, ownership.root_of(pod.uid), pod.share)
        for pod in pods
        if is_visible(namespaces, pod.namespace)
    ]
    others = [pod.share for pod in pods if not is_visible(namespaces, pod.namespace)]
    return [*holders, GpuHolder("", "", "", "", sum(others))] if others else holders


async def _series(
    cluster: Cluster, quantity: Quantity, gpus: set[GpuRef], query: MetricsParams, scale: float
) -> list[Series]:
    found = await cluster.series(quantity, gpus, query.start, query.end, query.step)
    return [
        Series(f"GPU-{series.gpu.index}", encode_points(series.times, series.values, scale))
        for series in sorted(found, key=lambda series: series.gpu)
    ]


def _scaled(value: float | None, unit: float) -> float | None:
    return None if value is None else round(value / unit, 4)


_METRICS = {"GPU Power": Graph(3, [Series("GPU-0", [(650.5, 1609459200000)])], GraphConfig("W"))}
_ROW = NodeRow("gpu-node-1", "k8s", "partial", True, False, "", 8, 4, "NVIDIA_H200", 0.41)
_DETAIL = NodeDetail(
    **msgspec.structs.asdict(_ROW),
    labels={"gpu-type": "h200"},
    gpus=[
        NodeGpu(
            index=0,
            uuid="GPU-5f2c1b1e",
            model="NVIDIA_H200",
            vendor="nvidia",
            island="nvlink-group-0",
            bandwidth_g_bps=900,
            health="Healthy",
            holders=[GpuHolder("ml", "train-0", "pod-uid-789", "root-uid-123", 1.0)],
        )
    ],
    processes=[NodeProcess(0, 1234, "python", "alice", 1024.0)],
)
