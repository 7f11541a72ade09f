"""The data that the server returns.

Generated from the OpenAPI document by `python -m dashboard.tools.python_client`. Do not edit.
"""

from typing import Any, Literal

import msgspec


class ClaimAllocation(msgspec.Struct, kw_only=True):
    """The GPUs of one pod of a claim."""

    pod_uid: str = msgspec.field(name="podUid")
    pod_name: str = msgspec.field(name="podName")
    node_name: str = msgspec.field(name="nodeName")
    gpu_ids: list[int] = msgspec.field(name="gpuIds")
    share: float | None
    phase: str


class ClaimPage(msgspec.Struct, kw_only=True):
    """One page of claims, and how many there are in all."""

    data: list["ClaimRow"]
    total: int


class ClaimRow(msgspec.Struct, kw_only=True):
    """A claim: its request and its allocation."""

    namespace: str
    name: str
    uid: str
    count: int
    policy: str
    exclusivity: str
    gang: str
    gang_size: int | None = msgspec.field(name="gangSize")
    phase: str
    node_name: str = msgspec.field(name="nodeName")
    gpu_ids: list[int] = msgspec.field(name="gpuIds")
    allocated: str
    message: str
    allocations: list["ClaimAllocation"]
    created_at: str | None = msgspec.field(name="createdAt")


class ClusterName(msgspec.Struct, kw_only=True):
    """A cluster of this server."""

    name: str


class ClusterOverview(msgspec.Struct, kw_only=True):
    """Counts of GPU nodes, and rates from 0.0 to 1.0."""

    total_nodes: int = msgspec.field(name="totalNodes")
    healthy_nodes: int = msgspec.field(name="healthyNodes")
    faulty_nodes: int = msgspec.field(name="faultyNodes")
    fully_idle_nodes: int = msgspec.field(name="fullyIdleNodes")
    partially_idle_nodes: int = msgspec.field(name="partiallyIdleNodes")
    busy_nodes: int = msgspec.field(name="busyNodes")
    allocation_rate: float | None = msgspec.field(name="allocationRate")
    utilization: float | None
    storage_stat: "StorageStat" = msgspec.field(name="storageStat")
    rdma_cluster_stat: "RdmaClusterStat" = msgspec.field(name="rdmaClusterStat")
    total_gpus: int = msgspec.field(name="totalGpus")
    allocated_gpus: int | None = msgspec.field(name="allocatedGpus")
    schedulable_gpus: int = msgspec.field(name="schedulableGpus")
    schedulable_allocated_gpus: int | None = msgspec.field(name="schedulableAllocatedGpus")
    measured_gpus: int = msgspec.field(name="measuredGpus")
    idle_gpus: int = msgspec.field(name="idleGpus")
    note: str | None = None


class ClusterStatistics(msgspec.Struct, kw_only=True):
    """One hour of a cluster."""

    id: int
    cluster_name: str
    stat_hour: str
    total_gpu_capacity: int
    capacity_gpu_hours: float
    allocated_gpu_count: float
    allocation_rate: float
    avg_utilization: float | None
    max_utilization: float | None
    min_utilization: float | None
    p50_utilization: float | None
    p95_utilization: float | None
    sample_count: int
    allocated_gpu_hours: float
    idle_gpu_hours: float
    cost: float
    currency: str | None = None
    energy_kwh: float | None
    observed_share: float
    partial: bool = False
    created_at: str
    updated_at: str


class Consumer(msgspec.Struct, kw_only=True):
    """A top-level workload that holds GPUs."""

    kind: str
    name: str
    namespace: str
    uid: str
    stat: "ConsumerStat"
    pods: None
    source: str


class ConsumerPage(msgspec.Struct, kw_only=True):
    """One page of consumers, and how many there are in all."""

    data: list["Consumer"]
    total: int


class ConsumerStat(msgspec.Struct, kw_only=True):
    """GPUs of a consumer and their mean utilization (null without a reading)."""

    gpu_request: int = msgspec.field(name="gpuRequest")
    gpu_utilization: float | None = msgspec.field(name="gpuUtilization")


class CostlyFault(msgspec.Struct, kw_only=True):
    """What one fault cost."""

    node: str
    model: str
    cause: str
    gpus: int
    opened: str
    closed: str | None
    lost_gpu_hours: float = msgspec.field(name="lostGpuHours")


class Costs(msgspec.Struct, kw_only=True):
    """What faults cost in a span of time; the largest come first."""

    start: int
    end: int
    faults: int
    open_faults: int = msgspec.field(name="openFaults")
    lost_gpu_hours: float = msgspec.field(name="lostGpuHours")
    mean_hours_between_failures: float | None = msgspec.field(name="meanHoursBetweenFailures")
    mean_hours_to_repair: float | None = msgspec.field(name="meanHoursToRepair")
    by_cause: dict[str, float] = msgspec.field(name="byCause")
    by_node: dict[str, float] = msgspec.field(name="byNode")
    by_model: dict[str, float] = msgspec.field(name="byModel")
    costliest: list["CostlyFault"]


class DependencyHealth(msgspec.Struct, kw_only=True):
    """The state of one dependency: `ok`, `down`, or `off` if it is not configured."""

    state: Literal["down", "off", "ok"]
    message: str


class EpisodeRow(msgspec.Struct, kw_only=True):
    """A fault that is over."""

    cause: str
    message: str
    gpus: int
    model: str
    opened: str
    closed: str
    steps: list[str]


class FaultCost(msgspec.Struct, kw_only=True):
    """What one fault cost."""

    node: str
    model: str
    cause: str
    gpus: int
    opened: str
    closed: str | None
    lost_gpu_hours: float


class FaultCosts(msgspec.Struct, kw_only=True):
    """The costs of faults in a span of time; the largest come first."""

    faults: int = 0
    open_faults: int = 0
    lost_gpu_hours: float = 0.0
    mean_hours_between_failures: float | None = None
    mean_hours_to_repair: float | None = None
    by_cause: dict[str, float] = msgspec.field(default_factory=dict)
    by_node: dict[str, float] = msgspec.field(default_factory=dict)
    by_model: dict[str, float] = msgspec.field(default_factory=dict)
    costliest: list["FaultCost"] = msgspec.field(default_factory=list)


class FindingPage(msgspec.Struct, kw_only=True):
    """One page of findings, and how many there are in all."""

    data: list["FindingRow"]
    total: int
    kernel_log_unread: dict[str, int] = msgspec.field(name="kernelLogUnread", default_factory=dict)


class FindingRow(msgspec.Struct, kw_only=True):
    """An open finding of a node, of one of its GPUs, or of a rank of a job."""

    node: str
    gpu: int | None
    signal: str
    severity: Literal["Degraded", "Unhealthy", "Warning"]
    scope: str
    message: str
    action: str
    since: str | None
    advice: str = ""
    workload_uid: str = msgspec.field(name="workloadUid", default="")
    workload: str = ""
    rank: int | None = None
    acknowledged_by: str = msgspec.field(name="acknowledgedBy", default="")
    silenced_until: str | None = msgspec.field(name="silencedUntil", default=None)


class FitAnswer(msgspec.Struct, kw_only=True):
    """Whether the pods fit now; if not, why, what would help, and when they are expected to start."""

    fits: bool
    placed: int
    sentence: str
    nodes: list["FitNode"]
    total_nodes: int = msgspec.field(name="totalNodes")
    reasons: dict[str, int]
    remedies: list[str]
    estimate: "StartEstimate | None"


class FitNode(msgspec.Struct, kw_only=True):
    """A node that could take at least one pod."""

    name: str
    free: int


class FleetOccupancy(msgspec.Struct, kw_only=True):
    """The teams, the one with the most GPU hours first."""

    teams: list["TeamOccupancy"]
    truncated: bool


class Forecast(msgspec.Struct, kw_only=True):
    """Forecasts, those with the most use first."""

    data: list["GroupForecast"]


class ForecastPoint(msgspec.Struct, kw_only=True):
    """The GPUs that are wanted in an hour, with a 90% interval."""

    time: str
    expected: float
    low: float
    high: float


class GpuHolder(msgspec.Struct, kw_only=True):
    """A pod that holds a GPU, and its workload; all names are empty if the caller may not see them."""

    pod_namespace: str = msgspec.field(name="podNamespace")
    pod_name: str = msgspec.field(name="podName")
    pod_uid: str = msgspec.field(name="podUid")
    workload_uid: str = msgspec.field(name="workloadUid")
    share: float


class GpuMap(msgspec.Struct, kw_only=True):
    """Every GPU of a cluster, node by node; all lists of GPUs have the same order."""

    quantity: str
    unit: str
    taken_at: float = msgspec.field(name="takenAt")
    nodes: list[str]
    counts: list[int]
    models: list[str]
    model_of: list[int] = msgspec.field(name="modelOf")
    indexes: list[int]
    values: list[int | None]
    marks: str
    islands: str
    groups: dict[str, "NodeGroup"] = msgspec.field(default_factory=dict)
    holders: list["MapHolder"] = msgspec.field(default_factory=list)
    holder_of: list[int] = msgspec.field(name="holderOf", default_factory=list)


class GpuMetrics(msgspec.Struct, kw_only=True):
    """One GPU: memory in GiB, utilization in percent, temperature in Celsius; null if not measured."""

    node_name: str
    gpu_index: int
    gpu_name: str
    utilization: float | None
    memory_used: float | None
    memory_total: float | None
    memory_free: float | None
    memory_utilization: float | None
    temperature: float | None
    timestamp: str
    power: float | None
    uuid: str


class GpuPage(msgspec.Struct, kw_only=True):
    """One page of GPUs, and how many there are in all."""

    data: list["GpuRow"]
    total: int


class GpuProcessRow(msgspec.Struct, kw_only=True):
    """One process on one GPU: GPU memory in MiB, cpu and memory in percent; null if not measured."""

    node_name: str
    gpu_index: int
    pid: int
    process_name: str
    user: str
    command: str
    gpu_memory: float | None
    cpu: float | None
    memory: float | None
    timestamp: str


class GpuRow(msgspec.Struct, kw_only=True):
    """A GPU of the fleet; rates 0.0 to 1.0, memory in GiB, null if not measured."""

    index: int
    uuid: str
    model: str
    vendor: str
    island: str
    bandwidth_gbps: int = msgspec.field(name="bandwidthGBps")
    health: str = ""
    health_reason: str = msgspec.field(name="healthReason", default="")
    health_since: str | None = msgspec.field(name="healthSince", default=None)
    cordoned: bool = False
    draining: bool = False
    mig_profiles: list[str] = msgspec.field(name="migProfiles", default_factory=list)
    utilization: float | None = None
    memory_used: float | None = msgspec.field(name="memoryUsed", default=None)
    memory_total: float | None = msgspec.field(name="memoryTotal", default=None)
    temperature: float | None = None
    power: float | None = None
    holders: list["GpuHolder"] = msgspec.field(default_factory=list)
    node: str
    state: Literal["cordoned", "draining", "free", "held", "perhaps-held", "unhealthy", "unknown"]


class Graph(msgspec.Struct, kw_only=True):
    """One graph, and its position among the others."""

    serial: int
    series: list["Series"]
    config: "GraphConfig"


class GraphConfig(msgspec.Struct, kw_only=True):
    """How to draw a graph."""

    y_axis_unit: str = msgspec.field(name="yAxisUnit")


class GroupForecast(msgspec.Struct, kw_only=True):
    """The forecast of one group. It has no points if less than three days are known."""

    name: str
    points: list["ForecastPoint"]
    capacity: int | None
    capacity_exceeded: str | None = msgspec.field(name="capacityExceeded")
    capacity_exceeded_earliest: str | None = msgspec.field(name="capacityExceededEarliest")
    budget_spent: str | None = msgspec.field(name="budgetSpent")
    budget_spent_earliest: str | None = msgspec.field(name="budgetSpentEarliest")


class Health(msgspec.Struct, kw_only=True):
    """The data of `/api/healthz`."""

    status: Literal["degraded", "healthy"]
    timestamp: str
    version: str
    dependencies: dict[str, "DependencyHealth"]
    simulated: bool = False


class Heatmap(msgspec.Struct, kw_only=True):
    """The hottest GPUs by one quantity, highest first."""

    serial: int
    unit: str
    y_axis_max: int = msgspec.field(name="yAxisMax")
    y_axis_min: int = msgspec.field(name="yAxisMin")
    data: list["HeatmapPoint"]


class HeatmapPoint(msgspec.Struct, kw_only=True):
    """One of the hottest GPUs."""

    node_name: str = msgspec.field(name="nodeName")
    device_id: int = msgspec.field(name="deviceId")
    value: float
    gpu_model: str = msgspec.field(name="gpuModel")


class Heatmaps(msgspec.Struct, kw_only=True):
    """The hottest GPUs of the whole cluster by each quantity."""

    power: "Heatmap"
    temperature: "Heatmap"
    utilization: "Heatmap"


class HeldPart(msgspec.Struct, kw_only=True):
    """A time in which a workload held the same number of GPUs, in Unix seconds."""

    start: float
    end: float
    """Unix seconds; 0 while it lasts."""
    gpus: float


class HierarchyItem(msgspec.Struct, kw_only=True):
    """An object and its children."""

    kind: str
    name: str
    namespace: str
    uid: str
    children: list["HierarchyItem"]
    queue: "WorkloadQueue | None" = None


class LabelStatistics(msgspec.Struct, kw_only=True):
    """One hour of all pods with one value of a label or annotation."""

    id: int
    cluster_name: str
    dimension_type: str
    dimension_key: str
    dimension_value: str
    stat_hour: str
    allocated_gpu_count: float
    avg_utilization: float | None
    max_utilization: float | None
    min_utilization: float | None
    p50_utilization: float | None
    p95_utilization: float | None
    sample_count: int
    active_workload_count: int
    allocated_gpu_hours: float
    idle_gpu_hours: float
    cost: float
    currency: str | None = None
    energy_kwh: float | None
    observed_share: float
    partial: bool = False
    created_at: str
    updated_at: str


class LeaseHolder(msgspec.Struct, kw_only=True):
    """A pod that holds a share of a GPU; its name is empty if the lease does not give it."""

    pod_uid: str = msgspec.field(name="podUid")
    namespace: str
    pod_name: str = msgspec.field(name="podName")
    claim: str
    share: float | None
    instances: list[str]


class LeasePage(msgspec.Struct, kw_only=True):
    """One page of leases, and how many there are in all."""

    data: list["LeaseRow"]
    total: int


class LeaseRow(msgspec.Struct, kw_only=True):
    """A lease of a GPU; `foreign` if gpufleet's scheduler did not create it."""

    name: str
    node: str
    gpu: int
    foreign: bool
    holders: list["LeaseHolder"]
    acquired_at: str | None = msgspec.field(name="acquiredAt")


class Log(msgspec.Struct, kw_only=True):
    """The last lines of a log, at most 1 MiB; each begins with its time."""

    pod: str
    text: str


class Manifest(msgspec.Struct, kw_only=True):
    """An object as YAML."""

    yaml: str


class MapHolder(msgspec.Struct, kw_only=True):
    """A workload that holds GPUs; all fields are empty if the caller may not see it."""

    uid: str
    kind: str
    name: str
    namespace: str
    team: str
    user: str


class Me(msgspec.Struct, kw_only=True):
    """The caller; all fields but the last are null without a login."""

    user: str | None
    role: Literal["operator", "viewer"] | None
    namespaces: list[str] | None
    login: Literal["kubernetes", "oidc", "session", "token", "workload"] | None
    sign_in: Literal["none", "oidc", "token"] = msgspec.field(name="signIn")


class NamespaceStatistics(msgspec.Struct, kw_only=True):
    """One hour of a namespace."""

    id: int
    cluster_name: str
    namespace: str
    stat_hour: str
    total_gpu_capacity: int
    allocated_gpu_count: float
    avg_utilization: float | None
    max_utilization: float | None
    min_utilization: float | None
    p50_utilization: float | None
    p95_utilization: float | None
    sample_count: int
    active_workload_count: int
    allocated_gpu_hours: float
    idle_gpu_hours: float
    cost: float
    currency: str | None = None
    energy_kwh: float | None
    observed_share: float
    partial: bool = False
    created_at: str
    updated_at: str


class NamespaceUse(msgspec.Struct, kw_only=True):
    """The use of one namespace."""

    namespace: str
    decayed_gpu_hours: float
    day: "PeriodUse"
    week: "PeriodUse"
    month: "PeriodUse"


class NodeDetail(msgspec.Struct, kw_only=True):
    """A node with its GPUs, their holders and processes."""

    name: str
    source: str
    state: str
    ready: bool
    cordoned: bool
    fault: str
    gpu_total: int = msgspec.field(name="gpuTotal")
    gpu_allocated: int | None = msgspec.field(name="gpuAllocated")
    gpu_model: str = msgspec.field(name="gpuModel")
    utilization: float | None
    rack: str = ""
    labels: dict[str, str]
    gpus: list["NodeGpu"]
    processes: list["NodeProcess"]


class NodeGpu(msgspec.Struct, kw_only=True):
    """A GPU of a node; rates 0.0 to 1.0, memory in GiB, null if not measured."""

    index: int
    uuid: str
    model: str
    vendor: str
    island: str
    bandwidth_gbps: int = msgspec.field(name="bandwidthGBps")
    health: str = ""
    health_reason: str = msgspec.field(name="healthReason", default="")
    health_since: str | None = msgspec.field(name="healthSince", default=None)
    cordoned: bool = False
    draining: bool = False
    mig_profiles: list[str] = msgspec.field(name="migProfiles", default_factory=list)
    utilization: float | None = None
    memory_used: float | None = msgspec.field(name="memoryUsed", default=None)
    memory_total: float | None = msgspec.field(name="memoryTotal", default=None)
    temperature: float | None = None
    power: float | None = None
    holders: list["GpuHolder"] = msgspec.field(default_factory=list)


class NodeGroup(msgspec.Struct, kw_only=True):
    """One way to group the nodes of a map."""

    values: list[str]
    of: list[int]


class NodePage(msgspec.Struct, kw_only=True):
    """One page of nodes, and how many there are in all."""

    data: list["NodeRow"]
    total: int


class NodeProcess(msgspec.Struct, kw_only=True):
    """A process on a GPU; memory in MiB."""

    gpu_index: int = msgspec.field(name="gpuIndex")
    pid: int
    process_name: str = msgspec.field(name="processName")
    user: str
    gpu_memory: float | None = msgspec.field(name="gpuMemory")


class NodeRow(msgspec.Struct, kw_only=True):
    """A GPU node in a list."""

    name: str
    source: str
    state: str
    ready: bool
    cordoned: bool
    fault: str
    gpu_total: int = msgspec.field(name="gpuTotal")
    gpu_allocated: int | None = msgspec.field(name="gpuAllocated")
    gpu_model: str = msgspec.field(name="gpuModel")
    utilization: float | None
    rack: str = ""


class Occupancy(msgspec.Struct, kw_only=True):
    """Who held the GPUs of a node, by start."""

    gpus: list[int]
    periods: list["OccupancyPeriod"]
    truncated: bool


class OccupancyPeriod(msgspec.Struct, kw_only=True):
    """A pod that held GPUs; all names are empty if the caller may not see them."""

    namespace: str
    team: str
    user: str
    pod_name: str = msgspec.field(name="podName")
    workload_uid: str = msgspec.field(name="workloadUid")
    workload_kind: str = msgspec.field(name="workloadKind")
    workload_name: str = msgspec.field(name="workloadName")
    gpus: list[int]
    gpu_count: int = msgspec.field(name="gpuCount")
    share: float
    start: float
    end: float
    """Unix seconds; 0 while it lasts."""


class OccupyingWorkload(msgspec.Struct, kw_only=True):
    """A workload, and when it held how many GPUs."""

    uid: str
    kind: str
    name: str
    namespace: str
    user: str
    gpu_hours: float = msgspec.field(name="gpuHours")
    parts: list["HeldPart"]


class ClusterStatisticsPage(msgspec.Struct, kw_only=True):
    """Some rows, and how many there are in all."""

    total: int
    page: int
    page_size: int
    total_pages: int
    data: list["ClusterStatistics"]


class LabelStatisticsPage(msgspec.Struct, kw_only=True):
    """Some rows, and how many there are in all."""

    total: int
    page: int
    page_size: int
    total_pages: int
    data: list["LabelStatistics"]


class NamespaceStatisticsPage(msgspec.Struct, kw_only=True):
    """Some rows, and how many there are in all."""

    total: int
    page: int
    page_size: int
    total_pages: int
    data: list["NamespaceStatistics"]


class SnapshotPage(msgspec.Struct, kw_only=True):
    """Some rows, and how many there are in all."""

    total: int
    page: int
    page_size: int
    total_pages: int
    data: list["Snapshot"]


class WasteRowPage(msgspec.Struct, kw_only=True):
    """Some rows, and how many there are in all."""

    total: int
    page: int
    page_size: int
    total_pages: int
    data: list["WasteRow"]


class WorkloadStatisticsPage(msgspec.Struct, kw_only=True):
    """Some rows, and how many there are in all."""

    total: int
    page: int
    page_size: int
    total_pages: int
    data: list["WorkloadStatistics"]


class PeriodUse(msgspec.Struct, kw_only=True):
    """GPU-hours and cost since a period began."""

    gpu_hours: float
    cost: float


class QueueBudget(msgspec.Struct, kw_only=True):
    """The budget of a queue in the current period."""

    unit: Literal["cost", "gpuHours"]
    period: str
    hard: bool
    total: float
    used: float
    percent: int
    renewed_at: str | None = msgspec.field(name="renewedAt")


class QueueCondition(msgspec.Struct, kw_only=True):
    """A condition; True is the normal state."""

    type: str
    status: str
    reason: str
    message: str


class QueueList(msgspec.Struct, kw_only=True):
    """All queues by name."""

    data: list["QueueRow"]
    total: int


class QueuePage(msgspec.Struct, kw_only=True):
    """The waiting units, in the order of the queue."""

    data: list["QueuedUnit"]


class QueueRow(msgspec.Struct, kw_only=True):
    """A queue: its spec and its current use in GPUs."""

    name: str
    parent: str
    namespaces: list[str]
    weight: int
    guaranteed: int
    guaranteed_models: dict[str, int] = msgspec.field(name="guaranteedModels")
    limit: int | None
    used: float
    used_guaranteed: float = msgspec.field(name="usedGuaranteed")
    borrowed: float
    pending: float
    share: float
    models: dict[str, float]
    budget: "QueueBudget | None"
    accounted_until: str | None = msgspec.field(name="accountedUntil")
    conditions: list["QueueCondition"]
    created_at: str | None = msgspec.field(name="createdAt")


class QueuedUnit(msgspec.Struct, kw_only=True):
    """A pod or a gang that waits for GPUs."""

    namespace: str
    name: str
    claims: list[str]
    gpus: float
    estimate: "StartEstimate"


class RdmaClusterStat(msgspec.Struct, kw_only=True):
    """InfiniBand ports of the cluster."""

    total_ports: int = msgspec.field(name="totalPorts")
    active_ports: int = msgspec.field(name="activePorts")
    bandwidth: str
    note: str | None = None


class RepairPage(msgspec.Struct, kw_only=True):
    """One page of repairs, how many there are in all, and what the disruption budget counts."""

    data: list["RepairRow"]
    total: int
    nodes: int = 0
    disrupted: int = 0
    drains_in_hour: int = msgspec.field(name="drainsInHour", default=0)


class RepairRow(msgspec.Struct, kw_only=True):
    """The repair of a node: what happens now, and its earlier faults."""

    node: str
    phase: str
    since: str | None
    message: str
    cause: str
    gpus: list[int]
    action: str
    attempts: int
    passes: int
    opened: str | None
    acknowledged_by: str = msgspec.field(name="acknowledgedBy")
    silenced_until: str | None = msgspec.field(name="silencedUntil")
    steps: list[str]
    history: list["EpisodeRow"]


class Report(msgspec.Struct, kw_only=True):
    """The usage of a cluster's GPUs in a period."""

    cluster_name: str
    period: str
    group_by: str
    start_time: str
    end_time: str
    hours_accounted: float
    hours_in_period: int
    currency: str = ""
    totals: "ReportTotals"
    rows: list["ReportRow"]
    series: "ReportSeries | None" = None
    faults: "FaultCosts | None" = None


class ReportLine(msgspec.Struct, kw_only=True):
    """One group, or all groups without a line of their own (`others`)."""

    row: Literal["group", "others"]
    name: str
    namespace: str = ""
    kind: str = ""
    uid: str = ""
    gpu_hours: list[float]
    cost: list[float]
    energy_kwh: list[float | None]


class ReportRow(msgspec.Struct, kw_only=True):
    """The usage of one group, or a remainder according to `row`."""

    row: Literal["group", "others", "unallocated", "unattributed"]
    name: str
    namespace: str = ""
    kind: str = ""
    uid: str = ""
    runs: int | None = None
    gpu_hours: float
    idle_gpu_hours: float
    avg_utilization: float | None
    cost: float
    currency: str | None = None
    energy_kwh: float | None
    share: float


class ReportSeries(msgspec.Struct, kw_only=True):
    """GPU-hours, cost and energy over time. Hours and days without data are left out."""

    step: Literal["day", "hour"]
    times: list[str]
    lines: list["ReportLine"]


class ReportTotals(msgspec.Struct, kw_only=True):
    """The whole cluster."""

    capacity_gpu_hours: float
    allocated_gpu_hours: float
    idle_gpu_hours: float
    avg_utilization: float | None
    cost: float
    energy_kwh: float | None
    allocation_rate: float


class Series(msgspec.Struct, kw_only=True):
    """One line of a graph."""

    name: str
    points: list[tuple[float, int]]


class Snapshot(msgspec.Struct, kw_only=True):
    """Capacity, allocation and utilization of a cluster at one moment."""

    id: int
    cluster_name: str
    snapshot_time: str
    dimension_type: str = "cluster"
    dimension_key: str = ""
    dimension_value: str = ""
    total_gpu_capacity: int
    allocated_gpu_count: int | float
    utilization: float | None
    allocation_details: Any
    created_at: str


class StartEstimate(msgspec.Struct, kw_only=True):
    """When a unit is expected to start, with a 90% interval; null where that is unknown."""

    position: int
    waits_for: str = msgspec.field(name="waitsFor")
    expected_start: str | None = msgspec.field(name="expectedStart")
    earliest_start: str | None = msgspec.field(name="earliestStart")
    latest_start: str | None = msgspec.field(name="latestStart")


class StorageStat(msgspec.Struct, kw_only=True):
    """File systems of the cluster; a shared one counts once."""

    total_capacity: str = msgspec.field(name="totalCapacity")
    used_capacity: str = msgspec.field(name="usedCapacity")
    available_capacity: str = msgspec.field(name="availableCapacity")
    utilization_rate: float = msgspec.field(name="utilizationRate")
    note: str | None = None


class StragglerRow(msgspec.Struct, kw_only=True):
    """A suspect GPU or rank of a job.      Ranks are numbered one per GPU, pods in the order of their
    names, as torchrun does. What is not known is null or empty.
    """

    workload_uid: str = msgspec.field(name="workloadUid")
    workload: str
    namespace: str
    pod: str
    rank: int | None
    node: str
    gpu: int | None
    quantity: str
    value: float
    median: float
    since: str
    message: str


class TeamOccupancy(msgspec.Struct, kw_only=True):
    """A team and its workloads."""

    team: str
    gpu_hours: float = msgspec.field(name="gpuHours")
    workloads: list["OccupyingWorkload"]
    more: int


class TrainingRow(msgspec.Struct, kw_only=True):
    """A number that a training job reported; the time is in Unix milliseconds."""

    metric: str
    value: float
    timestamp: int


class Use(msgspec.Struct, kw_only=True):
    """The use of all namespaces in finished hours."""

    cluster_name: str
    until: str | None
    day_start: str
    week_start: str
    month_start: str
    namespaces: list["NamespaceUse"]
    prices: dict[str, float]
    currency: str = ""


class WasteRow(msgspec.Struct, kw_only=True):
    """A workload with idle GPUs."""

    namespace: str
    workload_name: str
    workload_type: str
    owner_uid: str
    idle_gpu_hours: float
    allocated_gpu_hours: float
    idle_share: float
    avg_utilization: float | None
    energy_kwh: float | None
    idle_cost: float
    currency: str | None = None


class WhyWaiting(msgspec.Struct, kw_only=True):
    """Why a claim waits: a sentence, the number of nodes by reason, and what would make it fit."""

    waiting: bool
    sentence: str
    reasons: dict[str, int]
    remedies: list[str]
    estimate: "StartEstimate | None" = None


class WorkloadDetail(msgspec.Struct, kw_only=True):
    """A workload; times in Unix seconds, 0 if not yet."""

    api_version: str = msgspec.field(name="apiVersion")
    kind: str
    name: str
    namespace: str
    uid: str
    gpu_allocation: dict[str, int] = msgspec.field(name="gpuAllocation")
    pods: list["WorkloadPod"]
    start_time: int = msgspec.field(name="startTime")
    end_time: int = msgspec.field(name="endTime")
    source: str
    status: str
    labels: dict[str, str]
    annotations: dict[str, str]
    gpu_requested: int = msgspec.field(name="gpuRequested", default=0)
    gpu_model_requested: str = msgspec.field(name="gpuModelRequested", default="")
    waiting_reason: str = msgspec.field(name="waitingReason", default="")
    expected_start: int = msgspec.field(name="expectedStart", default=0)
    queue: "WorkloadQueue | None" = None
    claims: list[str] = msgspec.field(default_factory=list)
    team: str = ""
    user: str = ""


class WorkloadEvent(msgspec.Struct, kw_only=True):
    """An event about a workload or one of its pods."""

    kind: str
    name: str
    type: str
    reason: str
    message: str
    count: int
    last: str
    reporter: str


class WorkloadMetadata(msgspec.Struct, kw_only=True):
    """Values to filter lists of workloads by."""

    namespaces: list[str]
    kinds: list[str]
    models: list[str] = msgspec.field(default_factory=list)
    teams: list[str] = msgspec.field(default_factory=list)
    users: list[str] = msgspec.field(default_factory=list)
    sources: list[str] = msgspec.field(default_factory=list)
    racks: list[str] = msgspec.field(default_factory=list)


class WorkloadPage(msgspec.Struct, kw_only=True):
    """One page of workloads, and how many there are in all."""

    data: list["WorkloadRow"]
    total: int


class WorkloadPod(msgspec.Struct, kw_only=True):
    """A pod of a workload, and its node."""

    node_name: str = msgspec.field(name="nodeName")
    pod_namespace: str = msgspec.field(name="podNamespace")
    pod_name: str = msgspec.field(name="podName")
    status: str
    claim: str = ""


class WorkloadQueue(msgspec.Struct, kw_only=True):
    """A workload in a queue of Kueue."""

    queue: str
    cluster_queue: str = msgspec.field(name="clusterQueue")
    state: str
    reason: str


class WorkloadRow(msgspec.Struct, kw_only=True):
    """A workload in a list; times in Unix seconds, 0 if not yet."""

    kind: str
    name: str
    namespace: str
    uid: str
    gpu_allocated: int = msgspec.field(name="gpuAllocated")
    gpu_allocation: dict[str, int] = msgspec.field(name="gpuAllocation")
    status: str
    status_color: str = msgspec.field(name="statusColor")
    start_at: int = msgspec.field(name="startAt")
    end_at: int = msgspec.field(name="endAt")
    source: str
    gpu_requested: int = msgspec.field(name="gpuRequested", default=0)
    gpu_model_requested: str = msgspec.field(name="gpuModelRequested", default="")
    waiting_reason: str = msgspec.field(name="waitingReason", default="")
    expected_start: int = msgspec.field(name="expectedStart", default=0)
    queue: "WorkloadQueue | None" = None
    team: str = ""
    user: str = ""
    claims: list[str] = msgspec.field(default_factory=list)


class WorkloadStatistics(msgspec.Struct, kw_only=True):
    """One hour of a workload; memory in GiB per GPU."""

    id: int
    cluster_name: str
    namespace: str
    workload_name: str
    workload_type: str
    stat_hour: str
    allocated_gpu_count: float
    requested_gpu_count: float
    avg_utilization: float | None
    max_utilization: float | None
    min_utilization: float | None
    p50_utilization: float | None
    p95_utilization: float | None
    avg_gpu_memory_used: float | None
    max_gpu_memory_used: float | None
    avg_gpu_memory_total: float | None
    avg_replica_count: float
    max_replica_count: int
    min_replica_count: int
    workload_status: str
    sample_count: int
    owner_uid: str
    owner_name: str
    labels: dict[str, str]
    annotations: dict[str, str]
    source: str
    allocated_gpu_hours: float
    idle_gpu_hours: float
    cost: float
    currency: str | None = None
    energy_kwh: float | None
    observed_share: float
    partial: bool = False
    created_at: str
    updated_at: str
