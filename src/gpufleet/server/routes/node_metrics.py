"""`/api/nodes/{name}/metrics`: the GPUs of a node over time, one series for each."""

from gpufleet.errors import NotFound
from gpufleet.fleet.clusters import Cluster, Clusters
from gpufleet.model.metric_source import check_span
from gpufleet.model.reading import GpuRef, Quantity
from gpufleet.server.http.routing import Route, get
from gpufleet.server.routes.workload_metrics import Graph, GraphConfig, MetricsAsked, Series

_GRAPHS = (
    ("GPU Utilization", Quantity.UTILIZATION, 100.0, "%"),
    ("GPU Memory Utilization", Quantity.MEMORY_UTILIZATION, 100.0, "%"),
    ("GPU Power", Quantity.POWER, 1.0, "W"),
    ("GPU Temperature", Quantity.TEMPERATURE, 1.0, "℃"),
)


def node_metric_routes(clusters: Clusters) -> list[Route]:
    """Graphs of a node."""

    @get("/api/nodes/{name:str}/metrics", example=_EXAMPLE)
    async def node_metrics(name: str, query: MetricsAsked) -> dict[str, Graph]:
        """Utilization, memory, power and temperature of a node's GPUs over time."""
        check_span(query.start, query.end, query.step)
        cluster = clusters.synced(query.cluster)
        view = cluster.fleet.views().get(name)
        if view is None:
            raise NotFound(f"no node {name[:64]!r} in cluster {cluster.name}")
        gpus = {GpuRef(name, gpu.index) for gpu in view.gpus}
        return {
            title: Graph(serial, await _lines(cluster, quantity, gpus, query, scale), GraphConfig(unit))
            for serial, (title, quantity, scale, unit) in enumerate(_GRAPHS, start=1)
        }

    return [node_metrics]


async def _lines(
    cluster: Cluster, quantity: Quantity, gpus: set[GpuRef], asked: MetricsAsked, scale: float
) -> list[Series]:
    found = await cluster.metrics.series(quantity, gpus, asked.start, asked.end, asked.step)
    return [
        Series(
            f"GPU-{series.gpu.index}",
            [
                (round(value / scale, 6), round(time * 1000))
                for time, value in zip(series.times.tolist(), series.values.tolist(), strict=True)
            ],
        )
        for series in sorted(found, key=lambda series: series.gpu)
    ]


_EXAMPLE: dict[str, Graph] = {
    "GPU Power": Graph(3, [Series("GPU-0", [(650.5, 1609459200000)])], GraphConfig("W"))
}
