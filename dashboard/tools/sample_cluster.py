"""Open the sample fleet as a cluster whose recent readings are in the store."""

import asyncio
import random
import time

import msgspec
from dashboard.tools.sample_fleet import sample_fleet, sample_processes, sample_readings, sample_training

from gpufleet.exporters.embedded import EmbeddedMetrics
from gpufleet.fleet.clusters import Cluster, Clusters
from gpufleet.fleet.workloads.listing import Listing
from gpufleet.runtime.settings import MetricsSettings
from gpufleet.server.health import Lifecycle
from gpufleet.server.http.routing import Route
from gpufleet.server.routes.live.clusters import cluster_routes
from gpufleet.server.routes.live.events import event_routes
from gpufleet.server.routes.live.gpu_map import gpu_map_routes
from gpufleet.server.routes.live.gpus import gpu_routes
from gpufleet.server.routes.live.nodes import node_routes
from gpufleet.server.routes.live.workload_metrics import workload_metric_routes
from gpufleet.server.routes.live.workloads import workload_routes
from gpufleet.store import Store


async def open_sample_cluster(
    store: Store, nodes: int, now: float, *, history: bool, name: str = "prod"
) -> Cluster:
    """Return a cluster over the sample fleet, with three hours of readings if `history`."""
    fleet = sample_fleet(nodes, now, name=name)
    fleet.refresh()
    fleet.changes.recent.clear()
    metrics = EmbeddedMetrics(name, store.readings, store.training, MetricsSettings())
    if history:
        for minutes in range(180, 0, -2):
            await metrics.record(sample_readings(fleet, now - minutes * 60))
        await metrics.record_training("wl-00000", sample_training(now - 10_800, now))
    await metrics.record(sample_readings(fleet, now))
    await metrics.record_processes(sample_processes(fleet, now))
    fleet.put_readings(await metrics.latest())
    return Cluster(name, fleet, Listing(fleet), metrics)


def live_routes(clusters: Clusters, lifecycle: Lifecycle, store: Store) -> list[Route]:
    """Return the routes of the live fleet that the dashboard calls."""
    return [
        *cluster_routes(clusters),
        *workload_routes(clusters),
        *workload_metric_routes(clusters, store.allocation_periods),
        *gpu_routes(clusters),
        *gpu_map_routes(clusters),
        *node_routes(clusters),
        *event_routes(clusters, lifecycle),
    ]


async def simulate_changes(cluster: Cluster, period: float = 5.0) -> None:
    """Every `period` seconds, put new readings and cordon or uncordon a random node."""
    rng = random.Random(1)
    fleet = cluster.fleet
    while True:
        await asyncio.sleep(period)
        fleet.put_readings(sample_readings(fleet, time.time()))
        name = rng.choice(sorted(fleet.views()))
        node = fleet.views()[name].node
        fleet.put_node(msgspec.structs.replace(node, cordoned=not node.cordoned))
