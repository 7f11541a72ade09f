"""Convert a job to fleet objects: an owner of kind SlurmJob with one pod per node.

The tasks of an array have a parent of kind SlurmJobArray, the components of a heterogeneous job one of kind
SlurmHetJob, so that each is one workload. The namespace is the account, or the user where there are no
accounts. A pending job is one pod without a node that requests all GPUs; it becomes the pod of the job's
first node. Shards count as their share of a GPU.
"""

import math
from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from gpufleet.model.gpu_models import canonical_model
from gpufleet.model.workload import JOB_ID, FleetOwner, FleetPod, OwnerRef, Status
from gpufleet.sources.slurm.jobs import NodeAllocation, SlurmJob, tasks_waiting
from gpufleet.sources.slurm.reasons import expected_start, waiting_reason

SOURCE = "slurm"
API_VERSION = "slurm"


class JobObjects(msgspec.Struct, frozen=True):
    """The fleet objects of one job."""

    owner: FleetOwner
    group: FleetOwner | None
    pods: tuple[FleetPod, ...]


def objects_of(
    job: SlurmJob, uid: str, group_uid: str, shards_per_gpu: Mapping[str, int] = MappingProxyType({})
) -> JobObjects:
    """Return the objects of a job; `group_uid` is the uid of its array or heterogeneous job, or empty.

    `shards_per_gpu` has the number of shards of each GPU by node.
    """
    group = _group(job, group_uid) if group_uid else None
    owner = FleetOwner(
        uid=uid,
        kind="SlurmJob",
        name=_name(job),
        namespace=_namespace(job),
        api_version=API_VERSION,
        source=SOURCE,
        parent=OwnerRef(group.uid, group.kind, group.name, API_VERSION) if group else None,
        labels=_labels(job),
        annotations=_annotations(job),
        created=job.submitted,
        ended=job.ended,
        status=job.status,
    )
    reference = OwnerRef(uid, owner.kind, owner.name, API_VERSION)
    tasks = tasks_waiting(job)
    allocations = job.allocations or (NodeAllocation("", job.gpus * tasks, shards=job.shards * tasks),)
    usual = max(shards_per_gpu.values(), default=1)
    pods = tuple(
        _pod(job, owner, reference, number, share, shards_per_gpu.get(share.node, usual))
        for number, share in enumerate(allocations)
    )
    return JobObjects(owner, group, pods)


def ended_objects(known: JobObjects, job: SlurmJob) -> JobObjects:
    """Return the objects of an ended job with its known GPUs, which Slurm no longer reports."""
    ended = objects_of(job, known.owner.uid, known.group.uid if known.group else "")
    placed = {pod.node: pod for pod in known.pods if pod.node}
    if not placed:
        return ended
    pods = tuple(
        msgspec.structs.replace(pod, phase=job.status, ended=job.ended, annotations=ended.owner.annotations)
        for pod in placed.values()
    )
    return JobObjects(ended.owner, ended.group, pods)


def group_of(job: SlurmJob) -> tuple[str, int] | None:
    """Return the array or heterogeneous job of a job; None if it belongs to none."""
    if job.array:
        return "array", job.array
    return ("het", job.het) if job.het else None


def _group(job: SlurmJob, uid: str) -> FleetOwner:
    kind, number = ("SlurmJobArray", job.array) if job.array else ("SlurmHetJob", job.het)
    return FleetOwner(
        uid=uid,
        kind=kind,
        name=job.name or str(number),
        namespace=_namespace(job),
        api_version=API_VERSION,
        source=SOURCE,
        labels=_labels(job),
        annotations={JOB_ID: str(number)},
        created=job.submitted,
    )


def _pod(
    job: SlurmJob, owner: FleetOwner, reference: OwnerRef, number: int, share: NodeAllocation, per_gpu: int
) -> FleetPod:
    phase = job.status
    weight = share.gpus or share.shards / max(1, per_gpu)
    gpus = share.gpus or len(share.indices) or math.ceil(weight)
    placed = share.node != ""
    return FleetPod(
        uid=f"{owner.uid}-{number}",
        name=f"{job.id}-{share.node}" if placed else str(job.id),
        namespace=owner.namespace,
        kind="SlurmTask",
        api_version=API_VERSION,
        source=SOURCE,
        node=share.node,
        phase=phase,
        owner=reference,
        labels=owner.labels,
        annotations=owner.annotations,
        gpus=gpus,
        share=min(1.0, weight / gpus) if gpus else 1.0,
        held=share.indices,
        model_requested=canonical_model(job.type),
        waiting_reason=waiting_reason(job),
        expected_start=expected_start(job),
        alias=job.alias if placed else "",
        created=job.submitted,
        bound=job.started if placed else 0.0,
        started=job.started if placed and phase is not Status.PENDING else 0.0,
        ended=job.ended,
    )


def _name(job: SlurmJob) -> str:
    name = job.name or str(job.id)
    if job.array and job.task is not None:
        return f"{name}_{job.task}"
    if job.array:
        return f"{name}_[{job.waiting}]"
    return f"{name}+{job.offset}" if job.het else name


def _namespace(job: SlurmJob) -> str:
    return job.account or job.user or "default"


def _labels(job: SlurmJob) -> dict[str, str]:
    labels = {
        "slurm/user": job.user,
        "slurm/account": job.account,
        "slurm/partition": job.partition,
        "slurm/qos": job.qos,
        "slurm/wckey": job.wckey,
    }
    return {key: value for key, value in labels.items() if value}


def _annotations(job: SlurmJob) -> dict[str, str]:
    annotations = {
        JOB_ID: str(job.id),
        "slurm/state": "+".join(job.state),
        "slurm/reason": job.reason,
        "slurm/comment": job.comment,
        "slurm/array-job-id": str(job.array or ""),
        "slurm/het-job-id": str(job.het or ""),
    }
    return {key: value for key, value in annotations.items() if value}
