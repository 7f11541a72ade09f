"""A workload in one row: what it is, how it is doing, since when, with how many GPUs.

`summarise` is pure: it sees the owner (or what the pods say of it) and the pods.

- Status: the owner's own word where its kind has one, else its pods': any Running, then any
  Pending, then any Failed, else Completed. What was deleted while it ran is Unknown: nobody can
  say whether it had done its work.
- Start: when its first pod started; its creation before that. End: when its last pod ended, once
  it has ended or was deleted.
- GPUs: those that its pods hold now. For an ended workload, those of the pods whose lives
  overlap that of the pod which ended last, so that a retried job does not count twice.
"""

from collections.abc import Iterable, Sequence

import msgspec

from gpufleet.model.workload import FleetOwner, FleetPod, OwnerRef, Status


class Workload(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A top-level owner with its pods, summed up. Times are Unix seconds, 0 for not yet."""

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
    """Held now, or held last for an ended workload."""
    requested: int
    """GPUs that its living pods ask for, placed or not."""
    labels: dict[str, str]
    annotations: dict[str, str]
    pods: tuple[FleetPod, ...]
    """Its pods, living ones first choice; those it had last if none lives."""
    counted: tuple[FleetPod, ...]
    """The pods whose GPUs `gpus` counts."""
    gone: bool
    """Deleted from its source; only remembered."""

    @property
    def asks_for_gpus(self) -> bool:
        """Whether it is a GPU workload at all."""
        return any(pod.gpus for pod in self.pods)


def summarise(
    uid: str,
    owner: FleetOwner | None,
    reference: OwnerRef | None,
    live: Sequence[FleetPod],
    past: Sequence[FleetPod],
    gone: bool,
) -> Workload:
    """Sum a workload up from its owner, or from what its pods say of an unseen one."""
    pods = tuple(sorted(live or past, key=lambda pod: (pod.namespace, pod.name, pod.uid)))
    first = pods[0] if pods else None
    status = _status(owner, live or [pod for pod in past if gone or pod.phase.ended], gone)
    over = gone or status.ended
    counted = _held_last(pods) if over else tuple(pod for pod in pods if live and pod.holds)
    top = owner or first
    labels, annotations = (top.labels, top.annotations) if top else ({}, {})
    return Workload(
        uid=uid,
        kind=_kind(owner, reference, first),
        name=owner.name if owner else reference.name if reference else first.name if first else uid,
        namespace=owner.namespace if owner else first.namespace if first else "",
        api_version=(
            owner.api_version
            if owner
            else reference.api_version
            if reference
            else first.api_version
            if first
            else ""
        ),
        source=top.source if top else "",
        status=status,
        started=_start(owner, [*live, *past]),
        ended=_end(owner, pods) if over else 0.0,
        gpus=sum(pod.gpus for pod in counted),
        requested=sum(pod.gpus for pod in live if not pod.phase.ended),
        labels=labels,
        annotations=annotations,
        pods=pods,
        counted=counted,
        gone=gone,
    )


def _kind(owner: FleetOwner | None, reference: OwnerRef | None, pod: FleetPod | None) -> str:
    if owner is not None:
        return owner.kind
    if reference is not None:
        return reference.kind
    return pod.kind if pod is not None else ""


def _status(owner: FleetOwner | None, pods: Sequence[FleetPod], gone: bool) -> Status:
    said = owner.status if owner is not None and owner.status is not None else _pods_status(pods)
    return Status.UNKNOWN if gone and not said.ended else said


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


def _held_last(pods: Sequence[FleetPod]) -> tuple[FleetPod, ...]:
    holders = [pod for pod in pods if pod.gpus and pod.node]
    if not holders:
        return ()
    last = max(holders, key=lambda pod: (pod.ended or float("inf"), pod.uid))
    return tuple(pod for pod in holders if (pod.ended or float("inf")) > last.bound or pod is last)
