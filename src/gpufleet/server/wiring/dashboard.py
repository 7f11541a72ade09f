"""Give the server its web page, and the routes that were made for those who draw the whole fleet."""

from gpufleet.server.dashboard import dashboard_pages
from gpufleet.server.routes.cluster_names import cluster_name_routes
from gpufleet.server.routes.gpu_map import gpu_map_routes
from gpufleet.server.routes.node_metrics import node_metric_routes
from gpufleet.server.wiring.components import Components


async def add_dashboard(parts: Components) -> None:
    """The built page, or one that says how to build it."""
    clusters = parts.clusters
    parts.routes += [
        *cluster_name_routes(clusters),
        *gpu_map_routes(clusters),
        *node_metric_routes(clusters),
    ]
    parts.pages += dashboard_pages()
