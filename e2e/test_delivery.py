"""Test on a real node that a pod with a claim can open exactly its GPUs: webhook, extender, kubelet, vendor's runtime."""

from collections.abc import Iterator
from typing import Any

import pytest

from e2e import test_scheduler, test_webhook
from e2e.cluster import Cluster
from e2e.node import Access, Node
from e2e.node.configuration import VENDOR_RUNTIME
from e2e.node.pods import container, pod
from gpufleet.kubernetes.annotations import ALLOCATED, CLAIM

scheduler = test_scheduler.scheduler
REPORTS = "/apis/gpu.scheduling/v1/gpunodestatuses"
ALL = frozenset(range(8))
RESTARTABLE = "while [ ! -e /tmp/stop ]; do sleep 0.2; done"
Json = dict[str, Any]


@pytest.fixture(scope="module")
def reported_node(cluster: Cluster, real_node: Node, scheduler: object) -> Iterator[Node]:
    """Report the GPUs of the real node as its agent would, and create the vendor's runtime class."""
    classes = "/apis/node.k8s.io/v1/runtimeclasses"
    cluster.api.create(classes, {"metadata": {"name": VENDOR_RUNTIME}, "handler": VENDOR_RUNTIME})
    report = {"metadata": {"name": real_node.name}, "spec": {"nodeName": real_node.name}}
    cluster.api.create(REPORTS, {"apiVersion": "gpu.scheduling/v1", "kind": "GpuNodeStatus", **report})
    devices = [{"id": gpu.index, "uuid": gpu.uuid, "health": "Healthy"} for gpu in real_node.gpus]
    status = {"status": {"devices": devices, "total": len(devices), "free": len(devices)}}
    cluster.api.patch(f"{REPORTS}/{real_node.name}/status", status)
    yield real_node
    cluster.api.delete(f"{REPORTS}/{real_node.name}")
    cluster.api.delete(f"{classes}/{VENDOR_RUNTIME}")


class Workspace:
    """Acts as a user in one namespace."""

    def __init__(self, cluster: Cluster, node: Node, namespace: str) -> None:
        self.cluster, self.node, self.namespace = cluster, node, namespace
        self.pods = f"/api/v1/namespaces/{namespace}/pods"

    def claim(self, name: str, count: int) -> None:
        body = {
            "apiVersion": "gpu.scheduling/v1",
            "kind": "GpuClaim",
            "metadata": {"name": name},
            "spec": {"devices": {"count": count}},
        }
        self.cluster.api.create(f"/apis/gpu.scheduling/v1/namespaces/{self.namespace}/gpuclaims", body)

    def run(self, name: str, claim: str, env: dict[str, str] | None = None) -> frozenset[int]:
        """Run a pod with an init container that probes the GPUs; return the GPUs that it was given."""
        manifest = pod(
            name,
            container(script=RESTARTABLE, env=env),
            init=[container("fetch", self.node.probe, env)],
            annotations={CLAIM: claim},
            schedulerName="gpu-scheduler",
        )
        self.cluster.api.create(self.pods, manifest)
        self.cluster.wait_for(f"running pod {name}", lambda: self.restarts(name) == 0)
        node, _, ids = self.read(name)["metadata"]["annotations"][ALLOCATED].partition(":")
        assert node == self.node.name
        return frozenset(map(int, ids.split(",")))

    def read(self, name: str) -> Json:
        found: Json = self.cluster.api.get(f"{self.pods}/{name}")
        return found

    def restarts(self, name: str) -> int | None:
        """Return how often the running main container was restarted, or None if it does not run."""
        for status in self.read(name)["status"].get("containerStatuses", ()):
            if "running" in status["state"]:
                return int(status["restartCount"])
        return None

    def restart(self, name: str) -> None:
        """End the main container and wait until the kubelet has started it again."""
        self.exec(name, "touch", "/tmp/stop")
        self.cluster.wait_for(f"restarted container of {name}", lambda: self.restarts(name) == 1)

    def exec(self, name: str, *command: str) -> str:
        return self.cluster.kubectl("exec", name, "--namespace", self.namespace, "--", *command)

    def debug(self, name: str) -> Access:
        """Add an ephemeral container that probes the GPUs, and return what it found."""
        ephemeral = container("debugger", f"{self.node.probe}\nexec sleep 1000", resources={})
        body = {"spec": {"ephemeralContainers": [ephemeral]}}
        path = f"{self.pods}/{name}/ephemeralcontainers"
        self.cluster.api.patch(path, body, "application/strategic-merge-patch+json")

        def probed() -> str:
            statuses = self.read(name)["status"].get("ephemeralContainerStatuses", ())
            if not any("running" in each["state"] for each in statuses):
                return ""
            lines = self.node.logs(self.namespace, name, "debugger")
            return lines if f" {max(ALL)}" in lines else ""

        return Access.parse(self.cluster.wait_for("a probe by the ephemeral container", probed))

    def init_access(self, name: str) -> Access:
        return Access.parse(self.node.logs(self.namespace, name, "fetch"))

    def access(self, name: str) -> Access:
        return self.node.access(self.namespace, name)


@pytest.fixture
def workspace(cluster: Cluster, reported_node: Node, namespace: str) -> Iterator[Workspace]:
    flags = ("--runtime-class", VENDOR_RUNTIME)
    with (
        test_webhook.webhook(cluster, namespace, *flags) as running,
        test_webhook.configured(cluster, namespace, running.url),
    ):
        cluster.wait_for("calls of the webhook", lambda: test_webhook.is_called(cluster, namespace))
        yield Workspace(cluster, reported_node, namespace)


def test_a_pod_opens_exactly_the_gpus_of_its_claim_and_none_of_its_neighbours(workspace: Workspace) -> None:
    workspace.claim("two", 2)
    workspace.claim("three", 3)
    mine = workspace.run("mine", "two")
    greedy = workspace.run("greedy", "three", {"NVIDIA_VISIBLE_DEVICES": "all", "CUDA_VISIBLE_DEVICES": "0"})
    assert (len(mine), len(greedy), mine & greedy) == (2, 3, frozenset())
    for name, gpus in (("mine", mine), ("greedy", greedy)):
        expected = Access(nodes=gpus, opens=gpus, denied=ALL - gpus)
        assert workspace.access(name) == expected
        assert workspace.init_access(name) == expected
        assert workspace.debug(name) == expected
    uuids = ",".join(workspace.node.gpus[number].uuid for number in sorted(greedy))
    environment = dict(line.split("=", 1) for line in workspace.exec("greedy", "env").splitlines())
    assert environment["NVIDIA_VISIBLE_DEVICES"] == environment["CUDA_VISIBLE_DEVICES"] == uuids
    assert environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_a_pod_keeps_its_gpus_when_the_kubelet_the_scheduler_or_its_container_restarts(
    workspace: Workspace, scheduler: test_scheduler.Scheduler
) -> None:
    workspace.claim("two", 2)
    gpus = workspace.run("mine", "two")
    expected = Access(nodes=gpus, opens=gpus, denied=ALL - gpus)
    workspace.node.restart_kubelet()
    assert workspace.access("mine") == expected
    workspace.restart("mine")
    assert workspace.access("mine") == expected
    scheduler.kill()
    scheduler.start()
    neighbour = workspace.run("neighbour", "two")
    assert neighbour & gpus == frozenset()
    assert workspace.access("mine") == expected
    assert workspace.access("neighbour").opens == neighbour
