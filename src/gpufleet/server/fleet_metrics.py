"""Nodes and GPUs of each cluster by state on `/metrics`, for alerts that do not depend on the exporter.

They are counted at each scrape from the same fleet that the API reads, so that alerts and the
dashboard agree.
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
    """Counts nodes and GPUs by state, for every cluster."""

    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters

    def collect(self) -> Iterator[Metric]:
        """Yield one sample per cluster and state."""
        nodes = GaugeMetricFamily("gpufleet_nodes", "GPU nodes by state.", labels=["cluster", "state"])
        gpus = GaugeMetricFamily(
            "gpufleet_gpus",
            "GPUs: all, allocated, idle (allocated and unused), unhealthy. They overlap.",
            labels=["cluster", "state"],
        )
        for cluster in self._clusters:
            if cluster.unsynced_reason():
                continue  # unknown is not zero
            counts = overview(cluster.fleet)
            for state in NodeState:
                nodes.add_metric([cluster.name, state.value], getattr(counts, state.value))
            gpus.add_metric([cluster.name, "all"], counts.gpus)
            gpus.add_metric([cluster.name, "allocated"], counts.allocated)
            gpus.add_metric([cluster.name, "idle"], _idle(cluster))
            gpus.add_metric([cluster.name, "unhealthy"], _unhealthy(cluster))
        yield nodes
        yield gpus


def _idle(cluster: Cluster) -> int:
    """Return the number of allocated GPUs below `IDLE_BELOW`; without a reading a GPU does not count."""
    gpu_columns = cluster.fleet.gpu_columns
    utilization = gpu_columns.column(Quantity.UTILIZATION)[gpu_columns.allocated[: len(gpu_columns.keys)]]
    return int(np.count_nonzero(utilization < IDLE_BELOW))


def _unhealthy(cluster: Cluster) -> int:
    """Return the number of unhealthy GPUs; all are on faulty nodes."""
    faulty = (v for v in cluster.fleet.views().values() if v.state is NodeState.FAULTY)
    return sum(gpu.health is Health.UNHEALTHY for view in faulty for gpu in view.gpus)
