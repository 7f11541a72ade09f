"""Test the webhook as a separate process, called by a real API server."""

import base64
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import pytest
from tests.charts.rendering import objects

from e2e.cluster import Cluster, RequestFailed
from e2e.fakenodes import FakeNodes
from e2e.system.release import CRDS, delete_crds
from gpufleet.kubernetes.annotations import ALLOCATED, CLAIM, GANG_GATE, REQUESTED, VISIBLE
from gpufleet.kubernetes.certificates.keyring import new_keyring
from gpufleet.webhook.configuration import configurations, policies
from gpufleet.webhook.pod_admission import KEEP_NODE

HOOKS = "/apis/admissionregistration.k8s.io/v1"
KINDS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
Json = dict[str, Any]


@pytest.fixture(scope="module")
def crds(cluster: Cluster) -> Iterator[None]:
    """Install the CRDs of the chart."""
    cluster.kubectl("apply", "-f", str(CRDS))
    cluster.kubectl("wait", "--for=condition=Established", "crd/gpuclaims.gpu.scheduling", "--timeout=30s")
    yield
    delete_crds(cluster)


class Running:
    """A running webhook."""

    def __init__(self, process: "subprocess.Popen[str]", url: str) -> None:
        self.process = process
        self.url = url


@contextmanager
def webhook(cluster: Cluster, namespace: str, *flags: str) -> Iterator[Running]:
    """Run a webhook for the pods of one namespace."""
    with webhooks(cluster, namespace, 1, *flags) as [running]:
        yield running


@contextmanager
def webhooks(cluster: Cluster, namespace: str, count: int, *flags: str) -> Iterator[list[Running]]:
    """Run several replicas of the webhook, started together."""
    command = [sys.executable, "-m", "gpufleet", "webhook", "--port", "0", "--names", "127.0.0.1"]
    own = ["--namespace", namespace, "--configurations", namespace, "--set", "webhook.check=200ms"]
    with ExitStack() as closing:
        processes = []
        for _ in range(count):
            process = subprocess.Popen(
                [*command, *own, "--kubeconfig", str(cluster.kubeconfig), *flags],
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            closing.callback(_end, process)
            processes.append(process)
        yield [_serving(process) for process in processes]


def _serving(process: "subprocess.Popen[str]") -> Running:
    assert process.stdout is not None
    line = process.stdout.readline()
    assert "serves on https://127.0.0.1:" in line
    return Running(process, line.split()[-1])


def _end(process: "subprocess.Popen[str]") -> None:
    process.terminate()
    process.wait(timeout=20)
    assert process.stdout is not None
    process.stdout.close()


@contextmanager
def configured(cluster: Cluster, namespace: str, url: str) -> Iterator[None]:
    """Register the webhook with the API server for the block."""
    selector = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    for plural, manifest in zip(
        KINDS, configurations({"url": url}, name=namespace, namespaces=selector), strict=True
    ):
        cluster.api.create(f"{HOOKS}/{plural}", manifest)
    try:
        yield
    finally:
        for plural in KINDS:
            cluster.api.delete(f"{HOOKS}/{plural}/{namespace}")


def is_called(cluster: Cluster, namespace: str) -> bool:
    """Return whether the API server calls the webhook for a pod with a claim."""
    path = f"/api/v1/namespaces/{namespace}/pods?dryRun=All"
    status, text = cluster.api.raw("POST", path, pod("probe"))
    return status == 201 and VISIBLE in text


def pod(name: str, claim: str | None = "two", **annotations: str) -> Json:
    notes = {**({CLAIM: claim} if claim else {}), **annotations}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": notes},
        "spec": {
            "schedulerName": "none",
            "initContainers": [{"name": "fetch", "image": "i"}],
            "containers": [{"name": "main", "image": "i"}],
        },
    }


def claim(cluster: Cluster, namespace: str, **spec: Any) -> None:
    body = {
        "apiVersion": "gpu.scheduling/v1",
        "kind": "GpuClaim",
        "metadata": {"name": "two"},
        "spec": {"devices": {"count": 2}, **spec},
    }
    cluster.api.create(f"/apis/gpu.scheduling/v1/namespaces/{namespace}/gpuclaims", body)


def bind(cluster: Cluster, namespace: str, name: str, node: str, ids: str) -> None:
    """Bind like the scheduler: write node and GPUs together."""
    notes = {ALLOCATED: f"{node}:{ids}", VISIBLE: ids}
    body = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name, "namespace": namespace, "annotations": notes},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }
    cluster.api.create(f"/api/v1/namespaces/{namespace}/pods/{name}/binding", body)


@pytest.mark.usefixtures("crds")
def test_a_quota_on_the_extended_resource_limits_the_gpus_of_claims(cluster: Cluster, namespace: str) -> None:
    resource = "requests.gpu.scheduling/gpu"
    quota = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "gpus"}}
    path = f"/api/v1/namespaces/{namespace}"
    cluster.api.create(f"{path}/resourcequotas", {**quota, "spec": {"hard": {resource: "3"}}})
    claim(cluster, namespace)
    flags = ("--extended-resources",)
    with webhook(cluster, namespace, *flags) as running, configured(cluster, namespace, running.url):
        cluster.wait_for("the webhook", lambda: is_called(cluster, namespace))
        made = cluster.api.create(f"{path}/pods", pod("first"))
        assert made["spec"]["containers"][0]["resources"]["requests"] == {"gpu.scheduling/gpu": "2"}
        status, text = cluster.api.raw("POST", f"{path}/pods", pod("second"))
        assert status == 403
        assert (
            f"exceeded quota: gpus, requested: {resource}=2, used: {resource}=2, limited: {resource}=3"
            in text
        )
        used = cluster.api.get(f"{path}/resourcequotas/gpus")["status"]["used"]
        assert used == {resource: "2"}


@pytest.mark.usefixtures("crds")
def test_a_pod_with_a_claim_gets_the_gpus_of_its_binding(
    cluster: Cluster, namespace: str, fake_nodes: FakeNodes
) -> None:
    fake_nodes.add("gpu-node")
    pods = f"/api/v1/namespaces/{namespace}/pods"
    claim(cluster, namespace)
    with webhook(cluster, namespace) as running, configured(cluster, namespace, running.url):
        cluster.wait_for("calls of the webhook", lambda: is_called(cluster, namespace))
        created = cluster.api.create(
            pods, pod("train", None, **{CLAIM: "two", ALLOCATED: "gpu-node:0", VISIBLE: "0"})
        )
        assert created["metadata"]["annotations"] == {CLAIM: "two", **KEEP_NODE}
        bind(cluster, namespace, "train", "gpu-node", "4,5")
        cluster.wait_for(
            "the pod to run", lambda: cluster.api.get(f"{pods}/train")["status"].get("phase") == "Running"
        )
        for container in ("main", "fetch"):
            seen = fake_nodes.environment(namespace, "train", container)
            assert (seen["CUDA_VISIBLE_DEVICES"], seen["HIP_VISIBLE_DEVICES"]) == ("4,5", "4,5")


@pytest.mark.usefixtures("crds")
def test_forged_annotations_are_removed(cluster: Cluster, namespace: str) -> None:
    pods = f"/api/v1/namespaces/{namespace}/pods"
    with webhook(cluster, namespace) as running, configured(cluster, namespace, running.url):
        cluster.wait_for("calls of the webhook", lambda: is_called(cluster, namespace))
        created = cluster.api.create(pods, pod("forger", None, **{ALLOCATED: "n:0,1", VISIBLE: "0,1"}))
        assert created["metadata"].get("annotations", {}) == {}
        cluster.api.create(pods, pod("later"))
        output = cluster.kubectl(
            *("annotate", "pod", "later", f"{VISIBLE}=0,1,2,3", "note=mine"), namespace=namespace
        )
        assert "annotated" in output
        found = cluster.api.get(f"{pods}/later")["metadata"]["annotations"]
        assert found == {CLAIM: "two", "note": "mine", **KEEP_NODE}


@pytest.mark.usefixtures("crds")
def test_a_gang_is_gated_and_gets_its_scheduler(cluster: Cluster, namespace: str) -> None:
    claim(cluster, namespace, gangRef="job", schedulerName="gpu-scheduler")
    with webhook(cluster, namespace) as running, configured(cluster, namespace, running.url):
        cluster.wait_for("calls of the webhook", lambda: is_called(cluster, namespace))
        plain = pod("member")
        del plain["spec"]["schedulerName"]
        created = cluster.api.create(f"/api/v1/namespaces/{namespace}/pods", plain)
        assert created["spec"]["schedulingGates"] == [{"name": GANG_GATE}]
        assert created["spec"]["schedulerName"] == "gpu-scheduler"


@pytest.mark.usefixtures("crds")
def test_a_debug_container_gets_the_gpus_too(cluster: Cluster, namespace: str, fake_nodes: FakeNodes) -> None:
    fake_nodes.add("debug-node")
    path = f"/api/v1/namespaces/{namespace}/pods"
    with webhook(cluster, namespace) as running, configured(cluster, namespace, running.url):
        cluster.wait_for("calls of the webhook", lambda: is_called(cluster, namespace))
        cluster.api.create(path, pod("train"))
        bind(cluster, namespace, "train", "debug-node", "0")
        debugger = {"spec": {"ephemeralContainers": [{"name": "debug", "image": "i"}]}}
        kind = "application/strategic-merge-patch+json"
        found = cluster.api.patch(f"{path}/train/ephemeralcontainers", debugger, kind)
        assert VISIBLE in json.dumps(found["spec"]["ephemeralContainers"][0]["env"])


@pytest.mark.usefixtures("crds")
def test_an_allocated_pod_keeps_its_annotations_and_variables(
    cluster: Cluster, namespace: str, fake_nodes: FakeNodes
) -> None:
    fake_nodes.add("sealed-node")
    path = f"/api/v1/namespaces/{namespace}/pods"
    sealed = {CLAIM: "two", ALLOCATED: "sealed-node:0", VISIBLE: "0"}

    def annotations() -> Json:
        found: Json = cluster.api.get(f"{path}/train")["metadata"]["annotations"]
        return {key: value for key, value in found.items() if key not in KEEP_NODE}

    with webhook(cluster, namespace) as running, configured(cluster, namespace, running.url):
        cluster.wait_for("calls of the webhook", lambda: is_called(cluster, namespace))
        cluster.api.create(path, pod("train"))
        bind(cluster, namespace, "train", "sealed-node", "0")
        assert annotations() == sealed
        for words in (
            [f"{CLAIM}-"],
            [f"{CLAIM}=other"],
            [f"{VISIBLE}=0,1,2"],
            [f"{ALLOCATED}-", f"{VISIBLE}-"],
        ):
            cluster.kubectl("annotate", "pod", "train", "--overwrite", *words, namespace=namespace)
            assert annotations() == sealed
        merge = "application/merge-patch+json"
        for change in ({CLAIM: None}, {VISIBLE: "0,1,2"}, {ALLOCATED: "sealed-node:7"}, None):
            cluster.api.patch(f"{path}/train/status", {"metadata": {"annotations": change}}, merge)
            assert annotations() == sealed
        chosen = [{"name": "CUDA_VISIBLE_DEVICES", "value": "0,1,2"}]
        debugger = {
            "metadata": {"annotations": dict.fromkeys(sealed)},
            "spec": {"ephemeralContainers": [{"name": "debug", "image": "i", "env": chosen}]},
        }
        kind = "application/strategic-merge-patch+json"
        cluster.api.patch(f"{path}/train/ephemeralcontainers", debugger, kind)
        found = cluster.api.get(f"{path}/train")
        assert annotations() == sealed
        [container] = found["spec"]["ephemeralContainers"]
        variables = {each["name"]: each for each in container["env"]}
        assert VISIBLE in json.dumps(variables["CUDA_VISIBLE_DEVICES"])


@pytest.mark.usefixtures("crds")
def test_a_stopped_webhook_blocks_only_pods_with_claims(cluster: Cluster, namespace: str) -> None:
    pods = f"/api/v1/namespaces/{namespace}/pods"
    with webhook(cluster, namespace) as running:
        url = running.url
        with configured(cluster, namespace, url):
            cluster.wait_for("calls of the webhook", lambda: is_called(cluster, namespace))
    with configured(cluster, namespace, url):

        def refused() -> bool:
            status, text = cluster.api.raw("POST", f"{pods}?dryRun=All", pod("claimer"))
            return status == 500 and "failed calling webhook" in text

        cluster.wait_for("calls of the stopped webhook", refused)
        cluster.api.create(pods, pod("plain", None))
        cluster.kubectl("label", "pod", "plain", "a=b", namespace=namespace)
        cluster.kubectl("delete", "pod", "plain", "--wait=false", namespace=namespace)
        with pytest.raises(RequestFailed, match="failed calling webhook"):
            cluster.api.create(pods, pod("claimer"))


@pytest.mark.usefixtures("crds")
def test_certificate_rotation_under_load_fails_no_request(cluster: Cluster, namespace: str) -> None:
    _old_keyring(cluster, namespace)
    certificates: set[str] = set()
    bundles: list[int] = []
    """The number of trusted authorities after each change."""
    with (
        webhooks(cluster, namespace, 2, "--set", "webhook.lifetime=15s") as [running, _],
        configured(cluster, namespace, running.url),
    ):
        cluster.wait_for("calls of the webhook", lambda: is_called(cluster, namespace))
        with _load(cluster, namespace) as responses:

            def rotated() -> bool:
                secret = cluster.api.get(f"/api/v1/namespaces/{namespace}/secrets/gpufleet-webhook-tls")
                certificates.add(secret["data"]["tls.crt"])
                hooks = cluster.api.get(f"{HOOKS}/{KINDS[0]}/{namespace}")["webhooks"]
                bundle = base64.b64decode(hooks[0]["clientConfig"]["caBundle"]).count(b"BEGIN")
                if bundles[-1:] != [bundle]:
                    bundles.append(bundle)
                return bundles[-2:] == [2, 1]

            cluster.wait_for("a new authority and the end of the old one", rotated)
            count = len(responses)
            cluster.wait_for("requests after the rotation", lambda: len(responses) > count + 30)
    assert [text for status, text in responses if status != 201] == []
    assert len(responses) > 100
    assert len(certificates) >= 2


def _old_keyring(cluster: Cluster, namespace: str) -> None:
    """Create the Secret of an earlier webhook, whose authority is replaced in 15 s and expires in 25 s."""
    ring = new_keyring(["127.0.0.1"], time.time() - 5, lifetime=3)
    files = {
        "ca.crt": ring.bundle,
        "ca.key": ring.authority_key,
        "tls.crt": ring.certificate,
        "tls.key": ring.key,
    }
    data = {name: base64.b64encode(content).decode() for name, content in files.items()}
    body = {"metadata": {"name": "gpufleet-webhook-tls"}, "data": data}
    cluster.api.create(f"/api/v1/namespaces/{namespace}/secrets", body)


@contextmanager
def _load(cluster: Cluster, namespace: str) -> Iterator[list[tuple[int, str]]]:
    """Run three clients that create pods with claims in a loop, and yield their responses."""
    path = f"/api/v1/namespaces/{namespace}/pods?dryRun=All"
    responses: list[tuple[int, str]] = []
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            responses.append(cluster.api.raw("POST", path, pod("probe")))

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    try:
        yield responses
    finally:
        stop.set()
        for worker in workers:
            worker.join()


@pytest.mark.usefixtures("crds")
def test_a_stopping_webhook_finishes_its_requests(cluster: Cluster, namespace: str) -> None:
    with webhook(cluster, namespace) as running, configured(cluster, namespace, running.url):
        cluster.wait_for("calls of the webhook", lambda: is_called(cluster, namespace))
        running.process.send_signal(signal.SIGTERM)
        assert is_called(cluster, namespace)
        assert running.process.wait(timeout=20) == 0


def test_plain_gpu_pods_are_refused_on_nodes_that_belong_to_claims(cluster: Cluster, namespace: str) -> None:
    values = {
        "claimNodes": {"refuseOtherPods": True},
        "webhook": {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": namespace}}},
    }
    name = "gpu-scheduler-claim-nodes"
    chart = [each for each in objects("gpu-scheduler", values) if each["metadata"]["name"] == name]
    assert len(chart) == 2
    manifest = json.dumps({"apiVersion": "v1", "kind": "List", "items": chart})
    key = "gpu.scheduling/claims"

    def create(claim: str | None = None, gpus: str = "nvidia.com/gpu", **spec: Any) -> tuple[int, str]:
        body = pod("plain", claim)
        body["spec"] |= {"containers": [{"name": "c", "image": "i"}], **spec}
        if gpus:
            body["spec"]["containers"][0]["resources"] = {"limits": {gpus: "1"}}
        return cluster.api.raw("POST", f"/api/v1/namespaces/{namespace}/pods?dryRun=All", body)

    affinity = {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": key, "operator": "Exists"}]}]
            }
        }
    }
    tolerations = [{"key": key, "operator": "Exists"}]
    cluster.kubectl("apply", "-f", "-", stdin=manifest)
    try:
        cluster.wait_for("the policy", lambda: create(tolerations=tolerations)[0] == 403)
        assert (
            "tolerates the taint gpu.scheduling/claims of nodes that belong to GpuClaims"
            in (create(tolerations=tolerations)[1])
        )
        for spec in ({"nodeSelector": {key: "true"}}, {"affinity": affinity}):
            status, text = create(**spec)
            assert status == 403
            assert "selects nodes with the label gpu.scheduling/claims" in text
        assert create(tolerations=[{"operator": "Exists"}])[0] == 403
        assert create()[0] == 201
        assert (
            create(nodeSelector={"pool": "plain"}, tolerations=[{"key": "x", "operator": "Exists"}])[0] == 201
        )
        assert create("two", "", tolerations=tolerations, nodeSelector={key: "true"})[0] == 201
        assert create(gpus="", tolerations=tolerations)[0] == 201, "it takes no GPU"
    finally:
        cluster.kubectl("delete", "-f", "-", stdin=manifest)


@contextmanager
def policed(cluster: Cluster, namespace: str) -> Iterator[None]:
    """Apply the admission policies for one namespace during the block."""
    selector = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    items = policies(name=namespace[-30:], namespaces=selector)
    manifest = json.dumps({"apiVersion": "v1", "kind": "List", "items": items})
    cluster.kubectl("apply", "-f", "-", stdin=manifest)
    try:
        yield
    finally:
        cluster.kubectl("delete", "-f", "-", stdin=manifest)


def annotated(
    cluster: Cluster, namespace: str, name: str, change: Json | None, subresource: str = ""
) -> tuple[int, str]:
    """Change annotations of a pod and return the status and text of the response."""
    path = f"/api/v1/namespaces/{namespace}/pods/{name}{subresource}"
    body = {"metadata": {"annotations": change}, "status": {"message": "x"}}
    return cluster.api.raw("PATCH", path, body, "application/merge-patch+json")


@pytest.mark.usefixtures("crds")
def test_the_spec_of_a_claim_cannot_be_changed(cluster: Cluster, namespace: str) -> None:
    claim(cluster, namespace, topology={"mode": "Preferred"}, selector={"matchLabels": {"a": "b"}})
    path = f"/apis/gpu.scheduling/v1/namespaces/{namespace}/gpuclaims/two"
    merge = "application/merge-patch+json"

    def change(body: Json) -> tuple[int, str]:
        return cluster.api.raw("PATCH", f"{path}?dryRun=All", body, merge)

    more = {"spec": {"devices": {"count": 4}}}
    assert change(more)[0] == 200
    with policed(cluster, namespace):
        cluster.wait_for("the policy", lambda: change(more)[0] == 422)
        assert "the spec of a GpuClaim cannot be changed" in change(more)[1]
        for spec in (
            {"selector": None},
            {"gangRef": "g"},
            {"devices": {"share": 0.5, "exclusivity": "Shared"}},
        ):
            assert change({"spec": spec})[0] == 422
        assert change({"metadata": {"annotations": {"a": "b"}}, "spec": {"devices": {"count": 2}}})[0] == 200
        bound = {"status": {"phase": "Bound", "nodeName": "a"}}
        assert cluster.api.patch(f"{path}/status", bound, merge)["status"]["phase"] == "Bound"
        assert change(more)[0] == 422
        cluster.kubectl("delete", "gpuclaim", "two", namespace=namespace)


@pytest.mark.usefixtures("crds")
def test_the_claim_of_a_pod_cannot_be_added_changed_or_removed(
    cluster: Cluster, namespace: str, fake_nodes: FakeNodes
) -> None:
    fake_nodes.add("fixed-node")
    pods = f"/api/v1/namespaces/{namespace}/pods"
    cluster.api.create(pods, pod("plain", None))
    cluster.api.create(pods, pod("claimer", "two", **{REQUESTED: "2"}))
    changes: tuple[tuple[str, Json | None], ...] = (
        ("plain", {CLAIM: "late"}),
        ("claimer", {CLAIM: "other"}),
        ("claimer", {CLAIM: None}),
        ("claimer", None),
        ("claimer", {REQUESTED: "4"}),
        ("claimer", {REQUESTED: None}),
    )
    with policed(cluster, namespace):
        cluster.wait_for(
            "the policy",
            lambda: annotated(cluster, namespace, "plain", {CLAIM: "x"}, "?dryRun=All")[0] == 422,
        )
        for subresource in ("", "/status"):
            for name, change in changes:
                status, text = annotated(cluster, namespace, name, change, subresource)
                assert status == 422, (name, change, subresource, text)
                assert "annotation gpu.scheduling/" in text
            for name in ("plain", "claimer"):
                assert annotated(cluster, namespace, name, {"note": "x"}, subresource)[0] == 200
        found = {
            each: cluster.api.get(f"{pods}/{each}")["metadata"]["annotations"]
            for each in ("plain", "claimer")
        }
        assert found == {"plain": {"note": "x"}, "claimer": {CLAIM: "two", REQUESTED: "2", "note": "x"}}
        bind(cluster, namespace, "claimer", "fixed-node", "0,1")
        cluster.wait_for(
            "the pod to run", lambda: cluster.api.get(f"{pods}/claimer")["status"].get("phase") == "Running"
        )
        assert annotated(cluster, namespace, "claimer", {CLAIM: "other"})[0] == 422
        cluster.kubectl("delete", "pod", "plain", "claimer", "--wait=false", namespace=namespace)
