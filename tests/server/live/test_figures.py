"""One moment of a fleet: every live view shows the same figures, each with its denominator."""

import httpx
from prometheus_client import CollectorRegistry
from tests.server.live.test_fleet_metrics import all_at
from tests.server.live.test_live import data

from gpufleet.fleet.clusters import Cluster, Clusters
from gpufleet.model.hours import IDLE_BELOW
from gpufleet.server.fleet_metrics import FleetMetrics


def _gpus(cluster: Cluster) -> dict[str, float]:
    registry = CollectorRegistry()
    registry.register(FleetMetrics(Clusters([cluster])))
    return {
        sample.labels["state"]: sample.value
        for metric in registry.collect()
        if metric.name == "gpufleet_gpus"
        for sample in metric.samples
    }


async def test_overview_metrics_nodes_and_map_show_the_same(
    http: httpx.AsyncClient, cluster: Cluster
) -> None:
    await _compare(http, cluster)
    cluster.fleet.put_readings(all_at(4.0))
    assert (await data(http, "/api/clusters/overview"))["idleGpus"] == 6
    await _compare(http, cluster)


async def _compare(http: httpx.AsyncClient, cluster: Cluster) -> None:
    seen, counted = await data(http, "/api/clusters/overview"), _gpus(cluster)
    nodes = (await data(http, "/api/nodes?pageSize=100"))["data"]
    gpu_map = await data(http, "/api/v1/gpu/map?quantity=utilization")
    held = [
        value
        for mark, value in zip(gpu_map["marks"], gpu_map["values"], strict=True)
        if mark == "h" and value is not None
    ]
    assert seen["totalGpus"] == counted["all"] == sum(node["gpuTotal"] for node in nodes) == 38
    assert seen["allocatedGpus"] == counted["allocated"] == sum(node["gpuAllocated"] for node in nodes)
    assert seen["schedulableGpus"] == counted["schedulable"] == 20
    assert seen["schedulableAllocatedGpus"] == counted["schedulable_allocated"] == 7
    assert seen["allocationRate"] == counted["schedulable_allocated"] / counted["schedulable"]
    assert seen["measuredGpus"] == len(held)
    assert seen["idleGpus"] == counted["idle"] == sum(value < IDLE_BELOW for value in held)
    assert seen["utilization"] == round(sum(held) / len(held) / 100, 4)
