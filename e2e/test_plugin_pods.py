"""Test that claims do not get the GPUs of device-plugin pods, with a real kube-scheduler on a real API server."""

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.scheduler.stage import device

from e2e.cluster import Cluster
from e2e.fakenodes import FakeNodes
from e2e.fakenodes.pods import STARTS_AFTER
from e2e.test_scheduler import Scheduler, Workspace, running_scheduler

PLUGIN = "nvidia.com/gpu"


@pytest.fixture(scope="module")
def scheduler(cluster: Cluster) -> Iterator[Scheduler]:
    with running_scheduler(cluster) as scheduler:
        yield scheduler


class Mixed(Workspace):
    """Users with claims and users of the device plugin on the same node."""

    def plain(self, name: str, gpus: int, starts_after: float = 0) -> str:
        """Create a pod with GPUs of the device plugin; return its UID."""
        resources = {"limits": {PLUGIN: str(gpus)}}
        body: dict[str, Any] = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "annotations": {STARTS_AFTER: str(starts_after)}},
            "spec": {
                "schedulerName": "gpu-scheduler",
                "nodeSelector": self._pool,
                "containers": [{"name": "c", "image": "i", "resources": resources}],
            },
        }
        made = self.cluster.api.create(f"/api/v1/namespaces/{self.namespace}/pods", body)
        return str(made["metadata"]["uid"])

    def bound(self, name: str) -> None:
        self.cluster.wait_for("a bound pod", lambda: self.read(name)["spec"].get("nodeName"))

    def name_gpus(self, node: str, uid: str, *gpus: int) -> None:
        """Report the GPUs of a pod, as the agent does when the kubelet has told it."""
        devices = [device(at, **({"inUseBy": [uid]} if at in gpus else {})) for at in range(8)]
        status = {"status": {"devices": devices, "total": 8, "free": 8 - len(gpus)}}
        self.cluster.api.patch(f"/apis/gpu.scheduling/v1/gpunodestatuses/{node}/status", status)

    def waits(self, claim: str, why: str) -> None:
        self.cluster.wait_for("the reason", lambda: why in json.dumps(self.status(claim)) or None, timeout=30)


@pytest.fixture
def mixed(scheduler: Scheduler, cluster: Cluster, fake_nodes: FakeNodes, namespace: str) -> Iterator[Mixed]:
    mixed = Mixed(cluster, fake_nodes, namespace)
    mixed.add_nodes("node-a", gpus=8, capacity={PLUGIN: "8"})
    yield mixed
    mixed.clean_up()
    cluster.wait_for("released leases", lambda: not mixed.leases())
    mixed.remove_reports()


def test_a_claim_gets_the_gpus_that_a_starting_plugin_pod_does_not_have(mixed: Mixed) -> None:
    uid = mixed.plain("plain", 4, starts_after=600)  # an image pull hides the pod's GPUs
    mixed.bound("plain")
    mixed.claim("four", 4)
    mixed.pod("claimed", "four")
    mixed.waits("four", "fewer than 4 free GPUs")
    mixed.name_gpus("node-a", uid, 0, 1, 2, 3)
    assert mixed.running("claimed") == ["node-a:4,5,6,7"]


def test_a_running_plugin_pod_whose_gpus_no_agent_names_counts_by_number(mixed: Mixed) -> None:
    mixed.plain("plain", 3)
    mixed.cluster.wait_for("a running pod", lambda: mixed.read("plain")["status"].get("phase") == "Running")
    mixed.claim("two", 2)
    for at in range(3):
        mixed.pod(f"claimed-{at}", "two")
    mixed.waits("two", "fewer than 2 free GPUs")
    placed = [
        pod for pod in mixed.pods() if pod["spec"].get("nodeName") and "claimed" in str(pod["metadata"])
    ]
    assert len(mixed.leases()) == 4
    assert len(placed) == 2
    mixed.delete("plain")
    mixed.running("claimed-0", "claimed-1", "claimed-2")


def test_kube_scheduler_leaves_the_extended_resources_of_claims_to_the_extender(mixed: Mixed) -> None:
    mixed.claim("two", 2)
    resources = {"limits": {"gpu.scheduling/gpu": "2"}}
    mixed.pod("claimed", "two", containers=[{"name": "c", "image": "i", "resources": resources}])
    assert mixed.running("claimed") == ["node-a:0,1"], "although its node has no such resource"
