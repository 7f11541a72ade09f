"""Nodes and GPUs of each cluster and namespace by state on `/metrics`, for alerts that do not need an exporter.

They are counted at each scrape from the same fleet that the API reads, so that alerts and the
dashboard agree.
"""

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from gpufleet.fleet.clusters import Cluster, Clusters
from gpufleet.fleet.node_view import NodeState
from gpufleet.fleet.overview import overview
from gpufleet.model.node import Health
from gpufleet.model.workload import Status


class FleetMetrics(Collector):
    """Counts nodes and GPUs by state, for every cluster."""

    def __init__(self, clusters: Clusters) -> None:
        self._clusters = clusters

    def collect(self) -> Iterator[Metric]:
        """Yield one sample per cluster and state."""
        nodes = GaugeMetricFamily("gpufleet_nodes", "GPU nodes by state.", labels=["cluster", "state"])
        gpus = GaugeMetricFamily(
            "gpufleet_gpus",
            "GPUs: all, allocated, schedulable (healthy and not cordoned), schedulable_allocated, "
            "idle (allocated, utilization below 5%), unhealthy. They overlap.",
            labels=["cluster", "state"],
        )
        namespaces = GaugeMetricFamily(
            "gpufleet_namespace_gpus",
            "GPUs of each namespace: held by its workloads, or pending (requested by workloads that wait).",
            labels=["cluster", "namespace", "state"],
        )
        for cluster in self._clusters:
            if cluster.unsynced_reason():
                continue  # unknown is not zero
            counts = overview(cluster.fleet)
            for state in NodeState:
                nodes.add_metric([cluster.name, state.value], getattr(counts, state.value))
            gpus.add_metric([cluster.name, "all"], counts.gpus)
            gpus.add_metric([cluster.name, "schedulable"], counts.schedulable)
            if counts.allocated is not None:
                gpus.add_metric([cluster.name, "allocated"], counts.allocated)
                gpus.add_metric([cluster.name, "idle"], counts.idle_gpus)
            if counts.schedulable_allocated is not None:
                gpus.add_metric([cluster.name, "schedulable_allocated"], counts.schedulable_allocated)
            gpus.add_metric([cluster.name, "unhealthy"], _unhealthy(cluster))
            for (namespace, gpu_state), count in _by_namespace(cluster).items():
                namespaces.add_metric([cluster.name, namespace, gpu_state], count)
        yield nodes
        yield gpus
        yield namespaces


def _by_namespace(cluster: Cluster) -> Counter[tuple[str, str]]:
    """Count the GPUs that workloads hold and wait for, by namespace and state."""
    counts: Counter[tuple[str, str]] = Counter()
    for workload in cluster.fleet.workloads().values():
        if workload.status is Status.RUNNING:
            counts[workload.namespace, "held"] += workload.gpus
        elif workload.status is Status.PENDING:
            queued = workload.queued.gpus if workload.queued is not None else 0
            counts[workload.namespace, "pending"] += max(workload.requested, queued)
    return counts


def _unhealthy(cluster: Cluster) -> int:
    """Return the number of unhealthy GPUs; all are on faulty nodes."""
    faulty = (v for v in cluster.fleet.views().values() if v.state is NodeState.FAULTY)
    return sum(gpu.health is Health.UNHEALTHY for view in faulty for gpu in view.gpus)
