"""Test the upgrade from the previous charts with running pods, and the uninstall."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.shim.nvml import State, switched

from e2e.cluster import Cluster
from e2e.fakenodes import FakeNodes
from e2e.system import Observations, System, Users

PREVIOUS = {
    name: Path(__file__).parent / "previous" / f"{name}-0.0.1.tgz" for name in ("gpu-scheduler", "gpufleet")
}
MACHINES: dict[str, State] = {"node-a": switched(8)}
TRANSIENT = {
    "bindings",
    "componentstatuses",
    "controllerrevisions.apps",
    "endpoints",
    "endpointslices.discovery.k8s.io",
    "events",
    "events.events.k8s.io",
    "apiservices.apiregistration.k8s.io",
}
"""Kinds that controllers create and delete on their own."""


@pytest.fixture
def nodes(shared_fake_nodes: FakeNodes) -> Iterator[FakeNodes]:
    shared_fake_nodes.problems.clear()
    shared_fake_nodes.add(*MACHINES)
    yield shared_fake_nodes
    shared_fake_nodes.remove(*MACHINES)
    assert shared_fake_nodes.problems == []


def inventory(cluster: Cluster) -> set[str]:
    """Return every object of the cluster as `kind/namespace/name`."""
    kinds = set(cluster.kubectl("api-resources", "--verbs=list,get", "-o", "name").split()) - TRANSIENT
    line = '{range .items[*]}{.kind}/{.metadata.namespace}/{.metadata.name}{"\\n"}{end}'
    return set(cluster.kubectl("get", ",".join(kinds), "-A", "-o", f"jsonpath={line}").split())


def test_an_upgrade_keeps_running_pods_and_an_uninstall_leaves_the_documented_objects(
    cluster: Cluster, nodes: FakeNodes, namespace: str, observations: Observations
) -> None:
    users = Users(cluster, nodes, namespace)
    before = inventory(cluster)
    with System(cluster, nodes, MACHINES, charts=PREVIOUS) as system:
        observations.add("helm install of version 0.0.1", _images(system))
        users.claim("six", 6)
        running = users.pod("running", "six")
        users.running("running")
        users.pod("pending", "six")
        cluster.wait_for("a reason", lambda: users.status("six").get("message"))
        job = users.job("done", "six", runs_for=0.1)
        secrets = _secrets(system)
        before_upgrade = {
            each.name
            for component in ("scheduler", "webhook", "server")
            for each in system.processes.of(component)
        }

        system.upgrade()

        observations.add("helm upgrade to the current charts", _images(system))
        assert not before_upgrade & {each.name for each in system.processes.of("scheduler")}, (
            "every pod is new"
        )
        pod = users.read("running")
        assert (pod["metadata"]["uid"], pod["status"]["phase"]) == (running, "Running")
        leases = system.leases()
        assert set(leases.values()) == {running}
        assert len(leases) == 6
        observations.add("the pod that ran before", f"{users.allocated('running')}, the same leases")
        assert secrets.items() <= _secrets(system).items()
        observations.add("passwords and certificates", "the same")
        users.delete("running")
        users.running("pending")
        observations.add("the pending pod", users.allocated("pending"))
        users.delete("pending")
        cluster.kubectl("wait", "--for=condition=Complete", "job/done", "--timeout=90s", namespace=namespace)
        cluster.wait_for(
            "the recorded end of the Job", lambda: system.get(f"/api/workloads/{job}")["endTime"] > 0
        )

        users.pod("stays", "six")
        users.running("stays")
        system.uninstall()
        cluster.wait_for("the end of the pods", lambda: not _pods(system), timeout=120)
        remaining = inventory(cluster) - before
        assert _ours(remaining, system.namespace) == DOCUMENTED
        assert users.read("stays")["status"]["phase"] == "Running"
        observations.add(
            "helm uninstall",
            "leaves CRDs with claims and node statuses, Secrets, leases; the pod keeps running",
        )
        users.clean_up()


DOCUMENTED = {
    "CustomResourceDefinition/gpuclaims.gpu.scheduling",
    "CustomResourceDefinition/gpunodestatuses.gpu.scheduling",
    "CustomResourceDefinition/gpuqueues.gpu.scheduling",
    "CustomResourceDefinition/gpurepairs.gpu.scheduling",
    "GpuNodeStatus/node-a",
    "Secret/gpu-scheduler-scheduler-tls",
    "Secret/gpu-scheduler-webhook-tls",
    "Lease/gpufleet-scheduler",
    "Lease/gpufleet-repair",
    "Lease/gpu-scheduler-kube-scheduler",
    *(f"Lease/gpu-node-a-{gpu}" for gpu in range(6)),
}
"""The objects in docs/install.md: CRDs with claims and node statuses, the Secrets with certificates, leases."""
IN_EVERY_NAMESPACE = {"Namespace/gpu-system", "ConfigMap/kube-root-ca.crt", "ServiceAccount/default"}


def _ours(objects: set[str], namespace: str) -> set[str]:
    """Return cluster-wide objects and those of this namespace, without what every namespace has."""
    found = {
        each.split("/")[0] + "/" + each.split("/")[2]
        for each in objects
        if each.split("/")[1] in ("", namespace)
    }
    return found - IN_EVERY_NAMESPACE


def _images(system: System) -> str:
    objects = [*system.scheduler_release.objects(), *system.server_release.objects()]
    found = {
        container["image"]
        for each in objects
        if each["kind"] in ("Deployment", "DaemonSet")
        for container in each["spec"]["template"]["spec"]["containers"]
    }
    return ", ".join(sorted(image for image in found if image.startswith("gpufleet")))


def _secrets(system: System) -> dict[str, str]:
    found = system.cluster.api.get(f"/api/v1/namespaces/{system.namespace}/secrets")["items"]
    return {
        f"{each['metadata']['name']} {key}": value
        for each in found
        if each["type"] != "helm.sh/release.v1"
        for key, value in each["data"].items()
    }


def _pods(system: System) -> list[str]:
    found = system.cluster.api.get(f"/api/v1/namespaces/{system.namespace}/pods")["items"]
    return [each["metadata"]["name"] for each in found]
