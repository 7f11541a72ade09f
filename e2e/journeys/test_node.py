"""Test nodes and admission with the rights that the chart grants: device plugins, logs, certificates."""

import json
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
from tests.agent.pod_resources import kubelet, response
from tests.shim.nvml import machine

from e2e.cluster.rest import JSON_PATCH
from e2e.system import Observations, System, Users
from e2e.system.users import pod

ON_NODE_B = {"selector": {"matchLabels": {"kubernetes.io/hostname": "node-b"}}}
HOOKS = "/apis/admissionregistration.k8s.io/v1"
KINDS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
Json = dict[str, Any]


@pytest.fixture
def device_plugin_node(system: System) -> Iterator[str]:
    """Add a node whose two GPUs are managed by a device plugin."""
    system.processes.add_machine("node-p", machine(2))
    system.nodes.add("node-p", capacity={"nvidia.com/gpu": "2"})
    try:
        system.reconcile()
        yield "node-p"
    finally:
        system.nodes.remove("node-p")
        system.reconcile()


def test_gpus_of_device_plugin_pods_are_read_from_the_kubelet(
    system: System, users: Users, device_plugin_node: str, observations: Observations
) -> None:
    def holders() -> dict[int, list[str]] | None:
        listed = system.cluster.api.get("/apis/gpu.scheduling/v1/gpunodestatuses")["items"]
        found = {each["metadata"]["name"]: each.get("status", {}).get("devices", []) for each in listed}
        devices = found.get(device_plugin_node, [])
        return {each["id"]: each.get("inUseBy", []) for each in devices} if devices else None

    system.cluster.wait_for("the GpuNodeStatus of the node", lambda: holders() == {0: [], 1: []})
    second = f"/apis/gpu.scheduling/v1/gpunodestatuses/{device_plugin_node}"
    uuid = system.cluster.api.get(second)["status"]["devices"][1]["uuid"]
    allocated = {(users.namespace, "plugged"): [uuid]}
    manifest = {
        "metadata": {"name": "plugged"},
        "spec": {
            "nodeName": device_plugin_node,
            "terminationGracePeriodSeconds": 0,
            "containers": [{"name": "main", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "1"}}}],
        },
    }
    with kubelet(system.processes.pod_resources(device_plugin_node), lambda _context: response(allocated)):
        created = users.cluster.api.create(f"/api/v1/namespaces/{users.namespace}/pods", manifest)
        uid = created["metadata"]["uid"]
        system.cluster.wait_for("its GPU in use", lambda: holders() == {0: [], 1: [uid]})
        observations.add("a pod with a GPU from a device plugin", f"inUseBy of GPU 1: {uid}")
    users.delete("plugged")
    system.cluster.wait_for("free GPUs without the kubelet", lambda: holders() == {0: [], 1: []})


def test_helm_test_passes_for_both_releases(system: System, observations: Observations) -> None:
    def local(argument: str) -> str:
        """Replace the address of a Service by its local port."""
        address = urlsplit(argument)
        if not str(address.hostname).endswith(".svc"):
            return argument
        port = system.processes.service_port(str(address.hostname), address.port or 443)
        return argument.replace(address.netloc, f"127.0.0.1:{port}")

    for release in (system.scheduler_release, system.server_release):
        [test] = release.tests()
        [container] = test["spec"]["containers"]
        program, *arguments = container["command"]
        assert program == "python"
        command = [sys.executable, *map(local, arguments)]

        def passes(command: list[str] = command) -> bool:
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
            return done.returncode == 0

        system.cluster.wait_for(f"a passing test of {release.name}", passes)
        observations.add(f"helm test {release.name}", "passed")


@pytest.fixture
def pytorch_jobs(system: System) -> Iterator[None]:
    """Install a CRD for PyTorchJob that accepts anything."""
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": anything}}
    crd = {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "pytorchjobs.kubeflow.org"},
        "spec": {
            "group": "kubeflow.org",
            "scope": "Namespaced",
            "names": {"kind": "PyTorchJob", "plural": "pytorchjobs"},
            "versions": [version],
        },
    }
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
    system.cluster.api.create(path, crd)
    system.cluster.kubectl("wait", "--for=condition=Established", "crd/pytorchjobs.kubeflow.org")
    yield
    system.cluster.api.delete(f"{path}/pytorchjobs.kubeflow.org")


@pytest.mark.usefixtures("pytorch_jobs")
def test_numbers_in_a_pod_log_reach_the_top_level_workload(
    system: System, users: Users, observations: Observations
) -> None:
    users.claim("one", spec=ON_NODE_B)
    for owner, loss in ((_deployment(users), 2.25), (_pytorch_job(users), 1.75)):
        row = _report_loss_in_log(system, users, owner, loss)
        observations.add(
            f"a line in the log of a pod below a {owner['kind']}", f"GET …/trainingPerformance: {row}"
        )
    users.cluster.kubectl("delete", "deployment,pytorchjob", "--all", namespace=users.namespace)


def _report_loss_in_log(system: System, users: Users, owner: Json, loss: float) -> Json:
    """Write a loss into the log of the owner's pod and wait for it in the API."""
    created = _pod_of(system, users, owner["kind"])
    users.running(created["metadata"]["name"])
    written_at = int(time.time() * 1000)
    _log(system, created, loss, written_at)
    path = f"/api/workloads/{owner['metadata']['uid']}/trainingPerformance"
    expected = {"metric": "loss", "value": loss, "timestamp": written_at}

    def rows() -> list[Json]:
        found: list[Json] = system.get(f"{path}?start={written_at - 60_000}&end={int(time.time() * 1000)}")
        return found

    system.cluster.wait_for("the loss in the API", lambda: expected in rows(), timeout=90)
    assert {row["timestamp"] for row in rows()} == {written_at}, "each number once, with the time of its line"
    return expected


def _deployment(users: Users) -> Json:
    template = pod("", "one", {"app": "deployment"}, restartPolicy="Always")
    del template["metadata"]["name"]
    spec = {
        "replicas": 1,
        "selector": {"matchLabels": {"app": "deployment"}},
        "template": _template(template),
    }
    body = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "trainer"}, "spec": spec}
    created: Json = users.cluster.api.create(f"/apis/apps/v1/namespaces/{users.namespace}/deployments", body)
    return {**created, "kind": "Deployment"}


def _pytorch_job(users: Users) -> Json:
    """Create a PyTorchJob that owns a Job, as some operators do."""
    body = {"apiVersion": "kubeflow.org/v1", "kind": "PyTorchJob", "metadata": {"name": "torch"}}
    top: Json = users.cluster.api.create(
        f"/apis/kubeflow.org/v1/namespaces/{users.namespace}/pytorchjobs", body
    )
    owner = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "name": "torch",
        "uid": top["metadata"]["uid"],
        "controller": True,
    }
    template = pod("", "one", {"app": "pytorchjob"})
    del template["metadata"]["name"]
    job = {
        "metadata": {"name": "torch-0", "ownerReferences": [owner]},
        "spec": {"template": _template(template)},
    }
    users.cluster.api.create(f"/apis/batch/v1/namespaces/{users.namespace}/jobs", job)
    return top


def _template(manifest: Json) -> Json:
    return {"metadata": manifest["metadata"], "spec": manifest["spec"]}


def _pod_of(system: System, users: Users, kind: str) -> Json:
    def found() -> Json | None:
        return next((p for p in users.pods() if p["metadata"]["labels"].get("app") == kind.lower()), None)

    found_pod: Json = system.cluster.wait_for(f"the pod of the {kind}", found)
    return found_pod


def _log(system: System, created: Json, loss: float, milliseconds: int) -> Path:
    """Write a line of Megatron-LM in the kubelet's log format."""
    meta = created["metadata"]
    folder = (
        system.processes.pod_logs("node-b") / f"{meta['namespace']}_{meta['name']}_{meta['uid']}" / "main"
    )
    folder.mkdir(parents=True)
    moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(milliseconds / 1000))
    line = f" iteration 7/ 1000 | elapsed time per iteration (ms): 512.0 | lm loss: {loss} |"
    path = folder / "0.log"
    path.write_text(f"{moment}.{milliseconds % 1000:03}000000Z stdout F {line}\n")
    return path


def test_the_webhook_restores_its_secret_and_the_ca_bundles(
    system: System, users: Users, observations: Observations
) -> None:
    secret = f"/api/v1/namespaces/{system.namespace}/secrets/gpu-scheduler-webhook-tls"
    name = f"{system.namespace}-gpu-scheduler-webhook"

    def bundles() -> set[str]:
        found = [system.cluster.api.get(f"{HOOKS}/{kind}/{name}") for kind in KINDS]
        return {hook["clientConfig"].get("caBundle", "") for each in found for hook in each["webhooks"]}

    def trusted() -> str:
        """Return the authority in the Secret if both configurations have it, else an empty string."""
        status, text = system.cluster.api.raw("GET", secret)
        authority = json.loads(text)["data"]["ca.crt"] if status == 200 else ""
        return authority if bundles() == {authority} else ""

    before = system.cluster.wait_for("the same authority everywhere", trusted)
    users.claim("one")
    for kind in KINDS:
        removal = [{"op": "remove", "path": "/webhooks/0/clientConfig/caBundle"}]
        system.cluster.api.patch(f"{HOOKS}/{kind}/{name}", removal, JSON_PATCH)
    assert system.cluster.wait_for("the restored caBundle", trusted) == before
    observations.add("caBundle removed from both configurations", "the webhook restored it")
    system.cluster.api.delete(secret)
    system.cluster.wait_for("a new authority", lambda: trusted() not in ("", before))
    system.cluster.wait_for("admission of pods with a claim", lambda: _admitted(system, users))
    observations.add(
        "its Secret deleted", "a new authority in the Secret and in both configurations; pods are admitted"
    )


def _admitted(system: System, users: Users) -> bool:
    path = f"/api/v1/namespaces/{users.namespace}/pods?dryRun=All"
    status, text = system.cluster.api.raw("POST", path, pod("probe", "one"))
    return status == 201 and "CUDA_VISIBLE_DEVICES" in text
