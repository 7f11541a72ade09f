import dataclasses

from prometheus_client import CollectorRegistry
from tests.server.live.conftest import NOW, known_readings

from gpufleet.fleet.clusters import Cluster, Clusters
from gpufleet.fleet.overview import overview
from gpufleet.model.reading import Quantity, Readings
from gpufleet.server.fleet_metrics import FleetMetrics


def test_the_counts_on_metrics_are_those_of_the_overview(cluster: Cluster) -> None:
    counts = overview(cluster.fleet)
    assert [_sample(cluster, "gpufleet_nodes", s) for s in ("faulty", "idle", "partial", "busy")] == [
        counts.faulty,
        counts.idle,
        counts.partial,
        counts.busy,
    ]
    assert _sample(cluster, "gpufleet_gpus", "all") == counts.gpus
    assert _sample(cluster, "gpufleet_gpus", "allocated") == counts.allocated


def test_a_node_that_is_merely_not_ready_has_no_unhealthy_gpu(cluster: Cluster) -> None:
    assert _sample(cluster, "gpufleet_nodes", "faulty") == 2
    assert _sample(cluster, "gpufleet_gpus", "unhealthy") == 1


def test_only_allocated_gpus_with_a_reading_below_5_percent_are_idle(cluster: Cluster) -> None:
    assert _sample(cluster, "gpufleet_gpus", "idle") == 0
    cluster.fleet.put_readings(all_at(4.9))
    # four of `full`, two of `half`; its GPU 5 has no reading, and the one of `idle` is not allocated
    assert _sample(cluster, "gpufleet_gpus", "idle") == 6


def all_at(utilization: float) -> Readings:
    readings = known_readings(NOW)
    column = readings.values[Quantity.UTILIZATION]
    return dataclasses.replace(
        readings, values={**readings.values, Quantity.UTILIZATION: column * 0 + utilization}
    )


def _sample(cluster: Cluster, metric: str, state: str) -> float | None:
    registry = CollectorRegistry()
    registry.register(FleetMetrics(Clusters([cluster])))
    return registry.get_sample_value(metric, {"cluster": "prod", "state": state})


def test_namespaces_count_what_running_workloads_hold_and_waiting_ones_request(cluster: Cluster) -> None:
    registry = CollectorRegistry()
    registry.register(FleetMetrics(Clusters([cluster])))
    workloads = cluster.fleet.workloads().values()
    for state, status in (("held", "Running"), ("pending", "Pending")):
        for namespace in {each.namespace for each in workloads if each.status == status}:
            rows = [each for each in workloads if (each.namespace, each.status) == (namespace, status)]
            expected = sum(each.gpus if state == "held" else each.requested for each in rows)
            labels = {"cluster": "prod", "namespace": namespace, "state": state}
            assert registry.get_sample_value("gpufleet_namespace_gpus", labels) == expected > 0
