"""Pods that hold GPUs by ResourceClaims are counted like others."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.sources.kubernetes.test_source import Api, api
from tests.waiting import wait_until

from gpufleet.fleet.state import Fleet
from gpufleet.kubernetes import Connection, KubeClient
from gpufleet.sources.kubernetes import KubernetesSource

__all__ = ["api"]

DRA = "/apis/resource.k8s.io/v1"
PODS = "/api/v1/namespaces/default/pods"
DRIVER = "gpu.nvidia.com"


async def define(api: Api, kind: str, scope: str) -> None:
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": anything}}
    names = {"plural": f"{kind.lower()}s", "singular": kind.lower(), "kind": kind}
    spec = {"group": "resource.k8s.io", "scope": scope, "names": names, "versions": [version]}
    made = {"metadata": {"name": f"{names['plural']}.resource.k8s.io"}, "spec": spec}
    await api.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", made)


@pytest.fixture
async def fleet(api: Api) -> AsyncIterator[Fleet]:
    await define(api, "ResourceClaim", "Namespaced")
    await define(api, "ResourceSlice", "Cluster")
    fleet = Fleet("test")
    async with KubeClient(Connection(api.url, token=api.token)) as client:
        source = KubernetesSource(client, fleet)
        task = asyncio.create_task(source.run())
        await asyncio.wait_for(source.synced(), 10)
        yield fleet
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


def gpu(at: int) -> dict[str, Any]:
    attributes = {
        "uuid": {"string": f"GPU-{at}"},
        "index": {"int": at},
        "type": {"string": "gpu"},
        "productName": {"string": "NVIDIA H100 80GB HBM3"},
    }
    return {"name": f"gpu-{at}", "attributes": attributes, "capacity": {"memory": {"value": "80Gi"}}}


def instance(at: int) -> dict[str, Any]:
    """Return a MIG device of GPU 3."""
    attributes = {
        "uuid": {"string": f"MIG-{at}"},
        "parentUUID": {"string": "GPU-3"},
        "type": {"string": "mig"},
        "profile": {"string": "1g.10gb"},
    }
    return {"name": f"gpu-3-mig-{at}", "attributes": attributes}


async def publish(api: Api, node: str = "a") -> None:
    """Create a node without an agent and with a driver: four GPUs, the last with MIG devices."""
    await api.post("/api/v1/nodes", {"metadata": {"name": node}})
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    await api.patch(f"/api/v1/nodes/{node}/status", {"status": ready})
    devices = [*map(gpu, range(4)), *map(instance, range(2))]
    spec = {
        "driver": DRIVER,
        "nodeName": node,
        "pool": {"name": node, "generation": 1, "resourceSliceCount": 1},
        "devices": devices,
    }
    await api.post(f"{DRA}/resourceslices", {"metadata": {"name": f"{node}-slice"}, "spec": spec})


async def pod(api: Api, name: str, *claims: str, **status: Any) -> str:
    spec = {
        "nodeName": "a",
        "containers": [{"name": "c", "image": "i", **status.pop("container", {})}],
        "resourceClaims": [{"name": each, "resourceClaimName": each} for each in claims],
    }
    made = await api.post(PODS, {"metadata": {"name": name}, "spec": spec})
    await api.patch(f"{PODS}/{name}/status", {"status": {"phase": "Running", **status}})
    uid: str = made["metadata"]["uid"]
    return uid


async def allocate(
    api: Api, name: str, devices: list[str], pods: dict[str, str], driver: str = DRIVER, **result: Any
) -> None:
    """Create an allocated claim that is reserved for these pods, by name and UID."""
    results = [{"request": "r", "driver": driver, "pool": "a", "device": each, **result} for each in devices]
    users = [{"resource": "pods", "name": each, "uid": uid} for each, uid in pods.items()]
    status = {"allocation": {"devices": {"results": results}}, "reservedFor": users}
    claim = {"metadata": {"name": name}, "spec": {"devices": {}}, "status": status}
    await api.post(f"{DRA}/namespaces/default/resourceclaims", claim)


def held(fleet: Fleet, uid: str) -> tuple[int, float, tuple[int, ...]]:
    found = fleet.ownership.pods.get(uid)
    return (found.gpus, found.share, found.held) if found is not None else (0, 0.0, ())


async def test_the_devices_of_a_claim_count_for_its_pod_until_they_are_freed(api: Api, fleet: Fleet) -> None:
    await publish(api)
    await wait_until(lambda: "a" in fleet.views() and fleet.views()["a"].total == 4)
    view = fleet.views()["a"]
    assert [each.uuid for each in view.gpus] == ["GPU-0", "GPU-1", "GPU-2", "GPU-3"]
    assert view.gpus[0].model == "NVIDIA_H100_80GB_HBM3"
    uid = await pod(api, "train", "two")
    await allocate(api, "two", ["gpu-1", "gpu-2"], {"train": uid})
    await wait_until(lambda: held(fleet, uid) == (2, 1.0, (1, 2)))
    assert fleet.views()["a"].holders == {1: (uid,), 2: (uid,)}
    assert fleet.views()["a"].allocated == 2
    await api.delete(f"{DRA}/namespaces/default/resourceclaims/two")
    await wait_until(lambda: fleet.views()["a"].allocated == 0)


async def test_pods_that_share_a_claim_share_its_gpus(api: Api, fleet: Fleet) -> None:
    await publish(api)
    uids = {name: await pod(api, name, "shared") for name in ("p0", "p1", "p2", "p3")}
    await allocate(api, "shared", ["gpu-0"], uids)
    await wait_until(lambda: all(held(fleet, uid) == (1, 0.25, (0,)) for uid in uids.values()))
    await wait_until(lambda: fleet.views()["a"].allocated == 1)


async def test_mig_devices_and_consumed_capacity_count_as_their_share(api: Api, fleet: Fleet) -> None:
    await publish(api)
    sliced, part = await pod(api, "sliced", "mig"), await pod(api, "part", "part")
    await allocate(api, "mig", ["gpu-3-mig-0", "gpu-3-mig-1"], {"sliced": sliced})
    await allocate(api, "part", ["gpu-0"], {"part": part}, shareID="s", consumedCapacity={"memory": "20Gi"})
    await wait_until(lambda: held(fleet, sliced) == (2, 1 / 7, (3, 3)))
    await wait_until(lambda: held(fleet, part) == (1, 0.25, (0,)))


async def test_extended_resources_that_a_claim_serves_count_once(api: Api, fleet: Fleet) -> None:
    await publish(api)
    requests = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
    uid = await pod(
        api, "ext", container=requests, extendedResourceClaimStatus={"resourceClaimName": "ext-claim"}
    )
    await wait_until(lambda: held(fleet, uid) == (1, 1.0, ()))
    await allocate(api, "ext-claim", ["gpu-2"], {"ext": uid})
    await wait_until(lambda: held(fleet, uid) == (1, 1.0, (2,)))


async def test_a_claim_of_unpublished_devices_counts_by_number_and_other_drivers_do_not(
    api: Api, fleet: Fleet
) -> None:
    await publish(api)
    uid = await pod(api, "lost", "gone", "nic")
    await allocate(api, "gone", ["gpu-8", "gpu-9"], {"lost": uid})
    await allocate(api, "nic", ["nic-0"], {"lost": uid}, driver="net.example.com")
    await wait_until(lambda: held(fleet, uid) == (2, 1.0, ()))
    await wait_until(lambda: fleet.views()["a"].allocated == 2)


async def test_a_claim_that_is_not_reserved_for_the_pod_is_not_held(api: Api, fleet: Fleet) -> None:
    await publish(api)
    uid = await pod(api, "later", "free")
    await allocate(api, "free", ["gpu-0"], {})
    await allocate(api, "marker", [], {"later": uid})
    await wait_until(lambda: uid in fleet.ownership.pods)
    assert held(fleet, uid) == (0, 1.0, ())
