"""Convert owners of any kind to the types of the fleet, with the status that they report.

Similar kinds report their status in the same fields, so the rules depend on the fields and not on a list
of kinds: a `Complete`/`Succeeded` or `Failed` condition (Job, the Kubeflow jobs, RayJob, …), a phase
(Workflow, Volcano Job, RayJob's jobStatus), or a number of ready replicas (Deployment, StatefulSet,
DaemonSet, LeaderWorkerSet). The status of all other owners follows from their pods.
"""

from collections.abc import Collection, Mapping

from gpufleet.kubernetes.annotations import kept_annotations
from gpufleet.kubernetes.objects import Owner
from gpufleet.model.workload import FleetOwner, Status
from gpufleet.sources.kubernetes.pods import owner_ref

_COMPLETED = {"complete", "completed", "succeeded", "successcriteriamet"}
_FAILED = {"failed", "failuretarget", "error", "aborted", "terminated"}
_RUNNING = {"running", "active", "progressing"}
_PENDING = {"pending", "created", "queued", "suspended", "waiting", "inqueue", "initializing", "restarting"}
_PHASES: Mapping[str, Status] = {
    **dict.fromkeys(_COMPLETED, Status.COMPLETED),
    **dict.fromkeys(_FAILED, Status.FAILED),
    **dict.fromkeys(_RUNNING, Status.RUNNING),
    **dict.fromkeys(_PENDING, Status.PENDING),
}
_WITH_REPLICAS = {"Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "LeaderWorkerSet"}


def owner_from(owner: Owner, kind: str, api_version: str, annotations: Collection[str] = ()) -> FleetOwner:
    """Convert an owner; `annotations` are kept beside those that gpufleet always reads."""
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
        annotations=kept_annotations(meta.annotations, annotations),
        created=meta.creation_timestamp.timestamp() if meta.creation_timestamp else 0.0,
        ended=_ended(owner) if status is not None and status.ended else 0.0,
        status=status,
    )


def status_of(owner: Owner, kind: str) -> Status | None:
    """Return the status that the owner reports; None if it reports none."""
    conditions = {c.type.lower() for c in owner.status.conditions or () if c.status == "True"}
    if conditions & _FAILED:
        return Status.FAILED
    if conditions & _COMPLETED:
        return Status.COMPLETED
    for phase in (owner.status.job_status, owner.status.phase):
        if isinstance(phase, str) and phase.lower() in _PHASES:
            return _PHASES[phase.lower()]
    if kind in _WITH_REPLICAS:
        return _by_replicas(owner, kind)
    if "running" in conditions:
        return Status.RUNNING
    if conditions & {"suspended", "created", "queued"} or owner.spec.suspend:
        return None if kind == "CronJob" else Status.PENDING
    return None


def _by_replicas(owner: Owner, kind: str) -> Status | None:
    desired = owner.status.desired_number_scheduled if kind == "DaemonSet" else owner.spec.replicas
    ready = owner.status.number_ready if kind == "DaemonSet" else owner.status.ready_replicas
    if not isinstance(desired, int) or desired == 0:
        return None
    return Status.RUNNING if isinstance(ready, int) and ready > 0 else Status.PENDING


def _ended(owner: Owner) -> float:
    if owner.status.completion_time is not None:
        return owner.status.completion_time.timestamp()
    times = [
        c.last_transition_time.timestamp()
        for c in owner.status.conditions or ()
        if c.status == "True"
        and c.type.lower() in _COMPLETED | _FAILED
        and c.last_transition_time is not None
    ]
    return max(times, default=0.0)
