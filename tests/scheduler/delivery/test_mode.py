"""The scheduler chooses the mode of delivery, keeps its templates, and allocates the claims of pods."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from tests.scheduler.stage import Stage, device, open_server, open_stage
from tests.waiting import wait_until

from gpufleet.kubernetes import (
    DEVICE_CLASSES,
    PODS,
    RESOURCE_CLAIM_TEMPLATES,
    RESOURCE_CLAIMS,
    Connection,
    KubeClient,
)
from gpufleet.kubernetes.annotations import ALLOCATED, CLAIM
from gpufleet.kubernetes.client.errors import ObjectNotFound
from gpufleet.kubernetes.objects import Pod
from gpufleet.kubernetes.resource_claims import DEVICE_CLASS, POD_CLAIM, ResourceClaim
from gpufleet.scheduler.delivery import allocator
from gpufleet.scheduler.delivery.mode import choose
from kubelite import KubeLite

API = "/apis/resource.k8s.io/v1"
DRIVER = "gpu.nvidia.com"
Json = dict[str, Any]
KINDS = (
    ("deviceclasses", "DeviceClass", "Cluster"),
    ("resourceslices", "ResourceSlice", "Cluster"),
    ("resourceclaims", "ResourceClaim", "Namespaced"),
    ("resourceclaimtemplates", "ResourceClaimTemplate", "Namespaced"),
)


@pytest.mark.parametrize(
    ("setting", "served", "drivers", "before", "expected"),
    [
        ("extender", True, {DRIVER}, True, ("extender", "scheduler.delivery is extender")),
        ("dra", True, set(), False, ("dra", "scheduler.delivery is dra")),
        ("auto", True, {DRIVER, "nic.example.com"}, False, ("dra", f"{DRIVER} publishes ResourceSlices")),
        (
            "auto",
            True,
            {"nic.example.com"},
            False,
            ("extender", "no driver of GPUs publishes ResourceSlices"),
        ),
        ("auto", True, set(), True, ("dra", f"DeviceClass {DEVICE_CLASS} exists")),
        (
            "auto",
            False,
            set(),
            True,
            ("extender", "the API server has no ResourceClaims (resource.k8s.io/v1), or denies them"),
        ),
    ],
)
def test_auto_takes_resource_claims_where_a_driver_publishes_gpus(
    setting: str, served: bool, drivers: set[str], before: bool, expected: tuple[str, str]
) -> None:
    mode = choose(setting, served, drivers, before)
    assert (mode.name, mode.why) == expected


def definition(plural: str, kind: str, scope: str) -> Json:
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.resource.k8s.io"},
        "spec": {
            "group": "resource.k8s.io",
            "scope": scope,
            "names": {"plural": plural, "singular": kind.lower(), "kind": kind},
            "versions": [{**version, "subresources": {"status": {}}}],
        },
    }


@pytest.fixture
async def server() -> AsyncIterator[KubeLite]:
    """Run the embedded API with the kinds of dynamic resource allocation as custom resources."""
    async with open_server() as server:
        async with KubeClient(Connection(server.url, token=server.token)) as client:
            for kind in KINDS:
                path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
                await client.write_json("POST", path, definition(*kind))
        yield server


class DraStage:
    """Acts as a DRA driver, kube-controller-manager and kube-scheduler."""

    def __init__(self, stage: Stage) -> None:
        self.stage, self.client = stage, stage.client

    async def node(self, name: str, gpus: int = 2) -> None:
        await self.stage.node(name, devices=[device(at, uuid=f"{name}-{at}") for at in range(gpus)])
        devices = [
            {"name": f"gpu-{at}", "attributes": {"uuid": {"string": f"{name}-{at}"}}} for at in range(gpus)
        ]
        spec = {"driver": DRIVER, "nodeName": name, "pool": {"name": name}, "devices": devices}
        body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": name}}
        await self.client.write_json("POST", f"{API}/resourceslices", {**body, "spec": spec})
        await self.stage.until(lambda: name in self.stage.scheduler.ledger.resource_claims.nodes())

    async def pod(self, name: str, claim: str) -> Pod:
        """Create a pod as the webhook leaves it, and its ResourceClaim."""
        body = {
            "metadata": {"name": name, "annotations": {CLAIM: claim}},
            "spec": {
                "containers": [{"name": "c", "image": "i", "resources": {"claims": [{"name": POD_CLAIM}]}}],
                "resourceClaims": [{"name": POD_CLAIM, "resourceClaimTemplateName": "gpu-claim-1"}],
            },
        }
        await self.client.write_json("POST", "/api/v1/namespaces/default/pods", body)
        pod = await self.client.get(PODS, name, "default")
        owner = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": pod.metadata.uid}
        request = {"name": "gpus", "exactly": {"deviceClassName": DEVICE_CLASS, "count": 1}}
        made = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": name, "ownerReferences": [owner]},
            "spec": {"devices": {"requests": [request]}},
        }
        await self.client.write_json("POST", f"{API}/namespaces/default/resourceclaims", made)
        named = {"resourceClaimStatuses": [{"name": POD_CLAIM, "resourceClaimName": name}]}
        await self._patch(f"/api/v1/namespaces/default/pods/{name}/status", named)
        return pod

    async def claim(self, name: str) -> ResourceClaim:
        return await self.client.get(RESOURCE_CLAIMS, name, "default")

    async def allocated(self, name: str) -> str:
        """Wait until a claim is allocated; return its node."""

        async def node() -> str:
            allocation = (await self.claim(name)).status.allocation
            return allocation.node if allocation else ""

        await wait_until(node)
        return await node()

    async def bind(self, pod: Pod, node: str) -> None:
        """Reserve the claim and bind, as kube-scheduler does."""
        meta = pod.metadata
        user = {"resource": "pods", "name": meta.name, "uid": meta.uid}
        await self._patch(
            f"{API}/namespaces/default/resourceclaims/{meta.name}/status", {"reservedFor": [user]}
        )
        await self.client.bind("default", meta.name, meta.uid, node, {})

    async def report_unschedulable(self, name: str, message: str) -> None:
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
        await self._patch(f"/api/v1/namespaces/default/pods/{name}/status", {"conditions": [condition]})

    async def _patch(self, path: str, status: Json) -> None:
        await self.client.write_json("PATCH", path, {"status": status}, "application/merge-patch+json")


@pytest.fixture
async def dra(server: KubeLite) -> AsyncIterator[DraStage]:
    async with open_stage(server, delivery="auto") as stage:
        yield DraStage(stage)


async def exists(client: KubeClient, *of: Any) -> bool:
    try:
        await client.get(*of)
    except ObjectNotFound:
        return False
    return True


async def test_templates_are_kept_for_each_number_of_gpus_once_a_driver_publishes_devices(
    dra: DraStage,
) -> None:
    await dra.stage.claim("two", 2)
    assert not await exists(dra.client, DEVICE_CLASSES, DEVICE_CLASS)
    await dra.node("a")
    name = (RESOURCE_CLAIM_TEMPLATES, "gpu-claim-2", "default")
    await wait_until(lambda: exists(dra.client, *name))
    assert await exists(dra.client, DEVICE_CLASSES, DEVICE_CLASS)
    await dra.client.write_json("DELETE", "/apis/gpu.scheduling/v1/namespaces/default/gpuclaims/two", None)

    async def gone() -> bool:
        return not await exists(dra.client, *name)

    await wait_until(gone)


async def test_the_template_of_a_shared_claim_gives_its_share_to_the_resource_claims(dra: DraStage) -> None:
    await dra.stage.claim("half", 1, exclusivity="Shared", share=0.5)
    await dra.node("a")
    await wait_until(lambda: exists(dra.client, RESOURCE_CLAIM_TEMPLATES, "gpu-claim-1-share-500", "default"))
    path = f"{API}/namespaces/default/resourceclaimtemplates/gpu-claim-1-share-500"
    made = (await dra.client.read_json(path))["spec"]
    assert made["metadata"]["annotations"] == {"gpu.scheduling/share": "500"}
    assert made["spec"]["devices"]["requests"][0]["exactly"]["count"] == 1


async def test_a_pod_gets_an_allocation_then_a_node_then_its_mirror(dra: DraStage) -> None:
    await dra.node("a")
    await dra.stage.claim("one", 1)
    pod = await dra.pod("p", "one")
    assert await dra.allocated("p") == "a"
    await dra.bind(pod, "a")

    async def mirrored() -> bool:
        now = await dra.stage.read(pod)
        return now.metadata.annotations.get(ALLOCATED) == "a:0" and "gpu-a-0" in await dra.stage.leases()

    await wait_until(mirrored)

    async def bound() -> bool:
        status = (await dra.stage.read_claim("one")).status
        return (status.phase, status.allocated) == ("Bound", "a:0")

    await wait_until(bound)


async def test_a_claim_that_somebody_made_for_the_pod_of_another_gets_nothing(dra: DraStage) -> None:
    await dra.node("a")
    await dra.stage.claim("one", 1)
    pod = await dra.pod("p", "one")
    path = f"{API}/namespaces/default/resourceclaims"
    forged = await dra.client.read_json(f"{path}/p")
    forged["metadata"] = {"name": "forged", "ownerReferences": forged["metadata"]["ownerReferences"]}
    await dra.client.write_json("POST", path, {**forged, "status": {}})
    assert await dra.allocated("p") == "a"
    await dra.bind(pod, "a")
    await dra.stage.reconciled()
    assert (await dra.claim("forged")).status.allocation is None


async def test_an_allocation_is_cleared_only_after_kube_scheduler_has_seen_it_and_can_not_place_the_pod(
    dra: DraStage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(allocator, "UNUSABLE_AFTER", 0.0)
    await dra.node("a", 1)
    await dra.stage.claim("one", 1)
    await dra.pod("p", "one")
    await dra.report_unschedulable("p", "0/2 nodes are available: 1 cannot allocate all claims.")
    assert await dra.allocated("p") == "a"
    await dra.stage.scheduler.allocator.step()
    assert await dra.allocated("p") == "a"
    await dra.node("b", 1)
    await dra.report_unschedulable("p", "0/2 nodes are available: 1 Insufficient cpu.")

    async def moved() -> bool:
        return await dra.allocated("p") == "b"

    await wait_until(moved)
