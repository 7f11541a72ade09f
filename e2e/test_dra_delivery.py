"""Test mode `dra` on a real node: GpuClaims are delivered by ResourceClaims that gpufleet allocates.

The plain kube-scheduler binds, kubelet and the example DRA driver prepare the devices. No extender is configured.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from e2e import test_scheduler, test_webhook
from e2e.cluster import Cluster
from e2e.fakenodes import FakeNodes
from e2e.node import Access, Node, resource_claims
from e2e.node.configuration import VENDOR_RUNTIME
from e2e.node.pods import container, pod
from e2e.node.workspace import ALL, RESTARTABLE, NodeWorkspace
from gpufleet.kubernetes.annotations import ALLOCATED, CLAIM, GANG_SIZE
from gpufleet.kubernetes.resource_claims import DEVICE_CLASS

REPORTS = "/apis/gpu.scheduling/v1/gpunodestatuses"
SLICES = f"{resource_claims.API}/resourceslices"
CLASSES = f"{resource_claims.API}/deviceclasses"
OTHER_CLASS = "gpus-of-others"
Json = dict[str, Any]


@pytest.fixture(scope="module")
def scheduler(cluster: Cluster) -> Iterator[test_scheduler.Scheduler]:
    """Run gpufleet's scheduler in mode `dra`; kube-scheduler does not know it."""
    with test_scheduler.running_scheduler(cluster, "--delivery", "dra", extender=False) as scheduler:
        yield scheduler
    cluster.api.delete(f"{CLASSES}/{DEVICE_CLASS}")


def report(
    cluster: Cluster, node: str, uuids: list[str], instances: dict[int, list[str]] | None = None
) -> None:
    """Report the GPUs of a node as its agent would, and the UUIDs of MIG instances by GPU."""
    body = {"metadata": {"name": node}, "spec": {"nodeName": node}}
    cluster.api.create(REPORTS, {"apiVersion": "gpu.scheduling/v1", "kind": "GpuNodeStatus", **body})
    devices: list[Json] = [{"id": at, "uuid": uuid, "health": "Healthy"} for at, uuid in enumerate(uuids)]
    for gpu, parts in (instances or {}).items():
        devices[gpu]["migInstances"] = [
            {"id": at, "profile": "1g.10gb", "uuid": uuid} for at, uuid in enumerate(parts)
        ]
    status = {"status": {"devices": devices, "total": len(devices), "free": len(devices)}}
    cluster.api.patch(f"{REPORTS}/{node}/status", status)


@pytest.fixture(scope="module")
def dra_node(cluster: Cluster, real_node: Node, scheduler: object) -> Iterator[Node]:
    """Run the example driver on the real node, and create the class of other users and the vendor's runtime class."""
    driver = resource_claims.start_driver(real_node)
    uuids: dict[int, str] = {}
    for each in cluster.api.get(SLICES)["items"]:
        for device in each["spec"]["devices"] if each["spec"].get("nodeName") == real_node.name else ():
            attributes = device["attributes"]
            uuids[int(device["name"].removeprefix("gpu-"))] = attributes["uuid"]["string"]
    report(cluster, real_node.name, [uuids[at] for at in sorted(uuids)])
    expression = f"device.driver == '{resource_claims.DRIVER}'"
    others = resource_claims.device_class(OTHER_CLASS)
    cluster.api.create(CLASSES, {**others, "spec": {"selectors": [{"cel": {"expression": expression}}]}})
    runtimes = "/apis/node.k8s.io/v1/runtimeclasses"
    cluster.api.create(runtimes, {"metadata": {"name": VENDOR_RUNTIME}, "handler": VENDOR_RUNTIME})
    yield real_node
    cluster.api.delete(f"{runtimes}/{VENDOR_RUNTIME}")
    cluster.api.delete(f"{CLASSES}/{OTHER_CLASS}")
    cluster.api.delete(f"{REPORTS}/{real_node.name}")
    driver.kill()


class Workspace(NodeWorkspace):
    """Acts as a user in one namespace."""

    def __init__(self, cluster: Cluster, node: Node, namespace: str) -> None:
        super().__init__(cluster, node, namespace)
        self.gpu_claims = f"/apis/gpu.scheduling/v1/namespaces/{namespace}/gpuclaims"
        self.resource_claims = f"{resource_claims.API}/namespaces/{namespace}/resourceclaims"

    def claim(self, name: str, count: int, gang: int = 0, **devices: Any) -> None:
        spec: Json = {"devices": {"count": count, **devices}, **({"gangRef": name} if gang else {})}
        meta = {"name": name, "annotations": {GANG_SIZE: str(gang)} if gang else {}}
        body = {"apiVersion": "gpu.scheduling/v1", "kind": "GpuClaim", "metadata": meta, "spec": spec}
        self.cluster.api.create(self.gpu_claims, body)

    def create(self, name: str, claim: str, main: Json | None = None, **spec: Any) -> None:
        """Create a pod with an init container that probes the GPUs."""
        manifest = pod(
            name,
            main or container(script=RESTARTABLE),
            init=[container("fetch", self.node.probe)],
            annotations={CLAIM: claim},
            runtimeClassName=VENDOR_RUNTIME,
            **spec,
        )
        self.cluster.api.create(self.pods, manifest)

    def run(self, name: str, claim: str, main: Json | None = None, **spec: Any) -> frozenset[int]:
        """Create a pod and wait until it runs; return the devices of its ResourceClaim."""
        self.create(name, claim, main, **spec)
        self.wait_running(name)
        return self.devices(name)

    def devices(self, pod: str) -> frozenset[int]:
        """Return the numbers of the devices that are allocated to a pod."""
        return frozenset(int(each["device"].removeprefix("gpu-")) for each in self.results(pod))

    def results(self, pod: str) -> list[Json]:
        """Return the devices that are allocated to a pod, as the API server stores them."""
        results: list[Json] = []
        for each in self.read(pod)["status"].get("resourceClaimStatuses", ()):
            found = self.cluster.api.get(f"{self.resource_claims}/{each['resourceClaimName']}")
            results += found.get("status", {}).get("allocation", {}).get("devices", {}).get("results", ())
        return results

    def message(self, claim: str) -> str:
        return str(self.cluster.api.get(f"{self.gpu_claims}/{claim}").get("status", {}).get("message", ""))

    def wait_message(self, claim: str, text: str) -> None:
        self.cluster.wait_for(f"message of {claim}: {text}", lambda: text in self.message(claim), timeout=60)

    def delete(self, *names: str) -> None:
        for name in names:
            self.cluster.api.delete(f"{self.pods}/{name}", {"gracePeriodSeconds": 0})

    def leases(self, pod: str) -> set[int]:
        """Return the GPUs of which the pod has leases."""
        uid = self.read(pod)["metadata"]["uid"]
        found = self.cluster.api.get(test_scheduler.LEASES)["items"]
        ours = [each for each in found if each["spec"].get("holderIdentity") == uid]
        return {int(each["metadata"]["name"].rpartition("-")[2]) for each in ours}


@pytest.fixture
def workspace(cluster: Cluster, dra_node: Node, namespace: str) -> Iterator[Workspace]:
    flags = ("--delivery", "auto", "--schedulers", "e2e-admin")
    with (
        test_webhook.webhook(cluster, namespace, *flags) as running,
        test_webhook.configured(cluster, namespace, running.url),
    ):
        probe = f"/api/v1/namespaces/{namespace}/pods?dryRun=All"
        cluster.wait_for(
            "calls of the webhook",
            lambda: "gpu-claim" in cluster.api.raw("POST", probe, test_webhook.pod("probe"))[1],
        )
        space = Workspace(cluster, dra_node, namespace)
        yield space
        space.delete(*(each["metadata"]["name"] for each in cluster.api.get(space.pods)["items"]))
        cluster.wait_for("no claims", lambda: not cluster.api.get(space.resource_claims)["items"])


def test_a_pod_opens_exactly_its_devices_also_after_restarts(
    workspace: Workspace, scheduler: test_scheduler.Scheduler
) -> None:
    workspace.claim("two", 2)
    workspace.claim("three", 3)
    mine = workspace.run("mine", "two", schedulerName="gpu-scheduler")
    greedy = workspace.run("greedy", "three", container(env={"NVIDIA_VISIBLE_DEVICES": "all"}))
    assert (len(mine), len(greedy), mine & greedy) == (2, 3, frozenset())
    assert workspace.read("mine")["spec"]["schedulerName"] == "default-scheduler"
    workspace.check("mine", mine)
    workspace.check("greedy", greedy)
    # Kubernetes gives ephemeral containers no ResourceClaim.
    assert workspace.debug("greedy") == Access(nodes=frozenset(), opens=frozenset(), denied=ALL)
    workspace.wait_message("two", "Successfully allocated")
    ids = ",".join(map(str, sorted(mine)))
    workspace.cluster.wait_for(
        "the mirror",
        lambda: (
            workspace.leases("mine") == mine
            and workspace.read("mine")["metadata"]["annotations"].get(ALLOCATED) == f"real:{ids}"
        ),
    )
    workspace.node.restart_kubelet()
    workspace.check("mine", mine)
    workspace.restart("mine")
    workspace.check("mine", mine)
    scheduler.kill()
    scheduler.start()
    neighbour = workspace.run("neighbour", "two")
    assert neighbour & (mine | greedy) == frozenset()
    workspace.check("mine", mine)
    workspace.check("neighbour", neighbour)
    uid = workspace.read("mine")["metadata"]["uid"]
    workspace.delete("mine")
    again = workspace.run("again", "two")
    assert again & (greedy | neighbour) == frozenset()
    workspace.cluster.wait_for(
        "released leases",
        lambda: uid not in json.dumps(workspace.cluster.api.get(test_scheduler.LEASES)["items"]),
    )


def test_a_device_that_kube_scheduler_gave_to_another_claim_is_never_given_out(workspace: Workspace) -> None:
    templates = f"{resource_claims.API}/namespaces/{workspace.namespace}/resourceclaimtemplates"
    workspace.cluster.api.create(templates, resource_claims.template("five", OTHER_CLASS, 5))
    uses = {"claims": [{"name": "gpus"}]}
    foreign = pod(
        "foreign",
        container(resources=uses),
        resourceClaims=[{"name": "gpus", "resourceClaimTemplateName": "five"}],
    )
    workspace.cluster.api.create(workspace.pods, foreign)
    workspace.wait_running("foreign")
    theirs = workspace.devices("foreign")
    assert len(theirs) == 5
    workspace.claim("three", 3)
    workspace.claim("one", 1)
    assert workspace.run("mine", "three") == ALL - theirs
    workspace.create("waiting", "one")
    workspace.wait_message("one", "0/1 nodes fit: 1 has no free GPU")
    assert workspace.devices("waiting") == frozenset()
    workspace.delete("foreign")
    workspace.wait_running("waiting")
    assert workspace.devices("waiting") <= theirs


def test_a_gang_gets_all_of_its_devices_or_none(workspace: Workspace) -> None:
    workspace.claim("six", 6)
    workspace.claim("member", 3, gang=2)
    first = workspace.run("first", "six")
    for name in ("m0", "m1"):
        workspace.create(name, "member")
    workspace.wait_message("member", "0 of 2 members fit")
    assert [workspace.devices(name) for name in ("m0", "m1")] == [frozenset()] * 2
    assert workspace.read("m0")["spec"]["schedulingGates"]
    workspace.delete("first")
    for name in ("m0", "m1"):
        workspace.wait_running(name)
    m0, m1 = workspace.devices("m0"), workspace.devices("m1")
    assert (len(first), len(m0), len(m1), m0 & m1) == (6, 3, 3, frozenset())


def test_an_allocation_that_kube_scheduler_can_not_follow_is_cleared(
    workspace: Workspace, fake_nodes: FakeNodes
) -> None:
    port: Json = {"ports": [{"containerPort": 39871, "hostPort": 39871}]}
    workspace.cluster.api.create(workspace.pods, pod("busy", container(**port), nodeName="real"))
    workspace.claim("eight", 8)
    workspace.create("stuck", "eight", container(**port))
    workspace.cluster.wait_for("an allocation", lambda: workspace.devices("stuck") == ALL)
    # Only one node has GPUs, and the port is taken there.
    workspace.cluster.wait_for("a cleared allocation", lambda: not workspace.devices("stuck"), timeout=60)
    workspace.wait_message("eight", "excluded by kube-scheduler")
    assert workspace.run("other", "eight") == ALL
    # Another node with GPUs appears: the pod is planned there.
    fake_nodes.add("roomy", capacity={"cpu": "100"})
    uuids = {at: f"GPU-{at}" for at in range(8)}
    workspace.cluster.api.create(SLICES, resource_claims.resource_slice("roomy", uuids))
    report(workspace.cluster, "roomy", list(uuids.values()))
    try:
        workspace.cluster.wait_for(
            "the pod on the other node",
            lambda: workspace.read("stuck")["spec"].get("nodeName") == "roomy",
            timeout=90,
        )
    finally:
        workspace.delete("stuck")
        workspace.cluster.api.delete(f"{REPORTS}/roomy")
        resource_claims.unpublish(workspace.cluster, "roomy")


def test_a_gpu_that_is_allocated_twice_is_reported_at_once(workspace: Workspace) -> None:
    workspace.claim("one", 1)
    [gpu] = workspace.run("mine", "one")
    template = resource_claims.template("intruder", OTHER_CLASS, 1)
    body = {**template, "kind": "ResourceClaim", "spec": template["spec"]["spec"]}
    workspace.cluster.api.create(workspace.resource_claims, body)
    resource_claims.allocate(
        workspace.cluster, workspace.namespace, "intruder", workspace.node.name, [f"gpu-{gpu}"]
    )
    where = ("--namespace", workspace.namespace)
    workspace.cluster.wait_for(
        "the event",
        lambda: re.search(
            rf"GpuAllocatedTwice.*GPU {gpu} of real is also allocated to ResourceClaim",
            workspace.cluster.kubectl("get", "events", *where),
        ),
        timeout=60,
    )
    workspace.cluster.api.delete(f"{workspace.resource_claims}/intruder")


def test_mig_instances_and_shares_are_allocated_as_the_api_server_and_kube_scheduler_accept_them(
    workspace: Workspace, fake_nodes: FakeNodes
) -> None:
    """A fake node has a GPU with two MIG instances, one that can be shared by capacity, and one that can not."""
    cluster, node, driver = workspace.cluster, "parts", resource_claims.DRIVER
    fake_nodes.add(node, capacity={"cpu": "100"})
    body = resource_claims.resource_slice(node, {1: "GPU-p1"}, multiple=True)
    body["spec"]["devices"] += [
        *resource_claims.resource_slice(node, {2: "GPU-p2"})["spec"]["devices"],
        *(
            {
                "name": f"gpu-0-mig-1g10gb-19-{at}",
                "attributes": {
                    "uuid": {"string": f"MIG-p{at}"},
                    "parentUUID": {"string": "GPU-p0"},
                    "profile": {"string": "1g.10gb"},
                    "type": {"string": "mig"},
                },
                "capacity": {"memory": {"value": "9984Mi"}},
            }
            for at in range(2)
        ),
    ]
    cluster.api.create(SLICES, body)
    report(cluster, node, ["GPU-p0", "GPU-p1", "GPU-p2"], {0: ["MIG-p0", "MIG-p1"]})
    workspace.claim("mig", 1, exclusivity="MIG", migProfile="1g.10gb")
    workspace.claim("half", 1, exclusivity="Shared", share=0.5)
    names = [*(f"mig-{at}" for at in range(2)), *(f"half-{at}" for at in range(4))]
    try:
        for name in names:
            workspace.create(name, name.partition("-")[0], nodeSelector={"kubernetes.io/hostname": node})
        for name in names:
            workspace.wait_running(name)
        found = {name: workspace.results(name) for name in names}
        common = {"request": "gpus", "driver": driver, "pool": node}
        instances = [each for at in range(2) for each in found[f"mig-{at}"]]
        assert sorted(instances, key=lambda each: str(each["device"])) == [
            {**common, "device": f"gpu-0-mig-1g10gb-19-{at}"} for at in range(2)
        ]
        halves = [each for at in range(4) for each in found[f"half-{at}"]]
        assert sorted(each["device"] for each in halves) == ["gpu-1", "gpu-1", "gpu-2", "gpu-2"]
        shares = {each["shareID"]: each["consumedCapacity"] for each in halves if each["device"] == "gpu-1"}
        assert list(shares.values()) == [{"memory": str(40 << 30)}] * 2
        assert [each for each in halves if each["device"] == "gpu-2"] == [{**common, "device": "gpu-2"}] * 2
    finally:
        workspace.delete(*names)
        cluster.api.delete(f"{REPORTS}/{node}")
        resource_claims.unpublish(cluster, node)
