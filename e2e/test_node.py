"""Test pods on a real kubelet and containerd: what their containers can and cannot open."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster import Cluster
from e2e.node import Node, programs
from e2e.node.configuration import VENDOR_RUNTIME
from e2e.node.pods import container, pod

ALL = frozenset(range(8))
NONE: frozenset[int] = frozenset()
Json = dict[str, Any]


@pytest.fixture(scope="module")
def vendor_class(cluster: Cluster) -> Iterator[str]:
    """Create the runtime class of the vendor's container runtime."""
    path = "/apis/node.k8s.io/v1/runtimeclasses"
    cluster.api.create(path, {"metadata": {"name": VENDOR_RUNTIME}, "handler": VENDOR_RUNTIME})
    yield VENDOR_RUNTIME
    cluster.api.delete(f"{path}/{VENDOR_RUNTIME}")


class Pods:
    """Pods of one namespace on the real node."""

    def __init__(self, cluster: Cluster, node: Node, namespace: str) -> None:
        self.cluster, self.node, self.namespace = cluster, node, namespace
        self.path = f"/api/v1/namespaces/{namespace}/pods"

    def run(self, manifest: Json) -> None:
        """Create a pod and wait until its containers run."""
        self.cluster.api.create(self.path, manifest)
        self.wait_running(manifest["metadata"]["name"])

    def wait_running(self, name: str, restarts: int = 0) -> None:
        self.cluster.wait_for(f"running pod {name}", lambda: self._runs(name, restarts))

    def get(self, name: str) -> Json:
        found: Json = self.cluster.api.get(f"{self.path}/{name}")
        return found

    def _runs(self, name: str, restarts: int) -> bool:
        statuses = self.get(name)["status"].get("containerStatuses", ())
        return bool(statuses) and all(
            "running" in each["state"] and each["restartCount"] >= restarts for each in statuses
        )


@pytest.fixture
def pods(cluster: Cluster, real_node: Node, namespace: str) -> Pods:
    return Pods(cluster, real_node, namespace)


def test_a_container_without_gpus_opens_none_of_them(pods: Pods, real_node: Node) -> None:
    pods.run(pod("plain"))
    access = real_node.access(pods.namespace, "plain")
    assert (access.nodes, access.opens, access.denied) == (NONE, NONE, ALL)


def test_the_vendors_runtime_gives_a_container_the_gpus_that_its_environment_names(
    pods: Pods, real_node: Node, vendor_class: str
) -> None:
    visible = ",".join(real_node.gpus[number].uuid for number in (2, 5))
    env = {"NVIDIA_VISIBLE_DEVICES": visible}
    manifest = pod(
        "two",
        container(env=env),
        container("void", env={"NVIDIA_VISIBLE_DEVICES": ""}),
        runtimeClassName=vendor_class,
    )
    pods.run(manifest)
    access = real_node.access(pods.namespace, "two")
    assert access.nodes == access.opens == {2, 5}
    assert access.denied == ALL - {2, 5}
    assert real_node.access(pods.namespace, "two", "void").opens == NONE


def test_nothing_is_left_of_a_node_that_ended(
    cluster: Cluster, node_programs: programs.Programs, namespace: str
) -> None:
    with Node(cluster, node_programs, "second") as node:
        second = Pods(cluster, node, namespace)
        second.run(pod("one", nodeName="second"))
        root = node.layout.root
        container_id = second.get("one")["status"]["containerStatuses"][0]["containerID"].partition("//")[2]
        assert _processes(root)
        assert _cgroups(container_id)
    assert _processes(root) == []
    assert _cgroups(container_id) == []
    assert str(root) not in Path("/proc/self/mountinfo").read_text()
    assert not root.exists()


def _cgroups(container_id: str) -> list[Path]:
    return list(Path("/sys/fs/cgroup").rglob(container_id))


def _processes(root: Path) -> list[str]:
    """Return the command lines that name a path of the node; those of containerd's shims do."""
    lines = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if str(root) in line:
            lines.append(line)
    return lines
