"""Convert a node and its GpuNodeStatus for placement, and check whether a node admits a pod."""

from collections.abc import Callable

from gpufleet.kubernetes.crds.gpu_node_status import DeviceStatus, GpuNodeStatus
from gpufleet.kubernetes.model_labels import with_canonical_models
from gpufleet.kubernetes.objects import Node, Pod, Taint, Toleration
from gpufleet.model.gpu_models import canonical_model
from gpufleet.placement.node import CandidateGpu, CandidateMigInstance, CandidateNode
from gpufleet.placement.reasons import Reason
from gpufleet.scheduler.state.affinity import matches_affinity


def candidate_node(node: Node, report: GpuNodeStatus, taken: Callable[[DeviceStatus], bool]) -> CandidateNode:
    """Return the node with its GPUs; `taken` returns whether something else than a claim has a GPU."""
    return CandidateNode(
        node.metadata.name,
        tuple(_gpu(device, taken) for device in report.status.devices),
        with_canonical_models(node.metadata.labels),
        cordoned=node.spec.unschedulable,
        ready=is_ready(node),
    )


def is_ready(node: Node) -> bool:
    """Return whether the node is Ready; a node without that condition counts as ready, since taints cover it."""
    ready = next((condition for condition in node.status.conditions if condition.type == "Ready"), None)
    return ready is None or ready.status == "True"


def admits(node: Node, pod: Pod) -> bool:
    """Return whether taints, cordon, readiness, node selector and required affinity allow the pod on the node."""
    return exclusion(node, pod) is Reason.NONE


def exclusion(node: Node, pod: Pod) -> Reason:
    """Return why the node admits no such pod, whatever is free on it."""
    if not _selects(pod, node):
        return Reason.POD_LABELS
    if node.spec.unschedulable:
        return Reason.CORDONED
    if not is_ready(node):
        return Reason.NOT_READY
    return Reason.NONE if _tolerates_all(pod, node) else Reason.TAINTED


def meets_constraints(node: Node, pod: Pod) -> bool:
    """Return whether the pod's node selector, required affinity and tolerations allow the node."""
    return _selects(pod, node) and _tolerates_all(pod, node)


def _selects(pod: Pod, node: Node) -> bool:
    labels = node.metadata.labels
    if any(labels.get(key) != value for key, value in pod.spec.node_selector.items()):
        return False
    return pod.spec.affinity is None or matches_affinity(node, pod.spec.affinity)


def _tolerates_all(pod: Pod, node: Node) -> bool:
    return all(
        taint.effect == "PreferNoSchedule" or any(_tolerates(each, taint) for each in pod.spec.tolerations)
        for taint in node.spec.taints
    )


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    return toleration.operator == "Exists" or toleration.value == taint.value


def _gpu(device: DeviceStatus, taken: Callable[[DeviceStatus], bool]) -> CandidateGpu:
    return CandidateGpu(
        device.id,
        health=device.health,
        island=device.island or None,
        bandwidth_gbps=device.bandwidth_gbps,
        model=canonical_model(device.model),
        cordoned=device.cordoned,
        taken=bool(device.draining_pods) or taken(device),
        mig=tuple(CandidateMigInstance(str(each.id), each.profile) for each in device.mig_instances),
    )
