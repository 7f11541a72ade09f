"""Test that kube-scheduler, kubelet and a DRA driver follow the claims that we allocate."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from e2e.cluster import Cluster
from e2e.fakenodes import FakeNodes
from e2e.node import Node, resource_claims
from e2e.node.pods import container, pod

Json = dict[str, Any]
CLASS = "gpufleet-e2e"


@pytest.fixture(scope="module")
def driver(cluster: Cluster, real_node: Node) -> Iterator[None]:
    """Run the example driver, and create a DeviceClass that matches none of its devices."""
    running = resource_claims.start_driver(real_node)
    path = f"{resource_claims.API}/deviceclasses"
    cluster.api.create(path, resource_claims.device_class(CLASS))
    yield
    cluster.api.delete(f"{path}/{CLASS}")
    running.kill()


class Workspace:
    """Pods with claims in one namespace."""

    def __init__(self, cluster: Cluster, node: Node, namespace: str) -> None:
        self.cluster, self.node, self.namespace = cluster, node, namespace
        self.pods = f"/api/v1/namespaces/{namespace}/pods"
        self.claims = f"{resource_claims.API}/namespaces/{namespace}"

    def create(self, name: str, count: int, **resources: Json) -> str:
        """Create a pod and its template; return the claim that the cluster makes from it."""
        template = resource_claims.template(name, CLASS, count)
        self.cluster.api.create(f"{self.claims}/resourceclaimtemplates", template)
        uses = {"claims": [{"name": "gpus"}], **resources}
        manifest = pod(
            name,
            container(resources=uses),
            init=[container("fetch", "env", resources=uses)],
            resourceClaims=[{"name": "gpus", "resourceClaimTemplateName": name}],
        )
        self.cluster.api.create(self.pods, manifest)
        return resource_claims.claim_of(self.cluster, self.namespace, name)

    def allocate(self, claim: str, *numbers: int) -> None:
        devices = [f"gpu-{number}" for number in numbers]
        resource_claims.allocate(self.cluster, self.namespace, claim, self.node.name, devices)

    def claim(self, name: str) -> Json:
        """Return a claim, or an empty object if it does not exist."""
        status, text = self.cluster.api.raw("GET", f"{self.claims}/resourceclaims/{name}")
        assert status in (200, 404)
        return json.loads(text) if status == 200 else {}

    def allocated(self, name: str) -> list[str]:
        """Return the devices that a claim has."""
        allocation = self.claim(name).get("status", {}).get("allocation", {})
        return [each["device"] for each in allocation.get("devices", {}).get("results", ())]

    def wait_running(self, name: str) -> Json:
        return self._wait(name, "running pod", lambda found: found["status"].get("phase") == "Running")

    def wait_unschedulable(self, name: str, reason: str) -> Json:
        return self._wait(name, "waiting pod", lambda found: reason in str(_scheduled(found).get("message")))

    def devices(self, pod: str, container: str = "main") -> set[int]:
        """Return the devices that the driver has given to a container, by its environment."""
        if container == "main":
            where = ("--namespace", self.namespace, "--container", container)
            output = self.cluster.kubectl("exec", pod, *where, "--", "env")
        else:
            output = self.node.logs(self.namespace, pod, container)
        return {int(number) for number in re.findall(r"^GPU_DEVICE_GPU_(\d+)_RESOURCE_CLAIM=", output, re.M)}

    def _wait(self, name: str, what: str, condition: Any) -> Json:
        def check() -> Json | None:
            found: Json = self.cluster.api.get(f"{self.pods}/{name}")
            return found if condition(found) else None

        result: Json = self.cluster.wait_for(f"{what} {name}", check)
        return result


def _scheduled(pod: Json) -> Json:
    conditions = pod["status"].get("conditions", ())
    return next((each for each in conditions if each["type"] == "PodScheduled"), {})


@pytest.fixture
def workspace(cluster: Cluster, real_node: Node, driver: None, namespace: str) -> Workspace:
    return Workspace(cluster, real_node, namespace)


def test_a_pod_waits_for_our_allocation_and_gets_exactly_its_devices(workspace: Workspace) -> None:
    first, second = workspace.create("first", 2), workspace.create("second", 1)
    for name in ("first", "second"):
        workspace.wait_unschedulable(name, "cannot allocate all claims")
    workspace.allocate(first, 0, 7)
    workspace.allocate(second, 3)
    bound = workspace.wait_running("first")
    workspace.wait_running("second")
    assert bound["spec"]["nodeName"] == workspace.node.name
    assert workspace.devices("first") == workspace.devices("first", "fetch") == {0, 7}
    assert workspace.devices("second") == {3}
    reserved = workspace.claim(first)["status"]["reservedFor"]
    assert [each["uid"] for each in reserved] == [bound["metadata"]["uid"]]
    workspace.node.restart_kubelet()
    assert workspace.devices("first") == {0, 7}
    workspace.cluster.api.delete(f"{workspace.pods}/first")
    workspace.cluster.wait_for("the claim to go with its pod", lambda: not workspace.claim(first))


def test_kube_scheduler_clears_an_allocation_if_only_another_node_has_the_cpu(
    workspace: Workspace, fake_nodes: FakeNodes
) -> None:
    fake_nodes.add("roomy", capacity={"cpu": "2000"})
    claim = workspace.create("large", 1, requests={"cpu": "1000"})
    workspace.wait_unschedulable("large", "cannot allocate all claims")
    workspace.allocate(claim, 5)
    workspace.cluster.wait_for("a claim without allocation", lambda: not workspace.allocated(claim))


def test_we_can_clear_an_allocation_that_no_pod_has_reserved(workspace: Workspace) -> None:
    claim = workspace.create("large", 1, requests={"cpu": "1000"})
    workspace.allocate(claim, 5)
    workspace.wait_unschedulable("large", "Insufficient cpu")
    assert workspace.allocated(claim) == ["gpu-5"]
    resource_claims.deallocate(workspace.cluster, workspace.namespace, claim)
    assert workspace.allocated(claim) == []
