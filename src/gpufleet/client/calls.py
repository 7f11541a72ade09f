"""One function for each GET route: it returns what to request and the type of the answer.

Generated from the OpenAPI document by `python -m dashboard.tools.python_client`. Do not edit.
"""

from datetime import datetime
from typing import Literal

from gpufleet.client import types
from gpufleet.client.call import Call, Paged


def claims(
    *,
    cluster: str | None = None,
    namespace: str | None = None,
    name: str | None = None,
    phase: Literal["Bound", "Failed", "Pending", "Reserved"] | None = None,
    gang: str | None = None,
    label_selector: str | None = None,
) -> Paged[types.ClaimRow]:
    """GpuClaims by namespace and name."""
    return Paged(
        "/api/claims",
        {},
        {
            "cluster": cluster,
            "namespace": namespace,
            "name": name,
            "phase": phase,
            "gang": gang,
            "labelSelector": label_selector,
        },
        types.ClaimPage,
        "pageNum",
    )


def explain_claim(namespace: str, name: str, *, cluster: str | None = None) -> Call[types.WhyWaiting]:
    """Why a claim waits: a sentence, the number of nodes by reason, and what would make it fit."""
    return Call(
        "/api/claims/{namespace}/{name}/explain",
        {"namespace": namespace, "name": name},
        {"cluster": cluster},
        types.WhyWaiting,
    )


def clusters() -> Call[list[types.ClusterName]]:
    """Clusters of this server, the default one first."""
    return Call("/api/clusters", {}, {}, list[types.ClusterName])


def consumers(*, cluster: str | None = None) -> Paged[types.Consumer]:
    """Workloads that hold GPUs, most GPUs first."""
    return Paged("/api/clusters/consumers", {}, {"cluster": cluster}, types.ConsumerPage, "pageNum")


def gpu_heatmap(*, cluster: str | None = None, top_k: int | None = None) -> Call[types.Heatmaps]:
    """The GPUs of the whole cluster with the highest power, temperature and utilization."""
    return Call("/api/clusters/gpuHeatmap", {}, {"cluster": cluster, "topK": top_k}, types.Heatmaps)


def overview(*, cluster: str | None = None) -> Call[types.ClusterOverview]:
    """Nodes by state, allocation, utilization, storage and RDMA of a cluster."""
    return Call("/api/clusters/overview", {}, {"cluster": cluster}, types.ClusterOverview)


def list_findings(
    *,
    cluster: str | None = None,
    node: str | None = None,
    severity: Literal["", "Degraded", "Unhealthy", "Warning"] | None = None,
) -> Paged[types.FindingRow]:
    """Open findings about nodes, GPUs and ranks of jobs, the worst first."""
    return Paged(
        "/api/findings",
        {},
        {"cluster": cluster, "node": node, "severity": severity},
        types.FindingPage,
        "pageNum",
    )


def get_forecast(
    *,
    cluster: str | None = None,
    days: int | None = None,
    by: Literal["all", "model", "namespace"] | None = None,
    budget: float | None = None,
) -> Call[types.Forecast]:
    """Demand for GPUs in the next days, from the recorded allocations, with 90% intervals."""
    return Call(
        "/api/forecast", {}, {"cluster": cluster, "days": days, "by": by, "budget": budget}, types.Forecast
    )


def gpus(
    *,
    cluster: str | None = None,
    node: str | None = None,
    state: Literal["cordoned", "draining", "free", "held", "perhaps-held", "unhealthy", "unknown"]
    | None = None,
    model: str | None = None,
    label_selector: str | None = None,
) -> Paged[types.GpuRow]:
    """GPUs by node and index, with state, health, readings and holders."""
    return Paged(
        "/api/gpus",
        {},
        {"cluster": cluster, "node": node, "state": state, "model": model, "labelSelector": label_selector},
        types.GpuPage,
        "pageNum",
    )


def healthz() -> Call[types.Health]:
    """The health of the service and of each dependency."""
    return Call("/api/healthz", {}, {}, types.Health)


def leases(
    *,
    cluster: str | None = None,
    node: str | None = None,
    namespace: str | None = None,
    search: str | None = None,
    foreign: bool | None = None,
) -> Paged[types.LeaseRow]:
    """Leases of GPUs with their holders, by node and GPU."""
    return Paged(
        "/api/leases",
        {},
        {"cluster": cluster, "node": node, "namespace": namespace, "search": search, "foreign": foreign},
        types.LeasePage,
        "pageNum",
    )


def nodes(
    *,
    cluster: str | None = None,
    state: Literal["busy", "faulty", "idle", "partial", "unknown"] | None = None,
    name: str | None = None,
    model: str | None = None,
    sort: Literal["fault", "free", "model", "name", "rack", "source", "state", "utilization"] | None = None,
    reverse: bool | None = None,
    label_selector: str | None = None,
    source: str | None = None,
    rack: str | None = None,
    team: str | None = None,
    user: str | None = None,
) -> Paged[types.NodeRow]:
    """GPU nodes, by default sorted by name."""
    return Paged(
        "/api/nodes",
        {},
        {
            "cluster": cluster,
            "state": state,
            "name": name,
            "model": model,
            "sort": sort,
            "reverse": reverse,
            "labelSelector": label_selector,
            "source": source,
            "rack": rack,
            "team": team,
            "user": user,
        },
        types.NodePage,
        "pageNum",
    )


def node(name: str, *, cluster: str | None = None) -> Call[types.NodeDetail]:
    """One node with the health, readings, holders and processes of its GPUs."""
    return Call("/api/nodes/{name}", {"name": name}, {"cluster": cluster}, types.NodeDetail)


def node_metrics(
    name: str, *, start: int, end: int, cluster: str | None = None, step: int | None = None
) -> Call[dict[str, types.Graph]]:
    """Utilization, memory, power and temperature of a node's GPUs over time."""
    return Call(
        "/api/nodes/{name}/metrics",
        {"name": name},
        {"cluster": cluster, "start": start, "end": end, "step": step},
        dict[str, types.Graph],
    )


def node_occupancy(name: str, *, start: int, end: int, cluster: str | None = None) -> Call[types.Occupancy]:
    """Which workload held which GPUs of a node in a time range, from the periods that hours are billed by."""
    return Call(
        "/api/nodes/{name}/occupancy",
        {"name": name},
        {"cluster": cluster, "start": start, "end": end},
        types.Occupancy,
    )


def team_occupancy(
    *, start: int, end: int, cluster: str | None = None, team: str | None = None, workloads: int | None = None
) -> Call[types.FleetOccupancy]:
    """How many GPUs the workloads of each team held in a time range, and when."""
    return Call(
        "/api/occupancy",
        {},
        {"cluster": cluster, "start": start, "end": end, "team": team, "workloads": workloads},
        types.FleetOccupancy,
    )


def explain_pod(namespace: str, name: str, *, cluster: str | None = None) -> Call[types.WhyWaiting]:
    """Why a pod with a claim waits: a sentence, the number of nodes by reason, and what would make it fit."""
    return Call(
        "/api/pods/{namespace}/{name}/explain",
        {"namespace": namespace, "name": name},
        {"cluster": cluster},
        types.WhyWaiting,
    )


def list_queue(*, cluster: str | None = None) -> Call[types.QueuePage]:
    """Units that wait for GPUs, in the order of the queue, and when each is expected to start."""
    return Call("/api/queue", {}, {"cluster": cluster}, types.QueuePage)


def estimate_start(
    *,
    cluster: str | None = None,
    gpus: int | None = None,
    pods: int | None = None,
    model: str | None = None,
    grouping: Literal["any", "contiguous", "island"] | None = None,
    priority: int | None = None,
    namespace: str | None = None,
) -> Call[types.StartEstimate]:
    """When a unit with these GPUs would be expected to start if it arrived now."""
    return Call(
        "/api/queue/estimate",
        {},
        {
            "cluster": cluster,
            "gpus": gpus,
            "pods": pods,
            "model": model,
            "grouping": grouping,
            "priority": priority,
            "namespace": namespace,
        },
        types.StartEstimate,
    )


def would_fit(
    *,
    cluster: str | None = None,
    gpus: int | None = None,
    pods: int | None = None,
    model: str | None = None,
    grouping: Literal["any", "contiguous", "island"] | None = None,
    cpu: str | None = None,
    memory: str | None = None,
    tolerations: str | None = None,
    priority: int | None = None,
    namespace: str | None = None,
) -> Call[types.FitAnswer]:
    """Whether pods with these requests would fit now."""
    return Call(
        "/api/queue/fit",
        {},
        {
            "cluster": cluster,
            "gpus": gpus,
            "pods": pods,
            "model": model,
            "grouping": grouping,
            "cpu": cpu,
            "memory": memory,
            "tolerations": tolerations,
            "priority": priority,
            "namespace": namespace,
        },
        types.FitAnswer,
    )


def list_queues(*, cluster: str | None = None) -> Call[types.QueueList]:
    """GpuQueues by name. The waiting units, in order, are in /api/queue."""
    return Call("/api/queues", {}, {"cluster": cluster}, types.QueueList)


def list_repairs(
    *, cluster: str | None = None, node: str | None = None, open: bool | None = None
) -> Paged[types.RepairRow]:
    """Repairs of nodes by name, with the history of their faults."""
    return Paged(
        "/api/repairs", {}, {"cluster": cluster, "node": node, "open": open}, types.RepairPage, "pageNum"
    )


def read_costs(
    *, cluster: str | None = None, start: int | None = None, end: int | None = None
) -> Call[types.Costs]:
    """Lost GPU-hours by fault, cause, node and model, and mean times between failures and to repair."""
    return Call("/api/repairs/costs", {}, {"cluster": cluster, "start": start, "end": end}, types.Costs)


def list_stragglers(*, cluster: str | None = None) -> Call[list[types.StragglerRow]]:
    """GPUs and ranks that are far slower than the others of their job for two minutes, and jobs that hang."""
    return Call("/api/stragglers", {}, {"cluster": cluster}, list[types.StragglerRow])


def cluster_hours(
    *,
    start_time: datetime | str,
    end_time: datetime | str,
    cluster: str | None = None,
    order_direction: Literal["asc", "desc"] | None = None,
    include_current: bool | None = None,
) -> Paged[types.ClusterStatistics]:
    """Hours of a cluster; one page of them if `page` or `page_size` is given."""
    return Paged(
        "/api/v1/gpu-aggregation/cluster/hourly-stats",
        {},
        {
            "cluster": cluster,
            "start_time": start_time,
            "end_time": end_time,
            "order_direction": order_direction,
            "include_current": include_current,
        },
        types.ClusterStatisticsPage,
        "page",
    )


def accounted_clusters() -> Call[list[str]]:
    """Clusters with statistics."""
    return Call("/api/v1/gpu-aggregation/clusters", {}, {}, list[str])


def dimension_keys(
    *,
    dimension_type: Literal["annotation", "label"],
    cluster: str | None = None,
    start_time: datetime | str | None = None,
    end_time: datetime | str | None = None,
) -> Call[list[str]]:
    """Keys of labels or annotations with statistics: those in the settings."""
    return Call(
        "/api/v1/gpu-aggregation/dimension-keys",
        {},
        {
            "cluster": cluster,
            "start_time": start_time,
            "end_time": end_time,
            "dimension_type": dimension_type,
        },
        list[str],
    )


def dimension_values(
    *,
    dimension_type: Literal["annotation", "label"],
    dimension_key: str,
    cluster: str | None = None,
    start_time: datetime | str | None = None,
    end_time: datetime | str | None = None,
) -> Call[list[str]]:
    """Values of one key with statistics."""
    return Call(
        "/api/v1/gpu-aggregation/dimension-values",
        {},
        {
            "cluster": cluster,
            "start_time": start_time,
            "end_time": end_time,
            "dimension_type": dimension_type,
            "dimension_key": dimension_key,
        },
        list[str],
    )


def label_hours(
    *,
    start_time: datetime | str,
    end_time: datetime | str,
    dimension_type: Literal["annotation", "label"],
    dimension_key: str,
    cluster: str | None = None,
    order_direction: Literal["asc", "desc"] | None = None,
    include_current: bool | None = None,
    dimension_value: str | None = None,
) -> Paged[types.LabelStatistics]:
    """Hours of the values of a label or annotation; one page of them if `page` or `page_size` is given."""
    return Paged(
        "/api/v1/gpu-aggregation/labels/hourly-stats",
        {},
        {
            "cluster": cluster,
            "start_time": start_time,
            "end_time": end_time,
            "order_direction": order_direction,
            "include_current": include_current,
            "dimension_type": dimension_type,
            "dimension_key": dimension_key,
            "dimension_value": dimension_value,
        },
        types.LabelStatisticsPage,
        "page",
    )


def accounted_namespaces(
    *,
    cluster: str | None = None,
    start_time: datetime | str | None = None,
    end_time: datetime | str | None = None,
) -> Call[list[str]]:
    """Namespaces with statistics."""
    return Call(
        "/api/v1/gpu-aggregation/namespaces",
        {},
        {"cluster": cluster, "start_time": start_time, "end_time": end_time},
        list[str],
    )


def namespace_hours(
    *,
    start_time: datetime | str,
    end_time: datetime | str,
    cluster: str | None = None,
    order_direction: Literal["asc", "desc"] | None = None,
    include_current: bool | None = None,
    namespace: str | None = None,
) -> Paged[types.NamespaceStatistics]:
    """Hours of namespaces; one page of them if `page` or `page_size` is given."""
    return Paged(
        "/api/v1/gpu-aggregation/namespaces/hourly-stats",
        {},
        {
            "cluster": cluster,
            "start_time": start_time,
            "end_time": end_time,
            "order_direction": order_direction,
            "include_current": include_current,
            "namespace": namespace,
        },
        types.NamespaceStatisticsPage,
        "page",
    )


def namespace_use(*, cluster: str | None = None, half_life: float | None = None) -> Call[types.Use]:
    """Decayed use of each namespace, and its use and cost since the day, the week and the month began."""
    return Call(
        "/api/v1/gpu-aggregation/namespaces/use", {}, {"cluster": cluster, "half_life": half_life}, types.Use
    )


def report(
    *,
    period: str,
    group_by: str | None = None,
    cluster: str | None = None,
    zone: str | None = None,
    namespace: str | None = None,
    merge_runs: bool | None = None,
    workload: str | None = None,
    groups: int | None = None,
    series: int | None = None,
    format: Literal["csv", "json"] | None = None,
) -> Call[types.Report]:
    """Usage of each group in a month or other days, and the unallocated rest: JSON or CSV."""
    return Call(
        "/api/v1/gpu-aggregation/report",
        {},
        {
            "period": period,
            "group_by": group_by,
            "cluster": cluster,
            "zone": zone,
            "namespace": namespace,
            "merge_runs": merge_runs,
            "workload": workload,
            "groups": groups,
            "series": series,
            "format": format,
        },
        types.Report,
    )


def snapshots(
    *,
    cluster: str | None = None,
    start_time: datetime | str | None = None,
    end_time: datetime | str | None = None,
    details: bool | None = None,
) -> Paged[types.Snapshot]:
    """Snapshots of a time range, by default of the last 24 hours."""
    return Paged(
        "/api/v1/gpu-aggregation/snapshots",
        {},
        {"cluster": cluster, "start_time": start_time, "end_time": end_time, "details": details},
        types.SnapshotPage,
        "page",
    )


def latest_snapshot(*, cluster: str | None = None) -> Call[types.Snapshot]:
    """The newest snapshot, with all workloads."""
    return Call("/api/v1/gpu-aggregation/snapshots/latest", {}, {"cluster": cluster}, types.Snapshot)


def waste(
    *,
    cluster: str | None = None,
    start_time: datetime | str | None = None,
    end_time: datetime | str | None = None,
    zone: str | None = None,
) -> Paged[types.WasteRow]:
    """Workloads with idle GPUs, most idle GPU-hours first; counted in whole days of the time zone."""
    return Paged(
        "/api/v1/gpu-aggregation/waste",
        {},
        {"cluster": cluster, "start_time": start_time, "end_time": end_time, "zone": zone},
        types.WasteRowPage,
        "page",
    )


def workload_hours(
    *,
    start_time: datetime | str,
    end_time: datetime | str,
    cluster: str | None = None,
    order_direction: Literal["asc", "desc"] | None = None,
    include_current: bool | None = None,
    namespace: str | None = None,
    workload_name: str | None = None,
    workload_type: str | None = None,
    dimension_type: Literal["annotation", "label"] | None = None,
    dimension_key: str | None = None,
    dimension_value: str | None = None,
    order_by: Literal["time", "utilization"] | None = None,
) -> Paged[types.WorkloadStatistics]:
    """Hours of workloads, always in pages."""
    return Paged(
        "/api/v1/gpu-aggregation/workloads/hourly-stats",
        {},
        {
            "cluster": cluster,
            "start_time": start_time,
            "end_time": end_time,
            "order_direction": order_direction,
            "include_current": include_current,
            "namespace": namespace,
            "workload_name": workload_name,
            "workload_type": workload_type,
            "dimension_type": dimension_type,
            "dimension_key": dimension_key,
            "dimension_value": dimension_value,
            "order_by": order_by,
        },
        types.WorkloadStatisticsPage,
        "page",
    )


def gpu_map(
    *,
    cluster: str | None = None,
    quantity: Literal["age", "memory", "power", "temperature", "utilization"] | None = None,
    details: bool | None = None,
) -> Call[types.GpuMap]:
    """One quantity of every GPU in columns, with marks for free, held and unhealthy GPUs."""
    return Call(
        "/api/v1/gpu/map", {}, {"cluster": cluster, "quantity": quantity, "details": details}, types.GpuMap
    )


def gpu_metrics(
    *,
    cluster: str | None = None,
    node: str | None = None,
    namespace: str | None = None,
    workload: str | None = None,
) -> Call[list[types.GpuMetrics]]:
    """The latest reading of every GPU."""
    return Call(
        "/api/v1/gpu/metrics",
        {},
        {"cluster": cluster, "node": node, "namespace": namespace, "workload": workload},
        list[types.GpuMetrics],
    )


def processes(*, cluster: str | None = None, node: str | None = None) -> Call[list[types.GpuProcessRow]]:
    """Processes on the GPUs."""
    return Call("/api/v1/gpu/processes", {}, {"cluster": cluster, "node": node}, list[types.GpuProcessRow])


def workload_metadata(*, cluster: str | None = None) -> Call[types.WorkloadMetadata]:
    """Values to filter workloads and nodes by."""
    return Call("/api/workloadMetadata", {}, {"cluster": cluster}, types.WorkloadMetadata)


def workloads(
    *,
    cluster: str | None = None,
    name: str | None = None,
    kind: str | None = None,
    namespace: str | None = None,
    status: Literal["Completed", "Failed", "Pending", "Running", "Unknown"] | None = None,
    source: str | None = None,
    model: str | None = None,
    order_by: Literal["end_at", "start_at"] | None = None,
    sort: Literal[
        "duration", "gpus", "kind", "model", "name", "namespace", "source", "status", "team", "user"
    ]
    | None = None,
    reverse: bool | None = None,
    label_selector: str | None = None,
    team: str | None = None,
    user: str | None = None,
) -> Paged[types.WorkloadRow]:
    """Workloads that request or requested GPUs, newest first."""
    return Paged(
        "/api/workloads",
        {},
        {
            "cluster": cluster,
            "name": name,
            "kind": kind,
            "namespace": namespace,
            "status": status,
            "source": source,
            "model": model,
            "orderBy": order_by,
            "sort": sort,
            "reverse": reverse,
            "labelSelector": label_selector,
            "team": team,
            "user": user,
        },
        types.WorkloadPage,
        "pageNum",
    )


def workload(uid: str, *, cluster: str | None = None) -> Call[types.WorkloadDetail]:
    """One workload with its pods."""
    return Call("/api/workloads/{uid}", {"uid": uid}, {"cluster": cluster}, types.WorkloadDetail)


def workload_events(uid: str, *, cluster: str | None = None) -> Call[list[types.WorkloadEvent]]:
    """The events about a workload and its first 20 pods, the newest first, if the caller may list events."""
    return Call("/api/workloads/{uid}/events", {"uid": uid}, {"cluster": cluster}, list[types.WorkloadEvent])


def workload_hierarchy(uid: str, *, cluster: str | None = None) -> Call[types.HierarchyItem]:
    """The objects that a workload controls, down to its pods."""
    return Call("/api/workloads/{uid}/hierarchy", {"uid": uid}, {"cluster": cluster}, types.HierarchyItem)


def workload_logs(
    uid: str,
    *,
    cluster: str | None = None,
    pod: str | None = None,
    container: str | None = None,
    lines: int | None = None,
    previous: bool | None = None,
) -> Call[types.Log]:
    """The last lines of the log of a pod of a workload, if Kubernetes lets the caller get it."""
    return Call(
        "/api/workloads/{uid}/logs",
        {"uid": uid},
        {"cluster": cluster, "pod": pod, "container": container, "lines": lines, "previous": previous},
        types.Log,
    )


def workload_manifest(
    uid: str, *, cluster: str | None = None, pod: str | None = None
) -> Call[types.Manifest]:
    """The manifest of a workload or of one of its pods, if Kubernetes lets the caller get it."""
    return Call(
        "/api/workloads/{uid}/manifest", {"uid": uid}, {"cluster": cluster, "pod": pod}, types.Manifest
    )


def workload_metrics(
    uid: str, *, start: int, end: int, cluster: str | None = None, step: int | None = None
) -> Call[dict[str, types.Graph]]:
    """Utilization, memory and power of a workload's GPUs, and its training speed."""
    return Call(
        "/api/workloads/{uid}/metrics",
        {"uid": uid},
        {"cluster": cluster, "start": start, "end": end, "step": step},
        dict[str, types.Graph],
    )


def training_performance(
    uid: str, *, start: int, end: int, cluster: str | None = None, rank: int | None = None
) -> Call[list[types.TrainingRow]]:
    """Training numbers of a workload as flat rows: one line per metric, or the numbers of one `rank`."""
    return Call(
        "/api/workloads/{uid}/trainingPerformance",
        {"uid": uid},
        {"cluster": cluster, "start": start, "end": end, "rank": rank},
        list[types.TrainingRow],
    )


def me() -> Call[types.Me]:
    """The caller, its role and its namespaces. Answers callers without a login too."""
    return Call("/auth/me", {}, {}, types.Me)
