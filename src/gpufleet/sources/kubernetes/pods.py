"""Convert Kubernetes pods to the types of the fleet: requested and allocated GPUs, node, start and end."""

import re
from collections.abc import Collection, Sequence
from datetime import datetime

from gpufleet.kubernetes.annotations import CLAIM, MAX_RUNTIME, kept_annotations
from gpufleet.kubernetes.crds.gpu_claim import GpuClaim
from gpufleet.kubernetes.crds.gpu_node_status import DeviceStatus
from gpufleet.kubernetes.gpu_requests import GpuRequest, Sharing, counted_request
from gpufleet.kubernetes.model_labels import model_requested
from gpufleet.kubernetes.nv_fractions import nv_fraction
from gpufleet.kubernetes.objects import ContainerStatus, ObjectMeta, Pod
from gpufleet.model.workload import FleetPod, OwnerRef, Status
from gpufleet.sources.kubernetes.claimed_gpus import (
    PodLeases,
    claimed_request,
    held_gpus,
    instances_request,
    leased_request,
)
from gpufleet.sources.kubernetes.dynamic_resources import HeldDevice

_MAX_NAME = 253
"""The longest name of an object."""

_INTERRUPTED = "DisruptionTarget"
"""The condition of pods that the control plane or the kubelet ends: eviction, preemption, a lost node."""

_ENDING = {"Ready": "False", "ContainersReady": "False", _INTERRUPTED: "True"}
"""Conditions that change when a pod ends."""

PHASES = {
    "Pending": Status.PENDING,
    "Running": Status.RUNNING,
    "Succeeded": Status.COMPLETED,
    "Failed": Status.FAILED,
}


def pod_from(
    pod: Pod,
    claim: GpuClaim | None,
    sharing: Sharing = Sharing(),  # noqa: B008  (immutable)
    leases: PodLeases = PodLeases(),  # noqa: B008  (immutable)
    dynamic: tuple[HeldDevice, ...] = (),
    devices: Sequence[DeviceStatus] = (),
    annotations: Collection[str] = (),
) -> FleetPod:
    """Convert a pod with its claim, its leases, how its node shares GPUs, and the GPUs of its ResourceClaims.

    `devices` are the GPUs of its node, of which KAI may name some. `annotations` are kept beside those that gpufleet
    always reads.
    """
    meta = pod.metadata
    request = _request(pod, claim, sharing, leases, dynamic)
    if claim is None and CLAIM in meta.annotations and not request.gpus:
        request = leased_request(pod, leases)
    held = (
        held_gpus(pod, claim, leases)
        or tuple(sorted(each.gpu for each in dynamic if each.gpu >= 0))
        or _named_by_kai(pod, devices)
    )
    phase = PHASES.get(pod.status.phase, Status.UNKNOWN)
    return FleetPod(
        uid=meta.uid,
        name=meta.name,
        namespace=meta.namespace,
        node=pod.spec.node_name,
        phase=phase,
        owner=owner_ref(meta),
        labels=dict(meta.labels),
        annotations=kept_annotations(meta.annotations, annotations),
        gpus=request.gpus,
        share=request.share,
        held=held[: request.gpus],
        model_requested=model_requested(
            claim.spec.selector.match_labels if claim and claim.spec.selector else {}, pod.spec.node_selector
        ),
        waiting_reason=_waiting_reason(pod, claim) if phase is Status.PENDING else "",
        claim=meta.annotations.get(CLAIM, ""),
        priority=pod.spec.priority or 0,
        max_runtime=_max_runtime(pod),
        created=_seconds(meta.creation_timestamp),
        bound=_bound(pod),
        started=_seconds(pod.status.start_time),
        ended=_ended(pod) if phase.ended else 0.0,
        interrupted=any(c.type == _INTERRUPTED and c.status == "True" for c in pod.status.conditions),
    )


def _named_by_kai(pod: Pod, devices: Sequence[DeviceStatus]) -> tuple[int, ...]:
    fraction = nv_fraction(pod.metadata.annotations)
    return tuple(sorted(fraction.ids(devices))) if fraction else ()


def _max_runtime(pod: Pod) -> float:
    declared = pod.spec.active_deadline_seconds
    if declared:
        return float(declared)
    text = pod.metadata.annotations.get(MAX_RUNTIME, "")
    return float(text) if re.fullmatch("[0-9]{1,9}", text) else 0.0


def owner_ref(meta: ObjectMeta) -> OwnerRef | None:
    """Return the controller of an object. The API server does not check what a reference contains."""
    controller = meta.controller
    if controller is None:
        return None
    named = (controller.uid, controller.kind, controller.name, controller.api_version)
    uid, kind, name, api_version = (
        "".join(each if each.isprintable() else "?" for each in text[:_MAX_NAME]) for text in named
    )
    return OwnerRef(uid, kind, name, api_version)


def _request(
    pod: Pod,
    claim: GpuClaim | None,
    sharing: Sharing,
    leases: PodLeases,
    dynamic: tuple[HeldDevice, ...],
) -> GpuRequest:
    if claim is not None:
        devices = claim.spec.devices
        any_instance = devices.exclusivity == "MIG" and not devices.mig_profile
        return instances_request(claim, leases) if any_instance else claimed_request(claim)
    requested = counted_request(pod, sharing)
    if not dynamic:
        return requested
    # A ResourceClaim for extended resources serves what the containers request.
    plugged = 0 if pod.status.extended_resource_claim_status is not None else requested.gpus
    gpus = len(dynamic) + plugged
    weight = sum(each.share for each in dynamic) + plugged * requested.share
    return GpuRequest(gpus, weight / gpus)


def _waiting_reason(pod: Pod, claim: GpuClaim | None) -> str:
    """Return what the claim's status, the scheduler or the kubelet says about a pending pod."""
    if pod.spec.node_name:
        waiting = (status.state.waiting for status in _container_statuses(pod))
        first = next((each for each in waiting if each is not None), None)
        return ": ".join(filter(None, (first.reason, first.message))) if first else ""
    if claim is not None and claim.status.phase == "Pending" and claim.status.message:
        return claim.status.message
    return next(
        (
            condition.message or condition.reason
            for condition in pod.status.conditions
            if condition.type == "PodScheduled" and condition.status == "False"
        ),
        "",
    )


def _container_statuses(pod: Pod) -> tuple[ContainerStatus, ...]:
    return (*pod.status.init_container_statuses, *pod.status.container_statuses)


def _bound(pod: Pod) -> float:
    if not pod.spec.node_name:
        return 0.0
    for condition in pod.status.conditions:
        if condition.type == "PodScheduled" and condition.status == "True":
            return _seconds(condition.last_transition_time)
    return _seconds(pod.status.start_time) or _seconds(pod.metadata.creation_timestamp)


def _ended(pod: Pod) -> float:
    """Return when the last container finished, or the latest sign of an end if not all did; 0 without any.

    An init container may fail after hours, and on a lost node no end is recorded.
    """
    status = pod.status
    finished = _finished(status.container_statuses)
    if finished and len(finished) == len(status.container_statuses):
        return max(finished)
    signs = [_seconds(c.last_transition_time) for c in status.conditions if _ENDING.get(c.type) == c.status]
    return max((*finished, *_finished(status.init_container_statuses), *signs), default=0.0)


def _finished(statuses: tuple[ContainerStatus, ...]) -> list[float]:
    ends = [status.state.terminated for status in statuses]
    return [_seconds(end.finished_at) for end in ends if end is not None]


def _seconds(moment: datetime | None) -> float:
    return moment.timestamp() if moment is not None else 0.0
