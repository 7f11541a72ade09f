"""Give the server its routes over the clusters that are open."""

from gpufleet.api.clusters import cluster_routes
from gpufleet.api.events import event_routes
from gpufleet.api.gpus import gpu_routes
from gpufleet.api.nodes import node_routes
from gpufleet.api.workload_metrics import workload_metric_routes
from gpufleet.api.workloads import workload_routes
from gpufleet.cli.parts import Parts


async def add_live_routes(parts: Parts) -> None:
    """Clusters, workloads, GPUs, nodes and the stream of changes."""
    clusters = parts.clusters
    parts.routes += [
        *cluster_routes(clusters),
        *workload_routes(clusters),
        *workload_metric_routes(clusters),
        *gpu_routes(clusters),
        *node_routes(clusters),
        *event_routes(clusters, parts.lifecycle),
    ]
