"""The state of each cluster as numbers on `/metrics`, for alerts that hold whatever the exporters are called.

Counted when Prometheus asks, from the same picture that the API answers from: what an alert says and
what the dashboard shows can't differ.
"""

from collections.abc import Iterator

import numpy as np
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gpufleet.fleet.clusters import Cluster, Clusters
from gpufleet.fleet.node_view import NodeState
from gpufleet.fleet.overview import overview
from gpufleet.model.node import Health
from gpufleet.model.reading import Quantity

IDLE_BELOW = 1.0
"""Percent of utilization below which an allocated GPU counts as idle."""


class FleetMetrics(Collector):
    """Nodes by state and GPUs by what they do, for every cluster."""

    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters

    def collect(self) -> Iterator[Metric]:
        """One sample a cluster and state."""
        nodes = GaugeMetricFamily("gpufleet_nodes", "GPU nodes by state.", labels=["cluster", "state"])
        gpus = GaugeMetricFamily(
            "gpufleet_gpus",
            "GPUs: all, allocated, idle (allocated and unused), unhealthy. They overlap.",
            labels=["cluster", "state"],
        )
        for cluster in self._clusters:
            if cluster.unsynced_reason():
                continue  # nothing is known, which is not the same as nothing being there
            counted = overview(cluster.fleet)
            for state in NodeState:
                nodes.add_metric([cluster.name, state.value], getattr(counted, state.value))
            gpus.add_metric([cluster.name, "all"], counted.gpus)
            gpus.add_metric([cluster.name, "allocated"], counted.allocated)
            gpus.add_metric([cluster.name, "idle"], _idle(cluster))
            gpus.add_metric([cluster.name, "unhealthy"], _unhealthy(cluster))
        yield nodes
        yield gpus


def _idle(cluster: Cluster) -> int:
    """GPUs that are certainly allocated and do nothing; those without a reading don't count."""
    gpu_columns = cluster.fleet.gpu_columns
    utilization = gpu_columns.column(Quantity.UTILIZATION)[gpu_columns.allocated[: len(gpu_columns.keys)]]
    return int(np.count_nonzero(utilization < IDLE_BELOW))


def _unhealthy(cluster: Cluster) -> int:
    """An unhealthy GPU makes its node faulty, so the others need no look."""
    faulty = (v for v in cluster.fleet.views().values() if v.state is NodeState.FAULTY)
    return sum(gpu.health is Health.UNHEALTHY for view in faulty for gpu in view.gpus)
