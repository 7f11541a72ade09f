"""The details of the GPU map: groups of nodes, holders, age of readings, several clusters."""

from collections.abc import AsyncIterator
from typing import Any

import httpx
import numpy as np
import pytest

from gpufleet.exporters.prometheus.source import PrometheusSource
from gpufleet.fleet.clusters import Cluster, Clusters
from gpufleet.fleet.state import Fleet
from gpufleet.fleet.workloads.listing import Listing
from gpufleet.model.node import FleetNode
from gpufleet.model.reading import GpuIdentity, GpuRef, Quantity, Readings
from gpufleet.model.workload import FleetOwner, FleetPod, OwnerRef, Status
from gpufleet.runtime.settings import MetricsSettings
from gpufleet.server.app import Api, create_app
from gpufleet.server.routes.live.gpu_map import gpu_map_routes

NOW = 1_800_000_000.0
RACK = "topology.kubernetes.io/rack"


def fleet(name: str) -> Fleet:
    made = Fleet(name, clock=lambda: NOW)
    made.put_node(FleetNode(name="a", gpu_count=2, labels={RACK: "r1"}))
    made.put_node(FleetNode(name="b", gpu_count=2, labels={RACK: "r2"}, source="slurm"))
    job = OwnerRef("job", "Job", "bert", "batch/v1")
    made.put_owner(
        FleetOwner(uid="job", kind="Job", name="bert", namespace="ml", labels={"team": "nlp", "user": "ann"})
    )
    for pod, node, gpu in (("bert-0", "a", 1), ("bert-1", "b", 0)):
        made.put_pod(
            FleetPod(
                uid=pod,
                name=pod,
                namespace="ml",
                node=node,
                gpus=1,
                held=(gpu,),
                owner=job,
                phase=Status.RUNNING,
            )
        )
    return made


@pytest.fixture
def fleets() -> list[Fleet]:
    return [fleet("prod"), fleet("lab")]


@pytest.fixture
async def http(fleets: list[Fleet]) -> AsyncIterator[httpx.AsyncClient]:
    async with PrometheusSource(MetricsSettings(url="http://127.0.0.1:9")) as metrics:
        clusters = Clusters([Cluster(each.cluster, each, Listing(each), metrics) for each in fleets])
        transport = httpx.ASGITransport(create_app(Api(routes=gpu_map_routes(clusters))))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            yield client


async def read(http: httpx.AsyncClient, query: str) -> Any:
    answer = await http.get(f"/api/v1/gpu/map?{query}")
    assert answer.status_code == 200, answer.text
    return answer.json()["data"]


def group(answer: Any, by: str) -> list[str]:
    found = answer["groups"][by]
    return [found["values"][place] for place in found["of"]]


async def test_nodes_have_groups_and_gpus_their_holder_only_on_request(http: httpx.AsyncClient) -> None:
    plain = await read(http, "")
    assert (plain["groups"], plain["holders"], plain["holderOf"]) == ({}, [], [])
    answer = await read(http, "details=true")
    assert (group(answer, "source"), group(answer, RACK)) == (["k8s", "slurm"], ["r1", "r2"])
    assert "topology.kubernetes.io/zone" not in answer["groups"], "no node has that label"
    assert answer["holderOf"] == [-1, 0, 0, -1]
    assert answer["holders"] == [
        {"uid": "job", "kind": "Job", "name": "bert", "namespace": "ml", "team": "nlp", "user": "ann"}
    ]


async def test_a_new_holder_appears_although_the_map_is_cached(
    http: httpx.AsyncClient, fleets: list[Fleet]
) -> None:
    await read(http, "details=true")
    fleets[0].put_pod(
        FleetPod(uid="x", name="x", namespace="cv", node="a", gpus=1, held=(0,), phase=Status.RUNNING)
    )
    answer = await read(http, "details=true")
    assert answer["holders"][answer["holderOf"][0]]["team"] == "cv", "the namespace, without a label"


async def test_a_star_shows_the_nodes_of_all_clusters(http: httpx.AsyncClient) -> None:
    answer = await read(http, "cluster=*&details=true")
    assert answer["nodes"] == ["a", "b", "a", "b"]
    assert group(answer, "cluster") == ["prod", "prod", "lab", "lab"]
    assert len(answer["values"]) == len(answer["marks"]) == len(answer["holderOf"]) == 8


async def test_the_age_of_a_reading_is_from_its_sample_to_the_time_of_reading(
    http: httpx.AsyncClient, fleets: list[Fleet]
) -> None:
    gpus = tuple(GpuIdentity(GpuRef(node, index)) for node in ("a", "b") for index in (0, 1))
    times = {
        Quantity.UTILIZATION: np.array([NOW - 90, NOW - 5, np.nan, np.nan]),
        Quantity.POWER: np.array([NOW - 30, np.nan, np.nan, NOW]),
    }
    values = {quantity: np.where(np.isnan(column), np.nan, 50.0) for quantity, column in times.items()}
    fleets[0].put_readings(Readings(taken_at=NOW, gpus=gpus, values=values, times=times))
    answer = await read(http, "quantity=age")
    assert (answer["unit"], answer["values"]) == ("s", [30, 5, None, 0])
