"""The webhook as a process of its own, called by a real API server."""

import base64
import json
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster import Cluster, RequestFailed
from e2e.fakenodes import FakeNodes
from gpufleet.kubernetes.annotations import ALLOCATED, CLAIM, GANG_GATE, VISIBLE
from gpufleet.webhook.certificates import new_keyring
from gpufleet.webhook.configuration import configurations

CRDS = Path(__file__).parents[1] / "charts" / "gpu-scheduler" / "crds"
HOOKS = "/apis/admissionregistration.k8s.io/v1"
KINDS = ("mutatingwebhookconfigurations", "validatingwebhookconfigurations")
Json = dict[str, Any]


@pytest.fixture(scope="module")
def definitions(cluster: Cluster) -> Iterator[None]:
    """The CRDs of the chart."""
    cluster.kubectl("apply", "-f", str(CRDS))
    cluster.kubectl("wait", "--for=condition=Established", "crd/gpuclaims.gpu.scheduling", "--timeout=30s")
    yield
    cluster.kubectl("delete", "-f", str(CRDS))


class Running:
    """A webhook that serves."""

    def __init__(self, process: "subprocess.Popen[str]", url: str) -> None:
        self.process = process
        self.url = url


@contextmanager
def webhook(cluster: Cluster, namespace: str, *flags: str) -> Iterator[Running]:
    """A webhook for the pods of one namespace."""
    with webhooks(cluster, namespace, 1, *flags) as [running]:
        yield running


@contextmanager
def webhooks(cluster: Cluster, namespace: str, count: int, *flags: str) -> Iterator[list[Running]]:
    """Replicas of it, started at once."""
    command = [sys.executable, "-m", "gpufleet", "webhook", "--port", "0", "--names", "127.0.0.1"]
    own = ["--namespace", namespace, "--configurations", namespace, "--webhook-check", "200ms"]
    with ExitStack() as closing:
        processes = []
        for _ in range(count):
            process = subprocess.Popen(
                [*command, *own, "--kubeconfig", str(cluster.kubeconfig), "--webhook-drain", "1s", *flags],
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
    """The configurations in force: the API server calls the webhook, and trusts it."""
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


def called(cluster: Cluster, namespace: str) -> bool:
    """Whether a pod with a claim comes back changed."""
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
            "schedulerName": "nobody",
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
    """What the scheduler does: node and GPUs in one write."""
    notes = {ALLOCATED: f"{node}:{ids}", VISIBLE: ids}
    body = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": name, "namespace": namespace, "annotations": notes},
        "target": {"apiVersion": "v1", "kind": "Node", "name": node},
    }
    cluster.api.create(f"/api/v1/namespaces/{namespace}/pods/{name}/binding", body)


@pytest.mark.usefixtures("definitions")
def test_a_pod_with_a_claim_sees_the_gpus_of_its_binding(
    cluster: Cluster, namespace: str, fake_nodes: FakeNodes
) -> None:
    fake_nodes.add("gpu-node")
    pods = f"/api/v1/namespaces/{namespace}/pods"
    claim(cluster, namespace)
    with webhook(cluster, namespace) as running, configured(cluster, namespace, running.url):
        cluster.wait_for("the webhook in force", lambda: called(cluster, namespace))
        made = cluster.api.create(
            pods, pod("train", None, **{CLAIM: "two", ALLOCATED: "gpu-node:0", VISIBLE: "0"})
        )
        assert made["metadata"]["annotations"] == {CLAIM: "two"}
        bind(cluster, namespace, "train", "gpu-node", "4,5")
        cluster.wait_for(
            "the pod to run", lambda: cluster.api.get(f"{pods}/train")["status"].get("phase") == "Running"
        )
        for container in ("main", "fetch"):
            seen = fake_nodes.environment(namespace, "train", container)
            assert (seen["CUDA_VISIBLE_DEVICES"], seen["HIP_VISIBLE_DEVICES"]) == ("4,5", "4,5")


@pytest.mark.usefixtures("definitions")
def test_forged_annotations_do_not_survive(cluster: Cluster, namespace: str) -> None:
    pods = f"/api/v1/namespaces/{namespace}/pods"
    with webhook(cluster, namespace) as running, configured(cluster, namespace, running.url):
        cluster.wait_for("the webhook in force", lambda: called(cluster, namespace))
        made = cluster.api.create(pods, pod("forger", None, **{ALLOCATED: "n:0,1", VISIBLE: "0,1"}))
        assert made["metadata"].get("annotations", {}) == {}
        cluster.api.create(pods, pod("later"))
        said = cluster.kubectl(
            *("annotate", "pod", "later", f"{VISIBLE}=0,1,2,3", "note=mine"), namespace=namespace
        )
        assert "annotated" in said
        found = cluster.api.get(f"{pods}/later")["metadata"]["annotations"]
        assert found == {CLAIM: "two", "note": "mine"}


@pytest.mark.usefixtures("definitions")
def test_a_gang_is_gated_and_gets_its_scheduler(cluster: Cluster, namespace: str) -> None:
    claim(cluster, namespace, gangRef="job", schedulerName="gpu-scheduler")
    with webhook(cluster, namespace) as running, configured(cluster, namespace, running.url):
        cluster.wait_for("the webhook in force", lambda: called(cluster, namespace))
        plain = pod("member")
        del plain["spec"]["schedulerName"]
        made = cluster.api.create(f"/api/v1/namespaces/{namespace}/pods", plain)
        assert made["spec"]["schedulingGates"] == [{"name": GANG_GATE}]
        assert made["spec"]["schedulerName"] == "gpu-scheduler"


@pytest.mark.usefixtures("definitions")
def test_a_container_for_debugging_gets_the_same_reference(
    cluster: Cluster, namespace: str, fake_nodes: FakeNodes
) -> None:
    fake_nodes.add("debug-node")
    path = f"/api/v1/namespaces/{namespace}/pods"
    with webhook(cluster, namespace) as running, configured(cluster, namespace, running.url):
        cluster.wait_for("the webhook in force", lambda: called(cluster, namespace))
        cluster.api.create(path, pod("train"))
        bind(cluster, namespace, "train", "debug-node", "0")
        debugger = {"spec": {"ephemeralContainers": [{"name": "debug", "image": "i"}]}}
        kind = "application/strategic-merge-patch+json"
        found = cluster.api.patch(f"{path}/train/ephemeralcontainers", debugger, kind)
        assert VISIBLE in json.dumps(found["spec"]["ephemeralContainers"][0]["env"])


@pytest.mark.usefixtures("definitions")
def test_a_webhook_that_is_down_blocks_only_pods_with_claims(cluster: Cluster, namespace: str) -> None:
    pods = f"/api/v1/namespaces/{namespace}/pods"
    with webhook(cluster, namespace) as running:
        url = running.url
        with configured(cluster, namespace, url):
            cluster.wait_for("the webhook in force", lambda: called(cluster, namespace))
    with configured(cluster, namespace, url):

        def refused() -> bool:
            status, text = cluster.api.raw("POST", f"{pods}?dryRun=All", pod("claimer"))
            return status == 500 and "failed calling webhook" in text

        cluster.wait_for("the configuration in force", refused)
        cluster.api.create(pods, pod("plain", None))
        cluster.kubectl("label", "pod", "plain", "a=b", namespace=namespace)
        cluster.kubectl("delete", "pod", "plain", "--wait=false", namespace=namespace)
        with pytest.raises(RequestFailed, match="failed calling webhook"):
            cluster.api.create(pods, pod("claimer"))


@pytest.mark.usefixtures("definitions")
def test_certificates_and_authorities_rotate_under_load_and_no_request_is_lost(
    cluster: Cluster, namespace: str
) -> None:
    _old_keyring(cluster, namespace)
    certificates: set[str] = set()
    bundles: list[int] = []
    """How many authorities are trusted, each change."""
    with (
        webhooks(cluster, namespace, 2, "--webhook-lifetime", "15s") as [running, _],
        configured(cluster, namespace, running.url),
    ):
        cluster.wait_for("the webhook in force", lambda: called(cluster, namespace))
        with _load(cluster, namespace) as answers:

            def rotated() -> bool:
                secret = cluster.api.get(f"/api/v1/namespaces/{namespace}/secrets/gpufleet-webhook-tls")
                certificates.add(secret["data"]["tls.crt"])
                hooks = cluster.api.get(f"{HOOKS}/{KINDS[0]}/{namespace}")["webhooks"]
                bundle = base64.b64decode(hooks[0]["clientConfig"]["caBundle"]).count(b"BEGIN")
                if bundles[-1:] != [bundle]:
                    bundles.append(bundle)
                return bundles[-2:] == [2, 1]

            cluster.wait_for("an authority that came and one that went", rotated)
            time.sleep(1.0)
    assert [text for status, text in answers if status != 201] == []
    assert len(answers) > 100
    assert len(certificates) >= 2


def _old_keyring(cluster: Cluster, namespace: str) -> None:
    """A Secret as an earlier webhook left it: its authority is replaced 15 s from now and ends 25 s from now."""
    ring = new_keyring(["127.0.0.1"], time.time() - 5, lifetime=3)
    parts = {
        "ca.crt": ring.bundle,
        "ca.key": ring.authority_key,
        "tls.crt": ring.certificate,
        "tls.key": ring.key,
    }
    data = {name: base64.b64encode(part).decode() for name, part in parts.items()}
    body = {"metadata": {"name": "gpufleet-webhook-tls"}, "data": data}
    cluster.api.create(f"/api/v1/namespaces/{namespace}/secrets", body)


@contextmanager
def _load(cluster: Cluster, namespace: str) -> Iterator[list[tuple[int, str]]]:
    """Three clients that create pods with claims as fast as they are answered; the value are the answers."""
    path = f"/api/v1/namespaces/{namespace}/pods?dryRun=All"
    answers: list[tuple[int, str]] = []
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            answers.append(cluster.api.raw("POST", path, pod("probe")))

    workers = [threading.Thread(target=work) for _ in range(3)]
    for worker in workers:
        worker.start()
    try:
        yield answers
    finally:
        stop.set()
        for worker in workers:
            worker.join()


@pytest.mark.usefixtures("definitions")
def test_a_webhook_that_stops_finishes_what_it_has(cluster: Cluster, namespace: str) -> None:
    with webhook(cluster, namespace) as running, configured(cluster, namespace, running.url):
        cluster.wait_for("the webhook in force", lambda: called(cluster, namespace))
        running.process.send_signal(signal.SIGTERM)
        assert called(cluster, namespace)
        assert running.process.wait(timeout=20) == 0
