"""`/api/clusters/*`: the cluster as a whole, its consumers, its hottest GPUs."""

import math
from typing import Annotated, Any

import msgspec
from msgspec import Meta

from gpufleet.fleet.clusters import Cluster, Clusters
from gpufleet.fleet.overview import HotGpu, hottest, overview, utilization_of
from gpufleet.fleet.workload_summary import Workload
from gpufleet.model.reading import Quantity, RdmaPorts, StorageUse
from gpufleet.server.http.routing import Route, get
from gpufleet.server.routes.params import InCluster, PagedInCluster
from gpufleet.server.routes.units import bytes_in_words, gigabits_in_words

NOT_MEASURED = "nothing in the metric source measures this"


class StorageStat(msgspec.Struct, rename="camel"):
    """File systems of the cluster, each shared one counted once."""

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
    allocation_rate: float
    utilization: float | None
    """Null if GPUs are allocated and none of them has a reading."""
    storage_stat: StorageStat
    rdma_cluster_stat: RdmaClusterStat
    total_gpus: int
    allocated_gpus: int


class ConsumerStat(msgspec.Struct, rename="camel"):
    """What a consumer holds, and how well it uses it (null without a reading)."""

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
    """Some consumers, and how many there are."""

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


class HeatmapAsked(InCluster, rename="camel"):
    """How many GPUs for each quantity."""

    top_k: Annotated[int, Meta(ge=1, le=1000, description="GPUs for each quantity.")] = 5


def cluster_routes(clusters: Clusters) -> list[Route]:
    """The routes under `/api/clusters`."""

    @get("/api/clusters/overview", example=_OVERVIEW)
    async def cluster_overview(query: InCluster) -> ClusterOverview:
        """Nodes by state, allocation, utilization, storage and RDMA of a cluster."""
        return await _overview(clusters.synced(query.cluster))

    @get("/api/clusters/consumers", example=_CONSUMERS)
    async def consumers(query: PagedInCluster) -> ConsumerPage:
        """Workloads that hold GPUs, most GPUs first."""
        cluster = clusters.synced(query.cluster)
        page = cluster.listing.consumers(query.page_num, query.page_size)
        return ConsumerPage([_consumer(cluster, row) for row in page.rows], page.total)

    @get("/api/clusters/gpuHeatmap", example=_HEATMAPS)
    async def gpu_heatmap(query: HeatmapAsked) -> Heatmaps:
        """The GPUs of the whole cluster with the most power, temperature and utilization."""
        fleet = clusters.get(query.cluster).fleet
        power = hottest(fleet, Quantity.POWER, query.top_k)
        return Heatmaps(
            power=_heatmap(2, "W", _power_axis(power), 0, power),
            temperature=_heatmap(3, "℃", 110, 20, hottest(fleet, Quantity.TEMPERATURE, query.top_k)),
            utilization=_heatmap(1, "%", 100, 0, hottest(fleet, Quantity.UTILIZATION, query.top_k)),
        )

    return [cluster_overview, consumers, gpu_heatmap]


async def _overview(cluster: Cluster) -> ClusterOverview:
    storage, rdma = await cluster.metrics.storage(), await cluster.metrics.rdma()
    seen = overview(cluster.fleet)
    return ClusterOverview(
        total_nodes=seen.nodes,
        healthy_nodes=seen.healthy,
        faulty_nodes=seen.faulty,
        fully_idle_nodes=seen.idle,
        partially_idle_nodes=seen.partial,
        busy_nodes=seen.busy,
        allocation_rate=round(seen.allocation_rate, 4),
        utilization=_rate(seen.utilization, nothing=seen.allocated == 0),
        storage_stat=_storage(storage),
        rdma_cluster_stat=_rdma(rdma),
        total_gpus=seen.gpus,
        allocated_gpus=seen.allocated,
    )


def _rate(value: float | None, *, nothing: bool) -> float | None:
    if value is None:
        return 0.0 if nothing else None
    return round(value, 4)


def _storage(use: StorageUse | None) -> StorageStat:
    if use is None:
        return StorageStat("0TB", "0TB", "0TB", 0.0, NOT_MEASURED)
    rate = use.used_bytes / use.capacity_bytes if use.capacity_bytes else 0.0
    amounts = (use.capacity_bytes, use.used_bytes, use.available_bytes)
    total, used, available = (bytes_in_words(amount) for amount in amounts)
    return StorageStat(total, used, available, round(rate, 4))


def _rdma(ports: RdmaPorts | None) -> RdmaClusterStat:
    if ports is None:
        return RdmaClusterStat(0, 0, "0Gbps", NOT_MEASURED)
    return RdmaClusterStat(ports.total, ports.active, gigabits_in_words(ports.port_rate))


def _consumer(cluster: Cluster, workload: Workload) -> Consumer:
    fleet = cluster.fleet
    gpus = [(pod.node, index) for pod in workload.counted for index in fleet.gpus_of(pod)]
    utilization = utilization_of(fleet, gpus)
    stat = ConsumerStat(workload.gpus, _rate(utilization, nothing=False))
    name, space = workload.name, workload.namespace
    return Consumer(workload.kind, name, space, workload.uid, stat, None, workload.source)


def _heatmap(serial: int, unit: str, top: int, bottom: int, gpus: list[HotGpu]) -> Heatmap:
    points = [HeatmapPoint(gpu.node, gpu.index, round(gpu.value, 2), gpu.model) for gpu in gpus]
    return Heatmap(serial, unit, top, bottom, points)


def _power_axis(gpus: list[HotGpu]) -> int:
    """A little above the highest bar, in round numbers."""
    return max(100, math.ceil(max((gpu.value for gpu in gpus), default=0.0) * 1.1 / 50) * 50)


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
)
_CONSUMERS = ConsumerPage(
    [Consumer("Job", "training-job-1", "default", "abc123", ConsumerStat(8, 0.85), None, "k8s")], 50
)
_POINT: Any = HeatmapPoint("gpu-node-1", 0, 750.5, "AMD MI300X")
_HEATMAPS = Heatmaps(
    power=Heatmap(2, "W", 850, 0, [_POINT]),
    temperature=Heatmap(3, "℃", 110, 20, [HeatmapPoint("gpu-node-1", 0, 82.5, "AMD MI300X")]),
    utilization=Heatmap(1, "%", 100, 0, [HeatmapPoint("gpu-node-2", 1, 98.5, "AMD MI300X")]),
)
