"""The marks of the GPU map: free, held, unhealthy."""

from collections.abc import AsyncIterator

import httpx
import pytest

from gpufleet.exporters.prometheus.source import PrometheusSource
from gpufleet.fleet.clusters import Cluster, Clusters
from gpufleet.fleet.state import Fleet
from gpufleet.fleet.workloads.listing import Listing
from gpufleet.model.node import FleetGpu, FleetNode, Health, NodeDevices
from gpufleet.model.workload import FleetPod, Status
from gpufleet.runtime.settings import MetricsSettings
from gpufleet.server.app import Api, create_app
from gpufleet.server.routes.live.gpu_map import gpu_map_routes


@pytest.fixture
def fleet() -> Fleet:
    return Fleet("prod", clock=lambda: 1_800_000_000.0)


@pytest.fixture
async def http(fleet: Fleet) -> AsyncIterator[httpx.AsyncClient]:
    async with PrometheusSource(MetricsSettings(url="http://127.0.0.1:9")) as metrics:
        clusters = Clusters([Cluster("prod", fleet, Listing(fleet), metrics)])
        transport = httpx.ASGITransport(create_app(Api(routes=gpu_map_routes(clusters))))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            yield client


def holds(name: str, node: str, gpus: int, *held: int, share: float = 1.0) -> FleetPod:
    return FleetPod(
        uid=name,
        name=name,
        namespace="ml",
        node=node,
        gpus=gpus,
        held=held,
        share=share,
        phase=Status.RUNNING,
    )


async def marks(http: httpx.AsyncClient) -> dict[str, str]:
    answer = (await http.get("/api/v1/gpu/map")).json()["data"]
    found, at = {}, 0
    for node, count in zip(answer["nodes"], answer["counts"], strict=True):
        found[node] = answer["marks"][at : at + count]
        at += count
    return found


async def test_as_many_gpus_are_free_as_unallocated_also_without_known_indices(
    fleet: Fleet, http: httpx.AsyncClient
) -> None:
    for node in ("full", "idle", "named", "some", "whole"):
        fleet.put_node(FleetNode(name=node, gpu_count=4))
    fleet.put_pod(holds("a", "named", 2, 1, 3))
    fleet.put_pod(holds("b", "some", 1, 2))
    fleet.put_pod(holds("c", "some", 1))
    fleet.put_pod(holds("d", "some", 1, share=0.5))
    fleet.put_pod(holds("e", "full", 3))
    fleet.put_pod(holds("f", "full", 1))
    fleet.put_pod(holds("g", "whole", 4))
    found = await marks(http)
    assert found == {"full": "hhhh", "idle": "ffff", "named": "fhfh", "some": "pphf", "whole": "hhhh"}
    for name, view in fleet.views().items():
        assert found[name].count("f") == view.total - view.allocated


async def test_unhealthy_and_cordoned_gpus_are_never_free(fleet: Fleet, http: httpx.AsyncClient) -> None:
    gpus = (
        FleetGpu(index=0, health=Health.UNKNOWN),
        FleetGpu(index=1, cordoned=True),
        FleetGpu(index=2),
        FleetGpu(index=3),
    )
    fleet.put_node(FleetNode(name="a", gpu_count=4))
    fleet.put_devices(NodeDevices(node="a", gpus=gpus, total=4))
    assert await marks(http) == {"a": "ucff"}
    fleet.put_pod(holds("p", "a", 1))
    assert await marks(http) == {"a": "ucpf"}
    fleet.put_pod(holds("p", "a", 3))
    assert await marks(http) == {"a": "ucpp"}


async def test_a_gpu_with_processes_of_a_deleted_pod_is_draining(
    fleet: Fleet, http: httpx.AsyncClient
) -> None:
    gpus = tuple(FleetGpu(index=at, draining=True) for at in range(3))
    broken = FleetGpu(index=3, draining=True, health=Health.UNHEALTHY)
    fleet.put_node(FleetNode(name="a", gpu_count=4))
    fleet.put_devices(NodeDevices(node="a", gpus=(*gpus, broken), total=4))
    fleet.put_pod(holds("p", "a", 1, 1))
    assert await marks(http) == {"a": "dhdx"}
