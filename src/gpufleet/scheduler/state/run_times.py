"""When pods are expected to end, from what they declare and how long they have run."""

from datetime import datetime, timedelta

from gpufleet.kubernetes.annotations import MAX_RUNTIME
from gpufleet.kubernetes.objects import Pod
from gpufleet.placement.earliest import LEAST_REMAINING_S
from gpufleet.scheduler.state.gang_identity import number

DEFAULT_GRACE = 30
"""Seconds that a pod has to terminate if it names no other time."""

_SERVICES = ("ReplicaSet", "ReplicationController", "StatefulSet", "DaemonSet")
"""Controllers whose pods run until somebody deletes them."""

_LEAST_REMAINING = timedelta(seconds=LEAST_REMAINING_S)


def max_runtime(pod: Pod) -> float | None:
    """Return the longest run time that the pod declares, in seconds."""
    declared = pod.spec.active_deadline_seconds
    return float(declared) if declared else number(pod.metadata.annotations, MAX_RUNTIME)


def started(pod: Pod, now: datetime) -> datetime:
    """Return when the pod started, as far as known; one that was placed but is not bound yet starts now."""
    if not pod.spec.node_name:
        return now
    return pod.status.start_time or pod.metadata.creation_timestamp or now


def declared_end(pod: Pod, now: datetime) -> datetime | None:
    """Return when the pod ends at the latest; None if it does not say."""
    if pod.metadata.deletion_timestamp is not None:
        return pod.metadata.deletion_timestamp
    runtime = max_runtime(pod)
    if runtime is None:
        return None
    return started(pod, now) + timedelta(seconds=runtime)


def expected_end(pod: Pod, now: datetime) -> datetime | None:
    """Return when the pod is expected to end; None for services, which don't end.

    A pod that declares nothing is expected to run as long again as it has run, but at least ten minutes.
    """
    if (end := declared_end(pod, now)) is not None:
        return end
    controller = pod.metadata.controller
    if controller is not None and controller.kind in _SERVICES:
        return None
    return now + max(now - started(pod, now), _LEAST_REMAINING)


def lost_work(pod: Pod, gpus: float, now: datetime) -> float:
    """Return the GPU seconds that are lost if the pod is evicted now."""
    return gpus * max((now - started(pod, now)).total_seconds(), 0.0)


def grace_left(pod: Pod, now: datetime) -> float:
    """Return the seconds that the pod may still take to terminate, evicted now or before."""
    if pod.metadata.deletion_timestamp is not None:
        return max((pod.metadata.deletion_timestamp - now).total_seconds(), 0.0)
    grace = pod.spec.termination_grace_period_seconds
    return float(DEFAULT_GRACE if grace is None else grace)
