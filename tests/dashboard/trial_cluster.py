"""The trial fleet as a cluster with a past: readings of the last hours are in the store."""

import asyncio
import random
import time

import msgspec
from tests.dashboard.trial_fleet import trial_fleet, trial_processes, trial_readings, trial_training

from gpufleet.exporters.embedded import EmbeddedMetrics
from gpufleet.fleet.clusters import Cluster, Clusters
from gpufleet.fleet.listing import Listing
from gpufleet.runtime.settings import MetricsSettings
from gpufleet.server.health import Lifecycle
from gpufleet.server.http.routing import Route
from gpufleet.server.routes.clusters import cluster_routes
from gpufleet.server.routes.events import event_routes
from gpufleet.server.routes.gpu_map import gpu_map_routes
from gpufleet.server.routes.gpus import gpu_routes
from gpufleet.server.routes.nodes import node_routes
from gpufleet.server.routes.workload_metrics import workload_metric_routes
from gpufleet.server.routes.workloads import workload_routes
from gpufleet.store import Store


async def open_trial(store: Store, nodes: int, now: float, *, history: bool, name: str = "prod") -> Cluster:
    """A cluster over the trial fleet, with three hours of readings if `history`."""
    fleet = trial_fleet(nodes, now, name=name)
    fleet.refresh()
    fleet.changes.recent.clear()
    metrics = EmbeddedMetrics(name, store.readings, store.training, MetricsSettings())
    if history:
        for minutes in range(180, 0, -2):
            await metrics.record(trial_readings(fleet, now - minutes * 60))
        await metrics.record_training("wl-00000", trial_training(now - 10_800, now))
    await metrics.record(trial_readings(fleet, now))
    await metrics.record_processes(trial_processes(fleet, now))
    fleet.put_readings(await metrics.latest())
    return Cluster(name, fleet, Listing(fleet), metrics)


def live_routes(clusters: Clusters, lifecycle: Lifecycle) -> list[Route]:
    """Every route that the page needs of the live picture."""
    return [
        *cluster_routes(clusters),
        *workload_routes(clusters),
        *workload_metric_routes(clusters),
        *gpu_routes(clusters),
        *gpu_map_routes(clusters),
        *node_routes(clusters),
        *event_routes(clusters, lifecycle),
    ]


async def play(cluster: Cluster, period: float = 5.0) -> None:
    """Let time go on: new readings every period, and now and then a node that is cordoned."""
    rng = random.Random(1)
    fleet = cluster.fleet
    while True:
        await asyncio.sleep(period)
        fleet.put_readings(trial_readings(fleet, time.time()))
        name = rng.choice(sorted(fleet.views()))
        node = fleet.views()[name].node
        fleet.put_node(msgspec.structs.replace(node, cordoned=not node.cordoned))
