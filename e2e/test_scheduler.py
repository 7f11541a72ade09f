"""Test gpufleet scheduler with a real kube-scheduler on a real API server."""

import base64
import contextlib
import json
import re
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.scheduler.stage import POD_GROUPS_CRD, device

from e2e.cluster import Cluster, CommandFailed
from e2e.cluster.cluster import free_ports
from e2e.cluster.rest import is_healthy
from e2e.fakenodes import FakeNodes
from e2e.system import Users
from e2e.test_webhook import configured, is_called, webhook
from gpufleet.kubernetes.annotations import ALLOCATED, CLAIM, VISIBLE
from gpufleet.scheduler.extender.certificates import SERVER_NAME

CRDS = Path(__file__).parents[1] / "charts" / "gpu-scheduler" / "crds"
DOCS = Path(__file__).parents[1] / "docs" / "scheduling.md"
TLS_SECRET = "extender-tls"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"


class Scheduler:
    """The scheduler as a separate process that tests can kill."""

    def __init__(self, cluster: Cluster, *flags: str) -> None:
        self._cluster = cluster
        self._flags = flags
        self.port, self._metrics_port = free_ports(2)
        self._process: subprocess.Popen[bytes] | None = None
        self._log = cluster.logs / "gpufleet-scheduler.log"

    def start(self) -> None:
        ports = ["--port", str(self.port), "--metrics-port", str(self._metrics_port)]
        command = [sys.executable, "-m", "gpufleet", "scheduler", *ports, "--tls-secret", TLS_SECRET]
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*command, "--kubeconfig", str(self._cluster.kubeconfig), *self._flags],
                stdout=log,
                stderr=log,
            )
        self._cluster.wait_for(
            "the leading scheduler",
            lambda: is_healthy(f"http://127.0.0.1:{self._metrics_port}/readyz"),
            timeout=60,
        )

    def certificate(self) -> dict[str, Path]:
        """Return files with the CA, the certificate and its key, as kube-scheduler's pod mounts them."""
        data = self._cluster.api.get(f"/api/v1/namespaces/default/secrets/{TLS_SECRET}")["data"]
        folder = self._cluster.directory / TLS_SECRET
        folder.mkdir(exist_ok=True)
        for name in ("ca.crt", "tls.crt", "tls.key"):
            (folder / name).write_bytes(base64.b64decode(data[name]))
        return {name: folder / name for name in ("ca.crt", "tls.crt", "tls.key")}

    def post(self, verb: str, body: Any, *, certificate: bool) -> Any:
        """Call a verb over the network, with or without the certificate."""
        files = self.certificate()
        context = ssl.create_default_context(cafile=str(files["ca.crt"]))
        context.check_hostname = False
        if certificate:
            context.load_cert_chain(files["tls.crt"], files["tls.key"])
        request = urllib.request.Request(
            f"https://127.0.0.1:{self.port}/{verb}", json.dumps(body).encode(), method="POST"
        )
        with urllib.request.urlopen(request, timeout=10, context=context) as response:
            return json.load(response)

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def stop(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.terminate()
            assert self._process.wait(30) == 0, self._log.read_text()[-3000:]


def configuration(scheduler: Scheduler) -> dict[str, Any]:
    """Return the configuration in docs/scheduling.md with the address and the certificate filled in."""
    text = re.search(r"```yaml\n(apiVersion: kubescheduler.*?)```", DOCS.read_text(), re.S)
    assert text is not None
    document: dict[str, Any] = yaml.safe_load(text[1])
    files = scheduler.certificate()
    tls = {"caFile": "ca.crt", "certFile": "tls.crt", "keyFile": "tls.key"}
    document["extenders"][0] |= {
        "urlPrefix": f"https://127.0.0.1:{scheduler.port}",
        "enableHTTPS": True,
        "tlsConfig": {"serverName": SERVER_NAME, **{key: str(files[file]) for key, file in tls.items()}},
    }
    return {key: document[key] for key in ("profiles", "extenders", "percentageOfNodesToScore")}


@contextlib.contextmanager
def running_scheduler(
    cluster: Cluster, *flags: str, pod_groups: bool = False, extender: bool = True
) -> Iterator[Scheduler]:
    """Install the CRDs and run the scheduler; with `extender`, kube-scheduler asks it."""
    crds = ["gpuclaims.gpu.scheduling", "gpunodestatuses.gpu.scheduling"]
    cluster.kubectl("apply", "-f", str(CRDS))
    if pod_groups:
        cluster.kubectl("apply", "-f", "-", stdin=json.dumps(POD_GROUPS_CRD))
        crds.append("podgroups.scheduling.x-k8s.io")
    for crd in crds:
        cluster.kubectl("wait", "--for=condition=Established", f"crd/{crd}", "--timeout=30s")
    scheduler = Scheduler(cluster, *flags)
    scheduler.start()
    try:
        with cluster.scheduling(configuration(scheduler)) if extender else contextlib.nullcontext():
            yield scheduler
    finally:
        scheduler.stop()
        cluster.kubectl("delete", "-f", str(CRDS))
        if pod_groups:
            cluster.kubectl("delete", "crd", "podgroups.scheduling.x-k8s.io")


@pytest.fixture(scope="module")
def scheduler(cluster: Cluster) -> Iterator[Scheduler]:
    with running_scheduler(cluster, pod_groups=True) as scheduler:
        yield scheduler


class Workspace(Users):
    """Acts as users and agents in one namespace, without a webhook that completes the pods."""

    @property
    def _pool(self) -> dict[str, str]:
        return {"pool": self.namespace[-6:]}

    def add_nodes(
        self,
        *names: str,
        gpus: int = 4,
        devices: list[dict[str, Any]] | None = None,
        capacity: dict[str, str] | None = None,
    ) -> None:
        self.nodes.add(*names, labels=self._pool, capacity=capacity)
        for name in names:
            body = {
                "apiVersion": "gpu.scheduling/v1",
                "kind": "GpuNodeStatus",
                "metadata": {"name": name},
                "spec": {"nodeName": name},
            }
            self.cluster.api.create("/apis/gpu.scheduling/v1/gpunodestatuses", body)
            chosen = devices or [device(at) for at in range(gpus)]
            status = {"status": {"devices": chosen, "total": len(chosen), "free": len(chosen)}}
            self.cluster.api.patch(f"/apis/gpu.scheduling/v1/gpunodestatuses/{name}/status", status)

    def remove_reports(self) -> None:
        for name in self.nodes.names:
            self.cluster.api.delete(f"/apis/gpu.scheduling/v1/gpunodestatuses/{name}")

    def pod(self, name: str, claim: str, labels: dict[str, str] | None = None, **spec: Any) -> str:
        source = {"fieldRef": {"fieldPath": f"metadata.annotations['{VISIBLE}']"}}
        env = [{"name": "CUDA_VISIBLE_DEVICES", "valueFrom": source}]
        ours = {"containers": [{"name": "c", "image": "i", "env": env}], "nodeSelector": self._pool}
        return super().pod(name, claim, labels, **{**ours, **spec})

    def leases(self) -> dict[str, str]:
        """Return the holders of the leases on this test's nodes."""
        found = self.cluster.api.get(LEASES)["items"]
        prefixes = tuple(f"gpu-{name}-" for name in self.nodes.names)
        return {
            each["metadata"]["name"]: each["spec"]["holderIdentity"]
            for each in found
            if each["metadata"]["name"].startswith(prefixes)
        }

    def check_no_gpu_is_allocated_twice(self) -> None:
        """Check that every running pod has its leases and that no GPU has two exclusive holders."""
        held: dict[str, str] = {}
        leases = self.leases()
        for pod in self.pods():
            node, _, ids = pod["metadata"].get("annotations", {}).get(ALLOCATED, "").rpartition(":")
            if not node or pod["status"].get("phase") in ("Succeeded", "Failed"):
                continue
            for gpu in ids.split(","):
                name, uid = f"gpu-{node}-{gpu}", pod["metadata"]["uid"]
                assert held.setdefault(name, uid) == uid, f"{name} is held twice"
                assert leases.get(name) == uid, f"{name} has no lease of {pod['metadata']['name']}"


@pytest.fixture
def workspace(
    scheduler: Scheduler, cluster: Cluster, fake_nodes: FakeNodes, namespace: str
) -> Iterator[Workspace]:
    workspace = Workspace(cluster, fake_nodes, namespace)
    yield workspace
    for pod in workspace.pods():
        with contextlib.suppress(Exception):
            cluster.api.delete(
                f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}", {"gracePeriodSeconds": 0}
            )
    cluster.wait_for("released leases", lambda: not workspace.leases())
    workspace.remove_reports()


def test_claims_of_each_policy_get_the_requested_gpus(workspace: Workspace) -> None:
    devices = [device(at, island=f"i{at // 2}") for at in range(4)]
    workspace.add_nodes("node-a", devices=devices)
    workspace.add_nodes(
        "node-m",
        devices=[
            device(0, migInstances=[{"id": at, "profile": "1g.10gb", "uuid": f"MIG-{at}"} for at in (0, 1)])
        ],
    )
    workspace.claim("spread", 2, policy="spread")
    workspace.pod("spread", "spread")
    assert workspace.running("spread") == ["node-a:0,2"]
    assert workspace.nodes.environment(workspace.namespace, "spread")["CUDA_VISIBLE_DEVICES"] == "GPU-0,GPU-2"
    workspace.delete("spread")
    workspace.cluster.wait_for("free GPUs", lambda: not workspace.leases())
    workspace.claim("contiguous", 2)
    workspace.pod("contiguous", "contiguous")
    assert workspace.running("contiguous") == ["node-a:0,1"]
    workspace.claim("preferred", policy="preferIds", preferIds=[3])
    workspace.pod("preferred", "preferred")
    assert workspace.running("preferred") == ["node-a:3"]
    workspace.claim("half", exclusivity="Shared", share=0.5)
    workspace.pod("half-0", "half")
    workspace.pod("half-1", "half")
    assert workspace.running("half-0", "half-1") == ["node-a:2", "node-a:2"]
    workspace.claim("slice", exclusivity="MIG", migProfile="1g.10gb")
    workspace.pod("slice", "slice")
    assert workspace.running("slice") == ["node-m:0"]
    assert workspace.nodes.environment(workspace.namespace, "slice")["CUDA_VISIBLE_DEVICES"] == "MIG-0"


def test_kubectl_shows_claims_nodes_and_leases(workspace: Workspace) -> None:
    workspace.add_nodes("node-a")
    workspace.claim("two", 2)
    workspace.pod("p", "two")
    workspace.running("p")
    kubectl, namespace = workspace.cluster.kubectl, workspace.namespace
    workspace.cluster.wait_for("status", lambda: "Bound" in kubectl("get", "gclaim", "-n", namespace))
    header, row = kubectl("get", "gclaim", "-n", namespace).splitlines()
    assert header.split() == ["NAME", "PHASE", "NODE", "GPUS", "AGE"]
    assert row.split()[:4] == ["two", "Bound", "node-a", "2"]
    assert kubectl("get", "gns").splitlines()[0].split() == ["NAME", "TOTAL", "FREE", "UNHEALTHY", "AGE"]
    assert re.search(r"contiguous takes adjacent ids", kubectl("explain", "gclaim.spec.devices.policy"))
    names = [line.split()[0] for line in kubectl("get", "leases").splitlines() if "gpu-node-" in line]
    assert names == ["gpu-node-a-0", "gpu-node-a-1"]
    status = json.loads(kubectl("get", "gpuclaim", "two", "-n", namespace, "-o", "jsonpath={.status}"))
    assert (status["allocated"], status["gpuIds"]) == ("node-a:0,1", [0, 1])
    bad = {
        "apiVersion": "gpu.scheduling/v1",
        "kind": "GpuClaim",
        "metadata": {"name": "bad"},
        "spec": {"devices": {"count": 2, "policy": "spread"}, "topology": {"mode": "Required"}},
    }
    with pytest.raises(CommandFailed, match="they exclude each other"):
        kubectl("apply", "-n", namespace, "-f", "-", stdin=json.dumps(bad))


_SAMPLES = """
apiVersion: gpu.scheduling/v1
kind: GpuClaim
metadata: {name: single-gpu}
spec:
  devices: {count: 1, exclusivity: Exclusive}
---
apiVersion: v1
kind: Pod
metadata:
  name: gpu-test
  annotations: {gpu.scheduling/claim: single-gpu}
spec:
  schedulerName: gpu-scheduler
  restartPolicy: Never
  containers:
    - name: cuda-test
      image: nvidia/cuda:12.4.1-runtime-ubuntu22.04
      command: [nvidia-smi]
      resources:
        limits: {nvidia.com/gpu: "1"}
---
apiVersion: gpu.scheduling/v1
kind: GpuClaim
metadata: {name: multi-gpu}
spec:
  devices: {count: 4, policy: contiguous, exclusivity: Exclusive}
  topology: {mode: Preferred, minBandwidthGBps: 600}
---
apiVersion: v1
kind: Pod
metadata:
  name: training-job
  annotations: {gpu.scheduling/claim: multi-gpu}
spec:
  schedulerName: gpu-scheduler
  containers:
    - name: training
      image: pytorch/pytorch:2.0.0-cuda11.7-cudnn8-runtime
      resources:
        limits: {nvidia.com/gpu: "4"}
"""
"""The sample objects of the gpu-scheduler that this API comes from: pods have a claim and device limits."""


def test_pods_with_a_claim_and_the_same_device_limits_run(workspace: Workspace) -> None:
    cluster, namespace = workspace.cluster, workspace.namespace
    workspace.add_nodes("node-a", "node-b", gpus=5)
    late = yaml.safe_load(_SAMPLES.split("---")[3])
    late["metadata"] = {"name": "late", "annotations": {CLAIM: "late"}}
    with webhook(cluster, namespace) as running, configured(cluster, namespace, running.url):
        cluster.wait_for("calls of the webhook", lambda: is_called(cluster, namespace))
        workspace.apply(late)
        cluster.kubectl("apply", "-f", "-", stdin=_SAMPLES, namespace=namespace)
        assert workspace.running("gpu-test", "training-job")
        allocated = [
            cluster.api.get(f"/api/v1/namespaces/{namespace}/pods/{name}")
            for name in ("gpu-test", "training-job")
        ]
        for pod, gpus in zip(allocated, (1, 4), strict=True):
            ids = pod["metadata"]["annotations"][ALLOCATED].partition(":")[2].split(",")
            assert len(ids) == gpus
            [container] = pod["spec"]["containers"]
            assert "nvidia.com/gpu" not in json.dumps(container["resources"])
        workspace.claim("late", 2)
        said = "the pod requested 4 GPUs from a device plugin and its claim asks for 2"
        claim = f"/apis/gpu.scheduling/v1/namespaces/{namespace}/gpuclaims/late"
        cluster.wait_for("the reason", lambda: said in cluster.api.get(claim)["status"].get("message", ""))
        cluster.wait_for("the event", lambda: said in cluster.kubectl("get", "events", namespace=namespace))
        cluster.api.delete(claim)
        workspace.claim("late", 4)
        assert workspace.running("late")


def test_200_pods_fill_50_nodes_and_no_gpu_is_allocated_twice(workspace: Workspace) -> None:
    workspace.add_nodes(*(f"n{at:02d}" for at in range(50)))
    workspace.claim("one")
    since = workspace.cluster.audit_size()
    started = time.monotonic()
    for at in range(200):
        workspace.pod(f"p{at:03d}", "one")
    workspace.cluster.wait_for(
        "200 running pods",
        lambda: sum(pod["status"].get("phase") == "Running" for pod in workspace.pods()) == 200,
        timeout=120,
    )
    print(f"200 pods in {time.monotonic() - started:.1f} s")
    workspace.check_no_gpu_is_allocated_twice()
    assert len(workspace.leases()) == 200
    created = [
        entry["objectRef"]["name"]
        for entry in workspace.cluster.audit(since)
        if entry["verb"] == "create"
        and entry["objectRef"].get("resource") == "leases"
        and entry["responseStatus"].get("code") == 201
        and entry["objectRef"].get("name", "").startswith("gpu-")
    ]
    assert len(created) == len(set(created)) == 200, "no lease was created twice"


def test_a_pending_pod_gets_a_freed_gpu_within_seconds(workspace: Workspace) -> None:
    workspace.add_nodes("node-a", gpus=1)
    workspace.claim("one")
    workspace.pod("first", "one")
    workspace.running("first")
    workspace.pod("second", "one")
    refusal = "0/1 nodes are available: 1 node(s) had no free GPU"
    workspace.cluster.wait_for(
        "refusal", lambda: refusal in workspace.cluster.kubectl("get", "events", "-n", workspace.namespace)
    )
    workspace.cluster.wait_for(
        "an unschedulable pod",
        lambda: any(
            each.get("reason") == "Unschedulable"
            for each in workspace.read("second")["status"].get("conditions", [])
        ),
    )
    workspace.delete("first")
    freed = time.monotonic()
    assert workspace.running("second", timeout=30) == ["node-a:0"]
    print(f"the pending pod ran {time.monotonic() - freed:.2f} s after the deletion")
    workspace.nodes.finish(workspace.namespace, "second")
    workspace.cluster.wait_for("the released lease", lambda: not workspace.leases())


def test_a_gang_starts_completely_or_not_at_all(workspace: Workspace) -> None:
    workspace.add_nodes("node-a", "node-b", gpus=2)
    workspace.claim("single", 2)
    workspace.pod("single", "single")
    workspace.running("single")
    group = {
        "apiVersion": "scheduling.x-k8s.io/v1alpha1",
        "kind": "PodGroup",
        "metadata": {"name": "g"},
        "spec": {"minMember": 2, "scheduleTimeoutSeconds": 30},
    }
    path = f"/apis/scheduling.x-k8s.io/v1alpha1/namespaces/{workspace.namespace}/podgroups"
    workspace.cluster.api.create(path, group)
    workspace.claim("member", 2, spec={"gangRef": "g"})
    gates = [{"name": "gpu.scheduling/gang"}]
    on_b = [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-b"]}]}]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": on_b}}
    workspace.pod("m0", "member", schedulingGates=gates, affinity={"nodeAffinity": required})
    workspace.pod("m1", "member", schedulingGates=gates)
    workspace.cluster.wait_for(
        "the verdict on the gang",
        lambda: "1 of 2 members fit" in workspace.status("member").get("message", ""),
    )
    assert [workspace.read(name)["spec"].get("nodeName") for name in ("m0", "m1")] == [None, None]
    assert len(workspace.leases()) == 2, "the member that would fit holds nothing"
    workspace.delete("single")
    assert workspace.running("m0", "m1") == ["node-b:0,1", "node-a:0,1"], (
        "each on the node that its affinity allows"
    )
    workspace.check_no_gpu_is_allocated_twice()


def test_a_pod_preempts_a_pod_of_lower_priority(workspace: Workspace) -> None:
    name = f"high-{workspace.namespace[-6:]}"
    body = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": name},
        "value": 1000,
    }
    workspace.cluster.api.create("/apis/scheduling.k8s.io/v1/priorityclasses", body)
    workspace.add_nodes("node-a", gpus=1)
    workspace.claim("one")
    workspace.pod("low", "one")
    workspace.running("low")
    workspace.pod("high", "one", priorityClassName=name)
    assert workspace.running("high") == ["node-a:0"]
    workspace.cluster.wait_for(
        "the end of the preempted pod",
        lambda: [pod["metadata"]["name"] for pod in workspace.pods()] == ["high"],
    )


def test_a_killed_scheduler_continues_after_a_restart(workspace: Workspace, scheduler: Scheduler) -> None:
    workspace.add_nodes(*(f"k{at}" for at in range(10)))
    workspace.claim("one")
    for at in range(20):
        workspace.pod(f"p{at:02d}", "one")
    workspace.cluster.wait_for("some pods", lambda: len(workspace.leases()) >= 3)
    scheduler.kill()
    for at in range(20, 40):
        workspace.pod(f"p{at:02d}", "one")
    scheduler.start()
    workspace.cluster.wait_for(
        "40 running pods",
        lambda: sum(pod["status"].get("phase") == "Running" for pod in workspace.pods()) == 40,
        timeout=120,
    )
    workspace.check_no_gpu_is_allocated_twice()
    assert len(workspace.leases()) == 40


def test_explain_says_why_a_pod_is_pending_and_what_would_help(workspace: Workspace) -> None:
    workspace.add_nodes("node-a", gpus=2)
    workspace.claim("four", 4)
    workspace.pod("p", "four")
    command = [sys.executable, "-m", "gpufleet", "explain", "pod", "p", "-n", workspace.namespace]
    done = subprocess.run(
        [*command, "--kubeconfig", str(workspace.cluster.kubeconfig)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "0/1 nodes fit: 1 has fewer than 4 GPUs" in done.stdout
    assert "ask for 2 instead of 4 (then it fits on node-a)" in done.stdout
    path = f"/apis/gpu.scheduling/v1/namespaces/{workspace.namespace}/gpuclaims/four"
    workspace.cluster.wait_for(
        "message",
        lambda: (
            "has fewer than 4 GPUs" in workspace.cluster.api.get(path).get("status", {}).get("message", "")
        ),
    )


def test_a_forged_call_over_the_network_changes_nothing(workspace: Workspace, scheduler: Scheduler) -> None:
    workspace.add_nodes("node-a", gpus=1)
    workspace.claim("one")
    workspace.pod("victim", "one")
    workspace.running("victim")
    workspace.pod("waiting", "one")
    forged = workspace.read("waiting")
    forged["spec"]["priority"] = 2_000_000_000
    filtering = {"Pod": forged, "NodeNames": ["node-a"]}
    workspace.pod("foreign", "one", schedulerName="somebody-else")
    foreign = workspace.read("foreign")["metadata"]
    binding = {"PodName": "foreign", "PodNamespace": workspace.namespace, "PodUID": foreign["uid"]}
    for verb, body in (("filter", filtering), ("bind", {**binding, "Node": "node-a"})):
        with pytest.raises((urllib.error.URLError, OSError)):
            scheduler.post(verb, body, certificate=False)
    # Even with kube-scheduler's own certificate, only what the API server says counts.
    assert scheduler.post("filter", filtering, certificate=True)["NodeNames"] == []
    refusal = scheduler.post("bind", {**binding, "Node": "node-a"}, certificate=True)["Error"]
    assert "schedulerName somebody-else" in refusal
    assert "deletionTimestamp" not in workspace.read("victim")["metadata"]
    assert "nodeName" not in workspace.read("foreign")["spec"]
    assert len(workspace.leases()) == 1
