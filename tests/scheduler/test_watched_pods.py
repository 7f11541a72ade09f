"""What the scheduler keeps of the pods that it watches."""

from typing import Any

import msgspec

from gpufleet.kubernetes.annotations import ALLOCATED, CLAIM
from gpufleet.kubernetes.objects import Pod
from gpufleet.scheduler.state.node_resources import requested
from gpufleet.scheduler.watched_pods import WATCHED_PODS


def decoded(node: str = "", **annotations: str) -> tuple[Pod, Pod]:
    """Return a pod as the watch decodes it, and as all other requests do."""
    body: dict[str, Any] = {
        "metadata": {
            "name": "p",
            "uid": "u",
            "labels": {"app": "a"},
            "annotations": {"kubectl.kubernetes.io/last-applied-configuration": "{}", **annotations},
            "ownerReferences": [{"kind": "Job", "name": "j", "uid": "o", "controller": True}],
        },
        "spec": {
            "nodeName": node,
            "containers": [{"name": "c", "resources": {"requests": {"cpu": "2", "memory": "1Gi"}}}],
            "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists"}],
            "nodeSelector": {"pool": "x"},
        },
        "status": {
            "phase": "Running",
            "startTime": "2026-01-01T00:00:00Z",
            "conditions": [{"type": "Ready", "status": "True"}, {"type": "PodScheduled", "status": "False"}],
            "containerStatuses": [{"state": {"waiting": {"reason": "ImagePullBackOff"}}}],
        },
    }
    text = msgspec.json.encode(body)
    return WATCHED_PODS.decoder.decode(text), msgspec.json.decode(text, type=Pod)


def _restrictions(pod: Pod) -> list[Any]:
    spec = pod.spec
    return [requested(pod), spec.node_name, spec.node_selector, spec.affinity, spec.tolerations]


def test_a_pod_with_a_claim_keeps_all_but_the_details_of_its_status() -> None:
    watched, whole = decoded(node="a", **{CLAIM: "c"})
    assert watched.metadata == whole.metadata
    assert _restrictions(watched) == _restrictions(whole)
    assert (watched.status.phase, watched.status.start_time) == (whole.status.phase, whole.status.start_time)
    assert watched.status.conditions == ()
    assert watched.status.container_statuses == ()


def test_a_waiting_pod_with_a_claim_keeps_whether_it_could_be_placed() -> None:
    watched, _ = decoded(**{CLAIM: "c"})
    assert [condition.type for condition in watched.status.conditions] == ["PodScheduled"]


def test_a_bound_pod_without_a_claim_keeps_its_node_requests_phase_and_allocation() -> None:
    watched, whole = decoded(node="a", **{ALLOCATED: "a:0"})
    assert watched.spec.node_name == "a"
    assert requested(watched) == requested(whole)
    assert watched.status.phase == "Running"
    assert watched.metadata.annotations == {ALLOCATED: "a:0"}
    assert watched.metadata.labels == {}
    assert watched.spec.tolerations == ()
    assert watched.spec.node_selector == {}


def test_a_pod_without_a_claim_keeps_what_restricts_it_to_nodes_until_it_is_bound() -> None:
    watched, whole = decoded()
    assert _restrictions(watched) == _restrictions(whole)
