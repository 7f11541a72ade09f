"""The source with a real API: objects written there appear in the fleet and disappear from it."""

import asyncio
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from typing import Any

import aiohttp
import msgspec
import pytest
from tests.waiting import wait_until

from gpufleet.fleet.overview import overview
from gpufleet.fleet.state import Fleet
from gpufleet.kubernetes import Connection, KubeClient
from gpufleet.kubernetes.annotations import LAST_APPLIED, MAX_RUNTIME
from gpufleet.kubernetes.crds.generate import definitions
from gpufleet.kubernetes.leases import LeaseHolder, new_lease
from gpufleet.model.workload import Status
from gpufleet.sources.kubernetes import KubernetesSource
from gpufleet.sources.kubernetes.source import KindState
from kubelite import KubeLite

NOT_YET = KindState(0, 0.0, "not followed yet")


class Api:
    """Write objects like kubectl."""

    def __init__(self, url: str, session: aiohttp.ClientSession, token: str) -> None:
        self.url = url
        self.token = token
        self._session = session

    async def post(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        async with self._session.post(self.url + path, json=body) as answer:
            found: dict[str, Any] = await answer.json()
            assert answer.status in (200, 201), found
            return found

    async def patch(self, path: str, body: dict[str, Any]) -> None:
        headers = {"Content-Type": "application/merge-patch+json"}
        async with self._session.patch(self.url + path, json=body, headers=headers) as answer:
            assert answer.status == 200, await answer.text()

    async def delete(self, path: str) -> None:
        async with self._session.delete(self.url + path, json={"gracePeriodSeconds": 0}) as answer:
            assert answer.status == 200, await answer.text()

    async def node(self, name: str, gpus: int = 8) -> None:
        await self.post("/api/v1/nodes", {"metadata": {"name": name}})
        status = {
            "capacity": {"nvidia.com/gpu": str(gpus)},
            "allocatable": {"nvidia.com/gpu": str(gpus)},
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        await self.patch(f"/api/v1/nodes/{name}/status", {"status": status})

    async def define(self, group: str, kind: str) -> None:
        anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
        version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": anything}}
        names = {"plural": f"{kind.lower()}s", "singular": kind.lower(), "kind": kind}
        spec = {"group": group, "scope": "Namespaced", "names": names, "versions": [version]}
        made = {"metadata": {"name": f"{names['plural']}.{group}"}, "spec": spec}
        await self.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", made)

    async def pod(self, name: str, node: str, gpus: int, owner: dict[str, Any] | None = None) -> str:
        meta = {"name": name, "ownerReferences": [owner] if owner else []}
        resources = {"limits": {"nvidia.com/gpu": str(gpus)}}
        spec = {"nodeName": node, "containers": [{"name": "c", "image": "i", "resources": resources}]}
        made = await self.post("/api/v1/namespaces/default/pods", {"metadata": meta, "spec": spec})
        await self.patch(f"/api/v1/namespaces/default/pods/{name}/status", {"status": {"phase": "Running"}})
        uid: str = made["metadata"]["uid"]
        return uid


def controller(made: dict[str, Any], kind: str, api_version: str) -> dict[str, Any]:
    meta = made["metadata"]
    return {
        "apiVersion": api_version,
        "kind": kind,
        "name": meta["name"],
        "uid": meta["uid"],
        "controller": True,
    }


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    async with KubeLite() as server, aiohttp.ClientSession(headers=server.headers) as session:
        api = Api(server.url, session, server.token)
        for definition in definitions():
            await api.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
        yield api


@pytest.fixture
async def fleet(api: Api) -> AsyncIterator[Fleet]:
    fleet = Fleet("test")
    async with KubeClient(Connection(api.url, token=api.token)) as client:
        source = KubernetesSource(client, fleet)
        task = asyncio.create_task(source.run())
        await asyncio.wait_for(source.synced(), 10)
        yield fleet
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_nodes_and_pods_appear_and_disappear(api: Api, fleet: Fleet) -> None:
    await api.node("a")
    uid = await api.pod("p", "a", 4)
    await wait_until(lambda: overview(fleet).allocated == 4)
    await wait_until(lambda: fleet.workloads()[uid].status is Status.RUNNING)
    await api.delete("/api/v1/namespaces/default/pods/p")
    await wait_until(lambda: overview(fleet).allocated == 0)
    assert fleet.ended()[uid].workload.name == "p"


async def test_owners_of_any_kind_are_found_by_discovery(api: Api, fleet: Fleet) -> None:
    await api.define("kubeflow.org", "PyTorchJob")
    job = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": "bert", "labels": {"team": "nlp"}},
        "status": {"conditions": [{"type": "Running", "status": "True"}]},
    }
    made = await api.post("/apis/kubeflow.org/v1/namespaces/default/pytorchjobs", job)
    await api.node("a")
    await api.pod("bert-0", "a", 8, controller(made, "PyTorchJob", "kubeflow.org/v1"))
    uid = made["metadata"]["uid"]
    await wait_until(lambda: uid in fleet.workloads() and fleet.workloads()[uid].labels == {"team": "nlp"})
    workload = fleet.workloads()[uid]
    assert (workload.kind, workload.name, workload.status, workload.gpus) == (
        "PyTorchJob",
        "bert",
        Status.RUNNING,
        8,
    )


async def test_pods_seen_before_their_time_sliced_node_hold_slices(api: Api, fleet: Fleet) -> None:
    for name in "pqrs":
        await api.pod(name, "late", 1)
    await wait_until(lambda: len(fleet.workloads()) == 4)
    await api.node("late", 8)
    await wait_until(lambda: overview(fleet).allocated == 4)
    labels = {"nvidia.com/gpu.count": "2", "nvidia.com/gpu.replicas": "4"}
    await api.patch("/api/v1/nodes/late", {"metadata": {"labels": labels}})
    await wait_until(lambda: (overview(fleet).gpus, overview(fleet).allocated) == (2, 1))


async def test_a_pod_with_an_invalid_annotation_is_still_listed(api: Api, fleet: Fleet) -> None:
    await api.node("a")
    await api.pod("p", "a", 1)
    ids = {"gpu.scheduling/allocated": "a:" + "9" * 5_000}
    await api.patch(
        "/api/v1/namespaces/default/pods/p", {"metadata": {"annotations": ids, "labels": {"l": "seen"}}}
    )
    await wait_until(lambda: [w.labels for w in fleet.workloads().values()] == [{"l": "seen"}])
    assert overview(fleet).allocated == 1


async def test_a_pod_without_an_end_time_ended_when_that_was_observed(api: Api) -> None:
    await api.node("a")
    early, late = await api.pod("early", "a", 1), await api.pod("late", "a", 1)
    failed = {"status": {"phase": "Failed", "reason": "UnexpectedAdmissionError"}}
    await api.patch("/api/v1/namespaces/default/pods/early/status", failed)
    fleet, now = Fleet("test"), time.time() + 1000
    async with KubeClient(Connection(api.url, token=api.token)) as client:
        source = KubernetesSource(client, fleet, clock=lambda: now)
        task = asyncio.create_task(source.run())
        await asyncio.wait_for(source.synced(), 10)
        assert fleet.workloads()[early].ended == fleet.workloads()[early].started
        await api.patch("/api/v1/namespaces/default/pods/late/status", failed)
        await wait_until(lambda: fleet.workloads()[late].status is Status.FAILED)
        await api.patch("/api/v1/namespaces/default/pods/late", {"metadata": {"labels": {"l": "seen"}}})
        await wait_until(lambda: fleet.workloads()[late].labels == {"l": "seen"})
        assert fleet.workloads()[late].ended == now
        task.cancel()
        await asyncio.wait([task])


async def test_a_lease_with_a_shortened_name_belongs_to_its_node(api: Api, fleet: Fleet) -> None:
    name = ".".join(("n" * 61, "e" * 62, "t" * 62, "x" * 62))
    await api.node(name)
    uid = await api.pod("p", name, 1)
    lease = new_lease("default", name, 5, {uid: LeaseHolder(pod="p")}, "", datetime.now(UTC))
    assert name not in lease.metadata.name
    await api.post("/apis/coordination.k8s.io/v1/namespaces/default/leases", msgspec.to_builtins(lease))
    await wait_until(lambda: fleet.views()[name].holders == {5: (uid,)})


async def test_a_kind_that_is_defined_after_its_pods_is_discovered(api: Api) -> None:
    fleet = Fleet("test")
    await api.node("a")
    owner = {"apiVersion": "late.io/v1", "kind": "Late", "name": "l", "uid": "late", "controller": True}
    await api.pod("p", "a", 1, owner)
    async with KubeClient(Connection(api.url, token=api.token)) as client:
        source = KubernetesSource(client, fleet, retry_kind=0.05)
        task = asyncio.create_task(source.run())
        late = ("late.io/v1", "Late")
        await wait_until(lambda: late in source.states())
        assert "no kind Late" in source.states()[late].error
        await api.define("late.io", "Late")
        await wait_until(lambda: source.states()[late].error == "")
        task.cancel()
        await asyncio.wait([task])


async def test_kinds_with_the_same_name_in_two_groups_are_distinguished(api: Api) -> None:
    await api.define("batch.volcano.sh", "Job")
    await api.node("a")
    path = "/apis/batch.volcano.sh/v1/namespaces/default/jobs"
    job = await api.post(
        path, {"apiVersion": "batch.volcano.sh/v1", "kind": "Job", "metadata": {"name": "j"}}
    )
    await api.pod("p", "a", 1, controller(job, "Job", "batch.volcano.sh/v1"))
    owner = {"apiVersion": "nowhere.io/v1", "kind": "Job", "name": "g", "uid": "ghost", "controller": True}
    await api.pod("q", "a", 1, owner)
    async with KubeClient(Connection(api.url, token=api.token)) as client:
        source = KubernetesSource(client, Fleet("test"))
        task = asyncio.create_task(source.run())
        await wait_until(lambda: ("nowhere.io/v1", "Job") in source.states())
        await wait_until(lambda: source.states().get(("batch.volcano.sh/v1", "Job"), NOT_YET).objects == 1)
        await wait_until(lambda: source.states()["batch/v1", "Job"].lag == 0)
        states = source.states()
        assert states["batch/v1", "Job"].objects == 0
        assert states["batch/v1", "Job"].error == states["batch.volcano.sh/v1", "Job"].error == ""
        assert "no kind Job in nowhere.io/v1" in states["nowhere.io/v1", "Job"].error
        task.cancel()
        await asyncio.wait([task])


async def test_a_missing_kind_affects_nothing_else(api: Api, fleet: Fleet) -> None:
    await api.node("a")
    owner = {"apiVersion": "nowhere.io/v1", "kind": "Ghost", "name": "g", "uid": "ghost", "controller": True}
    await api.pod("p", "a", 1, owner)
    await wait_until(lambda: "ghost@default" in fleet.workloads())
    workload = fleet.workloads()["ghost@default"]
    assert (workload.kind, workload.name) == ("Ghost", "g")


async def test_a_claim_determines_the_gpus_of_its_pods_in_any_order(api: Api, fleet: Fleet) -> None:
    await api.node("a")
    meta = {"name": "p", "annotations": {"gpu.scheduling/claim": "two", "gpu.scheduling/allocated": "a:4,5"}}
    spec = {"nodeName": "a", "containers": [{"name": "c", "image": "i"}]}
    await api.post("/api/v1/namespaces/default/pods", {"metadata": meta, "spec": spec})
    marker = await api.pod("marker", "a", 1)  # the watch delivers it after the first pod
    await wait_until(lambda: marker in fleet.workloads())
    claim = {
        "apiVersion": "gpu.scheduling/v1",
        "kind": "GpuClaim",
        "metadata": {"name": "two"},
        "spec": {"devices": {"count": 2}},
    }
    await api.post("/apis/gpu.scheduling/v1/namespaces/default/gpuclaims", claim)
    await wait_until(lambda: set(fleet.views()["a"].holders) == {4, 5})


async def test_mig_instances_and_shares_outlive_their_claim_in_any_order(api: Api, fleet: Fleet) -> None:
    await api.node("a")
    pods, uids = "/api/v1/namespaces/default/pods", {}
    for name, gpus in (("mig", "0"), ("shared", "1")):
        meta = {
            "name": name,
            "annotations": {"gpu.scheduling/claim": name, "gpu.scheduling/allocated": f"a:{gpus}"},
        }
        spec = {"nodeName": "a", "containers": [{"name": "c", "image": "i"}]}
        uids[name] = (await api.post(pods, {"metadata": meta, "spec": spec}))["metadata"]["uid"]
    marker = await api.pod("marker", "a", 1)  # the watch delivers it after the others
    await wait_until(lambda: marker in fleet.workloads())
    holders = {
        "mig": LeaseHolder("default", "mig", "mig", 0, ("5", "6")),
        "shared": LeaseHolder("default", "shared", "shared", 250),
    }
    for gpu, (name, holder) in enumerate(holders.items()):
        lease = new_lease("default", "a", gpu, {uids[name]: holder}, "", datetime.now(UTC))
        body = msgspec.to_builtins(lease)
        await api.post("/apis/coordination.k8s.io/v1/namespaces/default/leases", body)
    found = fleet.ownership.pods
    await wait_until(lambda: (found[uids["shared"]].gpus, found[uids["shared"]].share) == (1, 0.25))
    instances = [{"id": at, "profile": "3g.40gb", "uuid": f"MIG-{at}"} for at in (5, 6)]
    status = {
        "metadata": {"name": "a"},
        "spec": {"nodeName": "a"},
        "apiVersion": "gpu.scheduling/v1",
        "kind": "GpuNodeStatus",
    }
    await api.post("/apis/gpu.scheduling/v1/gpunodestatuses", status)
    devices = [{"id": 0, "health": "Healthy", "migInstances": instances}, {"id": 1, "health": "Healthy"}]
    await api.patch(
        "/apis/gpu.scheduling/v1/gpunodestatuses/a/status", {"status": {"total": 2, "devices": devices}}
    )
    await wait_until(lambda: found[uids["mig"]].share == 3 / 7)
    assert (found[uids["mig"]].gpus, found[uids["mig"]].held) == (2, (0, 0))


async def test_leases_and_node_statuses_reach_the_fleet(api: Api, fleet: Fleet) -> None:
    await api.node("a")
    uid = await api.pod("p", "a", 1)
    lease = {"metadata": {"name": "gpu-a-3"}, "spec": {"holderIdentity": uid}}
    await api.post("/apis/coordination.k8s.io/v1/namespaces/default/leases", lease)
    await wait_until(lambda: fleet.views()["a"].holders == {3: (uid,)})
    status = {
        "metadata": {"name": "a"},
        "spec": {"nodeName": "a"},
        "apiVersion": "gpu.scheduling/v1",
        "kind": "GpuNodeStatus",
    }
    await api.post("/apis/gpu.scheduling/v1/gpunodestatuses", status)
    devices = [{"id": i, "health": "Unhealthy" if i == 1 else "Healthy"} for i in range(4)]
    await api.patch(
        "/apis/gpu.scheduling/v1/gpunodestatuses/a/status", {"status": {"total": 4, "devices": devices}}
    )
    await wait_until(lambda: overview(fleet).faulty == 1)
    assert fleet.views()["a"].total == 4


async def test_a_report_that_arrives_after_a_pod_with_nvfractions_says_which_gpu_it_has(
    api: Api, fleet: Fleet
) -> None:
    await api.node("a")
    await api.patch("/api/v1/nodes/a", {"metadata": {"labels": {"nvidia.com/gpu.memory": "81920"}}})
    prefix = "nvidia.com/container.c."
    notes = {f"{prefix}gpu-memory.request": "20Gi", f"{prefix}gpus.devices": "GPU-2"}
    spec = {"nodeName": "a", "containers": [{"name": "c", "image": "i"}]}
    body = {"metadata": {"name": "p", "annotations": notes}, "spec": spec}
    uid = (await api.post("/api/v1/namespaces/default/pods", body))["metadata"]["uid"]
    pods = fleet.ownership.pods
    await wait_until(lambda: uid in pods and pods[uid].share == 0.25)
    assert (pods[uid].gpus, pods[uid].held) == (1, ())
    status = {"metadata": {"name": "a"}, "spec": {"nodeName": "a"}}
    kind = {"apiVersion": "gpu.scheduling/v1", "kind": "GpuNodeStatus"}
    await api.post("/apis/gpu.scheduling/v1/gpunodestatuses", {**kind, **status})
    devices = [{"id": at, "health": "Healthy", "uuid": f"GPU-{at}"} for at in range(4)]
    await api.patch(
        "/apis/gpu.scheduling/v1/gpunodestatuses/a/status", {"status": {"total": 4, "devices": devices}}
    )
    await wait_until(lambda: pods[uid].held == (2,))


async def test_the_first_sync_waits_for_owners_of_kinds_that_pods_refer_to(api: Api) -> None:
    await api.define("train.io", "Train")
    await api.node("a")
    path, owner = "/apis/train.io/v1/namespaces/default/trains", None
    for name in ("outer", "inner"):
        meta: dict[str, Any] = {"name": name, "ownerReferences": [owner] if owner else []}
        body = {"apiVersion": "train.io/v1", "kind": "Train", "metadata": meta}
        owner = controller(await api.post(path, body), "Train", "train.io/v1")
    assert owner is not None
    await api.pod("p", "a", 1, owner)
    fleet = Fleet("test")
    async with KubeClient(Connection(api.url, token=api.token)) as client:
        source = KubernetesSource(client, fleet)
        task = asyncio.create_task(source.run())
        await asyncio.wait_for(source.synced(), 10)
        (workload,) = fleet.workloads().values()
        task.cancel()
        await asyncio.wait([task])
    assert (workload.kind, workload.name) == ("Train", "outer")


async def test_the_manifest_of_kubectl_apply_is_not_part_of_a_workload(api: Api, fleet: Fleet) -> None:
    await api.node("a")
    resources = {"limits": {"nvidia.com/gpu": "1"}}
    notes = {LAST_APPLIED: '{"env": "hunter2"}', "other": "x" * 5000, MAX_RUNTIME: "60"}
    spec = {"nodeName": "a", "containers": [{"name": "c", "image": "i", "resources": resources}]}
    await api.post(
        "/api/v1/namespaces/default/pods", {"metadata": {"name": "p", "annotations": notes}, "spec": spec}
    )
    await wait_until(lambda: len(fleet.workloads()) == 1)
    (workload,) = fleet.workloads().values()
    assert workload.annotations == {MAX_RUNTIME: "60"}


async def test_what_a_reference_contains_is_limited(api: Api, fleet: Fleet) -> None:
    await api.node("a")
    forged = {"apiVersion": "v1", "kind": "A\x00B", "name": "n" * 9000, "uid": "u/" * 9000}
    await api.pod("p", "a", 1, forged | {"controller": True})
    await wait_until(lambda: len(fleet.workloads()) == 1)
    (workload,) = fleet.workloads().values()
    assert (workload.uid, workload.kind, workload.name) == ("u_" * 32 + "@default", "A?B", "n" * 253)
