"""Test on a real node that a pod with a claim can open exactly its GPUs: webhook, extender, kubelet, vendor's runtime."""

from collections.abc import Iterator

import pytest

from e2e import test_scheduler, test_webhook
from e2e.cluster import Cluster
from e2e.node import Access, Node
from e2e.node.configuration import VENDOR_RUNTIME
from e2e.node.pods import container, pod
from e2e.node.workspace import ALL, RESTARTABLE, NodeWorkspace
from gpufleet.kubernetes.annotations import ALLOCATED, CLAIM

scheduler = test_scheduler.scheduler
REPORTS = "/apis/gpu.scheduling/v1/gpunodestatuses"


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


class Workspace(NodeWorkspace):
    """Acts as a user in one namespace."""

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
        self.wait_running(name)
        node, _, ids = self.read(name)["metadata"]["annotations"][ALLOCATED].partition(":")
        assert node == self.node.name
        return frozenset(map(int, ids.split(",")))


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
        workspace.check(name, gpus)
        assert workspace.debug(name) == Access(nodes=gpus, opens=gpus, denied=ALL - gpus)
    uuids = ",".join(workspace.node.gpus[number].uuid for number in sorted(greedy))
    environment = dict(line.split("=", 1) for line in workspace.exec("greedy", "env").splitlines())
    assert environment["NVIDIA_VISIBLE_DEVICES"] == environment["CUDA_VISIBLE_DEVICES"] == uuids
    assert environment["CUDA_DEVICE_ORDER"] == "PCI_BUS_ID"


def test_a_pod_keeps_its_gpus_when_the_kubelet_the_scheduler_or_its_container_restarts(
    workspace: Workspace, scheduler: test_scheduler.Scheduler
) -> None:
    workspace.claim("two", 2)
    gpus = workspace.run("mine", "two")
    workspace.node.restart_kubelet()
    workspace.check("mine", gpus)
    workspace.restart("mine")
    workspace.check("mine", gpus)
    scheduler.kill()
    scheduler.start()
    neighbour = workspace.run("neighbour", "two")
    assert neighbour & gpus == frozenset()
    workspace.check("mine", gpus)
    workspace.check("neighbour", neighbour)
