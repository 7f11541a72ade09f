"""Graphs of nodes and workloads: names that exporters use, times in the future, ended pods."""

import dataclasses

import httpx
import msgspec
import numpy as np
import pytest
from tests.server.live.conftest import NOW, known_readings

from gpufleet.exporters.embedded import EmbeddedMetrics
from gpufleet.fleet.clusters import Cluster
from gpufleet.model.node import FleetGpu, FleetNode, NodeDevices
from gpufleet.model.periods import AllocationPeriod
from gpufleet.model.reading import GpuIdentity, GpuRef, GpuUser, Quantity, Readings
from gpufleet.model.workload import FleetPod, Status
from gpufleet.store import Store

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


async def lines(http: httpx.AsyncClient, uid: str) -> dict[str, int]:
    """Return the number of points of each line in the utilization graph of a workload."""
    span = {"start": int(NOW - 4000), "end": int(NOW), "step": 60}
    answer = await http.get(f"/api/workloads/{uid}/metrics", params=span)
    assert answer.status_code == 200, answer.text
    graph = answer.json()["data"]["GPU Utilization"]
    return {line["name"]: len(line["points"]) for line in graph["series"]}


def ended_period(pod: str, held: tuple[int, ...]) -> AllocationPeriod:
    return AllocationPeriod(
        pod_uid=pod,
        pod=pod,
        namespace="ml",
        node="half",
        workload_uid="w",
        workload_kind="SlurmJob",
        workload_name="w",
        source="slurm",
        gpus=len(held),
        share=1.0,
        model="NVIDIA_H200",
        held=held,
        labels={},
        annotations={},
        start=NOW - 1300,
        end=NOW - 500,
    )


async def test_an_ended_pod_whose_gpus_its_source_no_longer_names_has_the_graphs_of_its_recorded_gpus(
    http: httpx.AsyncClient, cluster: Cluster, store: Store
) -> None:
    pod = FleetPod(
        uid="slurm-7-0",
        name="7-half",
        node="half",
        source="slurm",
        gpus=2,
        phase=Status.COMPLETED,
        bound=NOW - 1300,
        ended=NOW - 500,
    )
    cluster.fleet.put_pod(pod)
    assert await lines(http, "slurm-7-0") == {}, "2 of 8 GPUs: not known which"
    await store.accounted.open("prod", NOW - 9000)
    await store.allocation_periods.save("prod", [ended_period("slurm-7-0", (0, 1))])
    found = await lines(http, "slurm-7-0")
    assert found.keys() == {"GPU-0", "GPU-1"}
    assert min(found.values()) > 5
    cluster.fleet.drop_pod("slurm-7-0")
    assert await lines(http, "slurm-7-0") == found, "the same once it is archived"


async def test_a_device_plugin_pod_keeps_its_graphs_after_its_end(
    http: httpx.AsyncClient, cluster: Cluster
) -> None:
    pod = FleetPod(uid="plain", name="plain", node="half", gpus=1, phase=Status.RUNNING, bound=NOW - 1200)
    cluster.fleet.put_pod(pod)
    users = {4: (GpuUser(namespace=pod.namespace, pod="plain", pod_uid="plain"),)}
    cluster.fleet.put_readings(dataclasses.replace(known_readings(NOW - 1), holders=users))
    cluster.fleet.start_accounting()
    assert (await lines(http, "plain")).keys() == {"GPU-0"}
    cluster.fleet.put_pod(msgspec.structs.replace(pod, phase=Status.COMPLETED, ended=NOW - 60))
    cluster.fleet.put_readings(known_readings(NOW - 1))
    assert (await lines(http, "plain")).keys() == {"GPU-0"}


async def test_an_ended_pod_that_filled_its_node_had_all_of_its_gpus(
    http: httpx.AsyncClient, cluster: Cluster
) -> None:
    cluster.fleet.put_pod(
        FleetPod(
            uid="all",
            name="all",
            node="full",
            gpus=4,
            phase=Status.COMPLETED,
            bound=NOW - 1300,
            ended=NOW - 500,
        )
    )
    assert (await lines(http, "all")).keys() == {"GPU-0", "GPU-1", "GPU-2", "GPU-3"}


async def test_objects_that_the_hierarchy_lists_have_detail_hierarchy_and_graphs(
    http: httpx.AsyncClient, cluster: Cluster
) -> None:
    async def check(uid: str, kind: str, pods: list[str]) -> None:
        detail = (await http.get(f"/api/workloads/{uid}")).json()["data"]
        assert (detail["uid"], detail["kind"]) == (uid, kind)
        assert [pod["podName"] for pod in detail["pods"]] == pods
        assert (await http.get(f"/api/workloads/{uid}/hierarchy")).json()["data"]["uid"] == uid
        assert (await lines(http, uid)).keys() == {"GPU-5"}

    await check("rs", "ReplicaSet", ["chat-a"])
    await check("uid-chat-a", "Pod", ["chat-a"])
    listed = (await http.get("/api/workloads")).json()["data"]["data"]
    assert {row["uid"] for row in listed} & {"rs", "uid-chat-a"} == set(), "not in the list"
    cluster.fleet.drop_pod("uid-chat-a")
    cluster.fleet.drop_owner("rs")
    cluster.fleet.drop_owner("dep")
    assert "dep" in cluster.fleet.ended()
    await check("rs", "ReplicaSet", ["chat-a"])
    await check("uid-chat-a", "Pod", ["chat-a"])
    assert (await http.get("/api/workloads/nothing")).status_code == 404


@pytest.mark.parametrize("path", ["hierarchy", "metrics", "trainingPerformance"])
async def test_an_empty_uid_is_refused(http: httpx.AsyncClient, path: str) -> None:
    answer = await http.get(f"http://127.0.0.1/api/workloads//{path}")
    assert (answer.status_code, answer.json()["message"]) == (400, "workloadUid is required")


async def test_a_step_that_is_too_short_is_refused_with_one_that_works(http: httpx.AsyncClient) -> None:
    span = {"start": int(NOW - 10_999), "end": int(NOW + 1), "step": 1}
    answer = await http.get("/api/nodes/half/metrics", params=span)
    assert answer.status_code == 400
    assert "a step of at least 2 seconds" in answer.json()["message"]
