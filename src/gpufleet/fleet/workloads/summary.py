"""A workload in one row: its kind, status, times and number of GPUs.

`summarise` is pure: it takes the owner (or the pods' reference to it) and the pods.

- Status: the owner's own status if its kind has one, else that of its pods: any Running, then any
  Pending, then any Failed, else Completed. A workload that was deleted while it ran is Unknown,
  because its result is not known.
- Start: when its first pod started, or its creation before that. End: when its last pod ended, once
  the workload has ended or was deleted.
- GPUs: those that its pods hold now. For an ended workload, those of the pods that overlap with the
  pod that ended last, so that a retried job does not count twice.
"""

from collections.abc import Iterable, Sequence

import msgspec

from gpufleet.model.workload import FleetOwner, FleetPod, OwnerRef, QueueEntry, Status

NO_PODS = "its pods have not been created yet"


class Workload(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A top-level owner with its pods. Times are Unix seconds, 0 for not yet."""

    uid: str
    kind: str
    name: str
    namespace: str
    api_version: str
    source: str
    status: Status
    started: float
    ended: float
    gpus: int
    """Held now, or last held by an ended workload."""
    requested: int
    """GPUs that its existing pods request, bound or not."""
    labels: dict[str, str]
    annotations: dict[str, str]
    pods: tuple[FleetPod, ...]
    """Its existing pods, or its last pods if none exists."""
    counted: tuple[FleetPod, ...]
    """The pods whose GPUs `gpus` counts."""
    gone: bool
    """Deleted at its source."""
    models_requested: tuple[str, ...] = ()
    """The GPU models that its existing pods request; empty if they accept any."""
    waiting_reason: str = ""
    """Why a pending workload waits; empty if it is not known."""
    expected_start: float = 0.0
    """When its own scheduler expects the last of its pods to start; 0 if that is not known."""
    queued: QueueEntry | None = None
    """Its entry in a queue of Kueue."""

    @property
    def uses_gpus(self) -> bool:
        """Whether any of its pods requests GPUs, or will when its queue admits it."""
        return any(pod.gpus for pod in self.pods) or (self.queued is not None and self.queued.gpus > 0)


def summarise(
    uid: str,
    owner: FleetOwner | None,
    reference: OwnerRef | None,
    live: Sequence[FleetPod],
    past: Sequence[FleetPod],
    gone: bool,
    queued: QueueEntry | None = None,
) -> Workload:
    """Summarise a workload from its owner, or from its pods if the owner is not known."""
    pods = tuple(sorted(live or past, key=lambda pod: (pod.namespace, pod.name, pod.uid)))
    first = pods[0] if pods else None
    status = _status(owner, live or [pod for pod in past if gone or pod.phase.ended], gone)
    over = gone or status.ended
    counted = _last_holders(pods) if over else tuple(pod for pod in pods if live and pod.holds)
    top, named = owner or first, owner or reference or first
    labels, annotations = (top.labels, top.annotations) if top else ({}, {})
    return Workload(
        uid=uid,
        kind=named.kind if named else "",
        name=named.name if named else uid,
        namespace=top.namespace if top else "",
        api_version=named.api_version if named else "",
        source=top.source if top else "",
        status=status,
        started=_start(owner, [*live, *past]),
        ended=_end(owner, pods) if over else 0.0,
        gpus=sum(pod.gpus for pod in counted),
        requested=_requested(live, queued),
        labels=labels,
        annotations=annotations,
        pods=pods,
        counted=counted,
        gone=gone,
        models_requested=tuple(sorted({pod.model_requested for pod in live} - {""})),
        waiting_reason=_waiting_reason(live, queued) if status is Status.PENDING else "",
        expected_start=max((pod.expected_start for pod in live), default=0.0),
        queued=queued,
    )


def _requested(pods: Sequence[FleetPod], queued: QueueEntry | None) -> int:
    if queued is not None and queued.waits and not pods:
        return queued.gpus
    return sum(pod.gpus for pod in pods if not pod.phase.ended)


def _waiting_reason(pods: Sequence[FleetPod], queued: QueueEntry | None) -> str:
    if queued is not None and queued.waits:
        return queued.sentence
    if not pods:
        return NO_PODS
    reasons = (pod.waiting_reason for pod in sorted(pods, key=lambda pod: (pod.name, pod.uid)))
    return next(filter(None, reasons), "")


def _status(owner: FleetOwner | None, pods: Sequence[FleetPod], gone: bool) -> Status:
    status = owner.status if owner is not None and owner.status is not None else _pods_status(pods)
    return Status.UNKNOWN if gone and not status.ended else status


def _pods_status(pods: Sequence[FleetPod]) -> Status:
    phases = {pod.phase for pod in pods}
    for phase in (Status.RUNNING, Status.PENDING, Status.UNKNOWN, Status.FAILED, Status.COMPLETED):
        if phase in phases:
            return phase
    return Status.UNKNOWN


def _start(owner: FleetOwner | None, pods: Iterable[FleetPod]) -> float:
    starts = [pod.started or pod.bound for pod in pods if pod.started or pod.bound]
    if starts:
        return min(starts)
    created = [pod.created for pod in pods if pod.created]
    return owner.created if owner is not None else min(created, default=0.0)


def _end(owner: FleetOwner | None, pods: Sequence[FleetPod]) -> float:
    if owner is not None and owner.ended:
        return owner.ended
    return max((pod.ended for pod in pods), default=0.0)


def _last_holders(pods: Sequence[FleetPod]) -> tuple[FleetPod, ...]:
    holders = [pod for pod in pods if pod.gpus and pod.node]
    if not holders:
        return ()
    last = max(holders, key=lambda pod: (pod.ended or float("inf"), pod.uid))
    return tuple(pod for pod in holders if (pod.ended or float("inf")) > last.bound or pod is last)
