"""`/api/clusters*`: the list of clusters; overview, top consumers and hottest GPUs of one."""

import asyncio
import math
from typing import Annotated

import msgspec
from msgspec import Meta

from gpufleet.fleet.clusters import Cluster, Clusters
from gpufleet.fleet.overview import HotGpu, hottest, overview, utilization_of
from gpufleet.fleet.workloads.summary import Workload
from gpufleet.model.namespaces import Namespaces
from gpufleet.model.reading import Quantity, RdmaPorts, StorageUse
from gpufleet.server.http.routing import Route, get
from gpufleet.server.routes.params import ClusterParams, PageParams

ALLOCATION_UNKNOWN = "only a metric source is configured, which does not say which GPUs are allocated"
NOT_MEASURED = "nothing in the metric source measures this"
_BYTE_UNITS = ("B", "kB", "MB", "GB", "TB")


class ClusterName(msgspec.Struct):
    """A cluster of this server."""

    name: str


class StorageStat(msgspec.Struct, rename="camel"):
    """File systems of the cluster; a shared one counts once."""

    total_capacity: str
    used_capacity: str
    available_capacity: str
    utilization_rate: float
    note: str | msgspec.UnsetType = msgspec.UNSET


class RdmaClusterStat(msgspec.Struct, rename="camel"):
    """InfiniBand ports of the cluster."""

    total_ports: int
    active_ports: int
    bandwidth: str
    note: str | msgspec.UnsetType = msgspec.UNSET


class ClusterOverview(msgspec.Struct, rename="camel"):
    """Counts of GPU nodes, and rates from 0.0 to 1.0."""

    total_nodes: int
    healthy_nodes: int
    faulty_nodes: int
    fully_idle_nodes: int
    partially_idle_nodes: int
    busy_nodes: int
    allocation_rate: float | None
    """Null if the allocation is not known."""
    utilization: float | None
    """Null if no allocated GPU has a reading, or the allocation is not known."""
    storage_stat: StorageStat
    rdma_cluster_stat: RdmaClusterStat
    total_gpus: int
    allocated_gpus: int | None
    """Null if the allocation is not known."""
    schedulable_gpus: int
    """Healthy GPUs that are not cordoned, on such nodes: the denominator of `allocationRate`."""
    schedulable_allocated_gpus: int | None
    """Allocated GPUs among them: its numerator. Null if the allocation is not known."""
    measured_gpus: int
    """Allocated GPUs with a reading of utilization: the denominator of `utilization`."""
    idle_gpus: int
    """Those with a utilization below 5%."""
    note: str | msgspec.UnsetType = msgspec.UNSET
    """Why the allocation is not known; nodes are neither idle nor busy then."""


class ConsumerStat(msgspec.Struct, rename="camel"):
    """GPUs of a consumer and their mean utilization (null without a reading)."""

    gpu_request: int
    gpu_utilization: float | None


class Consumer(msgspec.Struct, rename="camel"):
    """A top-level workload that holds GPUs."""

    kind: str
    name: str
    namespace: str
    uid: str
    stat: ConsumerStat
    pods: None
    source: str


class ConsumerPage(msgspec.Struct):
    """One page of consumers, and how many there are in all."""

    data: list[Consumer]
    total: int


class HeatmapPoint(msgspec.Struct, rename="camel"):
    """One of the hottest GPUs."""

    node_name: str
    device_id: int
    value: float
    gpu_model: str


class Heatmap(msgspec.Struct, rename="camel"):
    """The hottest GPUs by one quantity, highest first."""

    serial: int
    unit: str
    y_axis_max: int
    y_axis_min: int
    data: list[HeatmapPoint]


class Heatmaps(msgspec.Struct):
    """The hottest GPUs of the whole cluster by each quantity."""

    power: Heatmap
    temperature: Heatmap
    utilization: Heatmap


class HeatmapParams(ClusterParams, rename="camel"):
    """How many GPUs to return for each quantity."""

    top_k: Annotated[int, Meta(ge=1, le=1000, description="GPUs for each quantity.")] = 5


def cluster_routes(clusters: Clusters) -> list[Route]:
    """Return the routes under `/api/clusters`."""

    @get("/api/clusters", scope="public", example=[ClusterName("prod"), ClusterName("lab")])
    async def list_clusters() -> list[ClusterName]:
        """Clusters of this server, the default one first."""
        return [ClusterName(cluster.name) for cluster in clusters]

    @get("/api/clusters/overview", scope="filtered", example=_OVERVIEW)
    async def cluster_overview(query: ClusterParams, namespaces: Namespaces) -> ClusterOverview:
        """Nodes by state, allocation, utilization, storage and RDMA of a cluster."""
        return await _overview(clusters.synced(query.cluster), namespaces)

    @get("/api/clusters/consumers", scope="filtered", example=_CONSUMERS)
    async def consumers(query: PageParams, namespaces: Namespaces) -> ConsumerPage:
        """Workloads that hold GPUs, most GPUs first."""
        cluster = clusters.synced(query.cluster)
        page = cluster.listing.consumers(query.page_num, query.page_size, namespaces)
        return ConsumerPage([_consumer(cluster, row) for row in page.rows], page.total)

    @get("/api/clusters/gpuHeatmap", scope="filtered", example=_HEATMAPS)
    async def gpu_heatmap(query: HeatmapParams, namespaces: Namespaces) -> Heatmaps:
        """The GPUs of the whole cluster with the highest power, temperature and utilization."""
        fleet = clusters.synced(query.cluster).fleet
        power, temperature, utilization = (
            hottest(fleet, quantity, query.top_k, namespaces)
            for quantity in (Quantity.POWER, Quantity.TEMPERATURE, Quantity.UTILIZATION)
        )
        return Heatmaps(
            power=_heatmap(2, "W", _power_axis(power), 0, power),
            temperature=_heatmap(3, "℃", 110, 20, temperature),
            utilization=_heatmap(1, "%", 100, 0, utilization),
        )

    return [list_clusters, cluster_overview, consumers, gpu_heatmap]


async def _overview(cluster: Cluster, namespaces: Namespaces) -> ClusterOverview:
    storage, rdma = await asyncio.gather(cluster.metrics.storage(), cluster.metrics.rdma())
    counts = overview(cluster.fleet, namespaces)
    return ClusterOverview(
        total_nodes=counts.nodes,
        healthy_nodes=counts.healthy,
        faulty_nodes=counts.faulty,
        fully_idle_nodes=counts.idle,
        partially_idle_nodes=counts.partial,
        busy_nodes=counts.busy,
        allocation_rate=None if counts.allocation_rate is None else round(counts.allocation_rate, 4),
        utilization=_rate(counts.utilization, unallocated=counts.allocated == 0),
        storage_stat=_storage(storage),
        rdma_cluster_stat=_rdma(rdma),
        total_gpus=counts.gpus,
        allocated_gpus=counts.allocated,
        schedulable_gpus=counts.schedulable,
        schedulable_allocated_gpus=counts.schedulable_allocated,
        measured_gpus=counts.measured,
        idle_gpus=counts.idle_gpus,
        note=ALLOCATION_UNKNOWN if counts.allocated is None else msgspec.UNSET,
    )


def _rate(value: float | None, *, unallocated: bool) -> float | None:
    if value is None:
        return 0.0 if unallocated else None
    return round(value, 4)


def _storage(use: StorageUse | None) -> StorageStat:
    if use is None:
        return StorageStat("0TB", "0TB", "0TB", 0.0, NOT_MEASURED)
    rate = use.used_bytes / use.capacity_bytes if use.capacity_bytes else 0.0
    amounts = (use.capacity_bytes, use.used_bytes, use.available_bytes)
    total, used, available = (format_bytes(amount) for amount in amounts)
    return StorageStat(total, used, available, round(rate, 4))


def _rdma(ports: RdmaPorts | None) -> RdmaClusterStat:
    if ports is None:
        return RdmaClusterStat(0, 0, "0Gbps", NOT_MEASURED)
    return RdmaClusterStat(ports.total, ports.active, format_gigabits(ports.port_rate))


def _consumer(cluster: Cluster, workload: Workload) -> Consumer:
    fleet = cluster.fleet
    gpus = [(pod.node, index) for pod in workload.counted for index in fleet.gpus_of(pod)]
    utilization = utilization_of(fleet, gpus)
    stat = ConsumerStat(workload.gpus, _rate(utilization, unallocated=False))
    return Consumer(
        workload.kind, workload.name, workload.namespace, workload.uid, stat, None, workload.source
    )


def _heatmap(serial: int, unit: str, top: int, bottom: int, gpus: list[HotGpu]) -> Heatmap:
    points = [HeatmapPoint(gpu.node, gpu.index, round(gpu.value, 2), gpu.model) for gpu in gpus]
    return Heatmap(serial, unit, top, bottom, points)


def _power_axis(gpus: list[HotGpu]) -> int:
    """Return a round number a little above the highest value."""
    return max(100, math.ceil(max((gpu.value for gpu in gpus), default=0.0) * 1.1 / 50) * 50)


def format_bytes(amount: float) -> str:
    """Return bytes in decimal units, at most TB, with up to one decimal: `450TB`, `1.5GB`; `0TB` for none."""
    if amount <= 0:
        return "0TB"
    unit = 0
    while amount >= 1000 and unit < len(_BYTE_UNITS) - 1:
        amount /= 1000
        unit += 1
    return f"{amount:.1f}".removesuffix(".0") + _BYTE_UNITS[unit]


def format_gigabits(bytes_per_second: float) -> str:
    """Return a link rate in gigabits per second: `400Gbps`."""
    return f"{bytes_per_second * 8 / 1e9:.1f}".removesuffix(".0") + "Gbps"


_OVERVIEW = ClusterOverview(
    total_nodes=10,
    healthy_nodes=9,
    faulty_nodes=1,
    fully_idle_nodes=3,
    partially_idle_nodes=4,
    busy_nodes=2,
    allocation_rate=0.75,
    utilization=0.62,
    storage_stat=StorageStat("1000TB", "450TB", "550TB", 0.45),
    rdma_cluster_stat=RdmaClusterStat(80, 76, "400Gbps"),
    total_gpus=80,
    allocated_gpus=54,
    schedulable_gpus=72,
    schedulable_allocated_gpus=54,
    measured_gpus=54,
    idle_gpus=3,
)
_CONSUMERS = ConsumerPage(
    [Consumer("Job", "training-job-1", "default", "abc123", ConsumerStat(8, 0.85), None, "k8s")], 50
)
_HEATMAPS = Heatmaps(
    power=Heatmap(2, "W", 850, 0, [HeatmapPoint("gpu-node-1", 0, 750.5, "AMD_Instinct_MI300X_OAM")]),
    temperature=Heatmap(3, "℃", 110, 20, [HeatmapPoint("gpu-node-1", 0, 82.5, "AMD_Instinct_MI300X_OAM")]),
    utilization=Heatmap(1, "%", 100, 0, [HeatmapPoint("gpu-node-2", 1, 98.5, "AMD_Instinct_MI300X_OAM")]),
)
