"""Owners of any kind in the fleet's terms, with the status that their own conditions give.

Kinds of one family say the same things in the same places, so the rules go by what an object
has, not by a list of kinds: a `Complete`/`Succeeded` or `Failed` condition (Job, the Kubeflow
jobs, RayJob, …), a phase in words (Workflow, Volcano Job, RayJob's jobStatus), or counts of
ready replicas (Deployment, StatefulSet, DaemonSet, LeaderWorkerSet). What has none of them leaves
the verdict to its pods.
"""

from collections.abc import Mapping

from gpufleet.kubernetes.objects import Owner
from gpufleet.model.workload import FleetOwner, Status
from gpufleet.sources.kubernetes.pods import owner_ref

_DONE = {"complete", "completed", "succeeded", "successcriteriamet"}
_FAILED = {"failed", "failuretarget", "error", "aborted", "terminated"}
_RUNNING = {"running", "active", "progressing"}
_PENDING = {"pending", "created", "queued", "suspended", "waiting", "inqueue", "initializing", "restarting"}
_WORDS: Mapping[str, Status] = {
    **dict.fromkeys(_DONE, Status.COMPLETED),
    **dict.fromkeys(_FAILED, Status.FAILED),
    **dict.fromkeys(_RUNNING, Status.RUNNING),
    **dict.fromkeys(_PENDING, Status.PENDING),
}
_COUNTING = {"Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "LeaderWorkerSet"}


def owner_from(owner: Owner, kind: str, api_version: str) -> FleetOwner:
    """The owner as the fleet keeps it."""
    meta = owner.metadata
    status = status_of(owner, kind)
    return FleetOwner(
        uid=meta.uid,
        kind=kind,
        name=meta.name,
        namespace=meta.namespace,
        api_version=api_version,
        parent=owner_ref(meta),
        labels=dict(meta.labels),
        annotations={k: v for k, v in meta.annotations.items() if not k.startswith("kubectl.kubernetes.io/")},
        created=meta.creation_timestamp.timestamp() if meta.creation_timestamp else 0.0,
        ended=_ended(owner) if status is not None and status.ended else 0.0,
        status=status,
    )


def status_of(owner: Owner, kind: str) -> Status | None:
    """How the owner says it is doing; None if it doesn't."""
    conditions = {c.type.lower() for c in owner.status.conditions or () if c.status == "True"}
    if conditions & _FAILED:
        return Status.FAILED
    if conditions & _DONE:
        return Status.COMPLETED
    for word in (owner.status.job_status, owner.status.phase):
        if isinstance(word, str) and word.lower() in _WORDS:
            return _WORDS[word.lower()]
    if kind in _COUNTING:
        return _by_count(owner, kind)
    if "running" in conditions:
        return Status.RUNNING
    if conditions & {"suspended", "created", "queued"} or owner.spec.suspend:
        return None if kind == "CronJob" else Status.PENDING
    return None


def _by_count(owner: Owner, kind: str) -> Status | None:
    wanted = owner.status.desired_number_scheduled if kind == "DaemonSet" else owner.spec.replicas
    ready = owner.status.number_ready if kind == "DaemonSet" else owner.status.ready_replicas
    if not isinstance(wanted, int) or wanted == 0:
        return None
    return Status.RUNNING if isinstance(ready, int) and ready > 0 else Status.PENDING


def _ended(owner: Owner) -> float:
    if owner.status.completion_time is not None:
        return owner.status.completion_time.timestamp()
    times = [
        c.last_transition_time.timestamp()
        for c in owner.status.conditions or ()
        if c.status == "True" and c.type.lower() in _DONE | _FAILED and c.last_transition_time is not None
    ]
    return max(times, default=0.0)
