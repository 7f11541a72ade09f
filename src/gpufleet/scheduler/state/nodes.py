"""A Kubernetes node and the report of its GPUs, as placement's node; and which pods a node lets in."""

from collections.abc import Callable

from gpufleet.kubernetes.crds.gpu_node_status import DeviceStatus, GpuNodeStatus
from gpufleet.kubernetes.objects import Node, Pod, Taint, Toleration
from gpufleet.placement.node import CandidateGpu, CandidateMigInstance, CandidateNode
from gpufleet.scheduler.state.affinity import meets


def node_of(node: Node, report: GpuNodeStatus, taken: Callable[[DeviceStatus], bool]) -> CandidateNode:
    """The node with its GPUs; `taken` says of a GPU that a pod without a lease uses it."""
    return CandidateNode(
        node.metadata.name,
        tuple(_gpu(device, taken) for device in report.status.devices),
        dict(node.metadata.labels),
        cordoned=node.spec.unschedulable,
        ready=is_ready(node),
    )


def is_ready(node: Node) -> bool:
    """Whether the kubelet says so; a node that says nothing yet is taken at its word by kube-scheduler's taints."""
    ready = next((condition for condition in node.status.conditions if condition.type == "Ready"), None)
    return ready is None or ready.status == "True"


def lets_in(node: Node, pod: Pod) -> bool:
    """Whether taints, cordon, readiness and the pod's node selector and required affinity allow the pod there."""
    labels = node.metadata.labels
    if node.spec.unschedulable or not is_ready(node):
        return False
    if any(labels.get(key) != value for key, value in pod.spec.node_selector.items()):
        return False
    if pod.spec.affinity is not None and not meets(node, pod.spec.affinity):
        return False
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
        model=device.model,
        cordoned=device.cordoned,
        taken=bool(device.in_use_by) and taken(device),
        mig=tuple(CandidateMigInstance(str(each.id), each.profile) for each in device.mig_instances),
    )
