"""Graphs of nodes and workloads: names that exporters use, times in the future, ended pods."""

import httpx
import numpy as np
import pytest
from tests.server.live.conftest import NOW

from gpufleet.exporters.embedded import EmbeddedMetrics
from gpufleet.fleet.clusters import Cluster
from gpufleet.model.node import FleetGpu, FleetNode, NodeDevices
from gpufleet.model.reading import GpuIdentity, GpuRef, Quantity, Readings
from gpufleet.model.workload import FleetPod, Status

SPAN = {"start": int(NOW - 600), "end": int(NOW), "step": 60}


def readings(node: str, at: float, value: float, gpus: dict[int, str]) -> Readings:
    """Return readings of the GPUs of one node, given as UUID by the exporter's index."""
    column = np.array([value + index for index in gpus])
    return Readings(
        taken_at=at,
        gpus=tuple(GpuIdentity(GpuRef(node, index), uuid=uuid) for index, uuid in gpus.items()),
        values={Quantity.UTILIZATION: column},
        times={Quantity.UTILIZATION: np.full(len(gpus), at)},
    )


async def observe(cluster: Cluster, metrics: EmbeddedMetrics, *found: Readings) -> None:
    for each in found:
        await metrics.record(each)
        cluster.fleet.put_readings(each)


async def test_a_node_graph_has_the_readings_of_an_exporter_that_names_the_node_by_its_address(
    http: httpx.AsyncClient, cluster: Cluster, metrics: EmbeddedMetrics
) -> None:
    cluster.fleet.put_node(FleetNode(name="named", aliases=("named.lan", "10.0.0.7"), gpu_count=2))
    cluster.fleet.put_pod(
        FleetPod(uid="uid-n", name="n", node="named", gpus=1, held=(1,), phase=Status.RUNNING, bound=NOW - 60)
    )
    await observe(cluster, metrics, readings("10.0.0.7", NOW - 1, 40.0, {0: "GPU-a", 1: "GPU-b"}))
    graph = (await http.get("/api/nodes/named/metrics", params=SPAN)).json()["data"]["GPU Utilization"]
    assert [(line["name"], line["points"][-1]) for line in graph["series"]] == [
        ("GPU-0", [0.4, int(NOW) * 1000]),
        ("GPU-1", [0.41, int(NOW) * 1000]),
    ]
    workload = (await http.get("/api/workloads/uid-n/metrics", params=SPAN)).json()["data"]
    assert workload["GPU Utilization"]["series"] == [{"name": "GPU-1", "points": [[0.41, int(NOW) * 1000]]}]


async def test_a_node_that_its_exporter_renamed_has_one_series_per_gpu(
    http: httpx.AsyncClient, cluster: Cluster, metrics: EmbeddedMetrics
) -> None:
    cluster.fleet.put_node(FleetNode(name="named", aliases=("10.0.0.7",), gpu_count=1))
    await observe(
        cluster,
        metrics,
        readings("10.0.0.7", NOW - 4, 10.0, {0: "GPU-a"}),
        readings("named", NOW - 1, 20.0, {0: "GPU-a"}),
    )
    span = {"start": int(NOW - 3), "end": int(NOW), "step": 1}
    graph = (await http.get("/api/nodes/named/metrics", params=span)).json()["data"]["GPU Utilization"]
    (line,) = graph["series"]
    assert [(round(at / 1000 - NOW), value) for value, at in line["points"]] == [
        (-3, 0.1),
        (-2, 0.1),
        (-1, 0.2),
        (0, 0.2),
    ]


async def test_a_graph_belongs_to_the_gpu_with_the_uuid_not_with_the_exporters_index(
    http: httpx.AsyncClient, cluster: Cluster, metrics: EmbeddedMetrics
) -> None:
    cluster.fleet.put_node(FleetNode(name="swapped", gpu_count=2))
    gpus = (FleetGpu(index=0, uuid="GPU-a"), FleetGpu(index=1, uuid="GPU-b"))
    cluster.fleet.put_devices(NodeDevices(node="swapped", gpus=gpus, total=2))
    await observe(cluster, metrics, readings("swapped", NOW - 1, 40.0, {0: "GPU-b", 1: "GPU-a"}))
    graph = (await http.get("/api/nodes/swapped/metrics", params=SPAN)).json()["data"]["GPU Utilization"]
    assert [(line["name"], line["points"][-1][0]) for line in graph["series"]] == [
        ("GPU-0", 0.41),
        ("GPU-1", 0.4),
    ]


@pytest.mark.parametrize("path", ["/api/nodes/half/metrics", "/api/workloads/job/metrics"])
async def test_no_point_of_a_graph_is_in_the_future(http: httpx.AsyncClient, path: str) -> None:
    span = {"start": int(NOW - 600), "end": int(NOW + 3600), "step": 60}
    graphs = (await http.get(path, params=span)).json()["data"]
    times = [at for graph in graphs.values() for line in graph["series"] for _, at in line["points"]]
    assert times
    assert max(times) <= NOW * 1000
    later = {"start": int(NOW + 60), "end": int(NOW + 3600), "step": 60}
    graphs = (await http.get(path, params=later)).json()["data"]
    assert [line for graph in graphs.values() for line in graph["series"] if line["points"]] == []
