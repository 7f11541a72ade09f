"""Workloads: owners such as Jobs and Deployments, and the pods that hold GPUs.

Every source uses these types. A Slurm job is an owner of kind SlurmJob with one pod per node; a container
is a pod of kind Container without an owner.
"""

import re
from enum import StrEnum

import msgspec

_NO_UID = re.compile(r"[^0-9A-Za-z_.:-]")

JOB_ID = "slurm/job-id"
"""The annotation with the id of a Slurm job, by which Slurm's commands and users name it."""


class Status(StrEnum):
    """The status of a workload as the API contract names it."""

    PENDING = "Pending"
    RUNNING = "Running"
    COMPLETED = "Completed"
    FAILED = "Failed"
    UNKNOWN = "Unknown"

    @property
    def ended(self) -> bool:
        """Whether the status is final."""
        return self in (Status.COMPLETED, Status.FAILED)


class OwnerRef(msgspec.Struct, frozen=True, gc=False):
    """An object's reference to its controller, which itself may be unknown."""

    uid: str
    kind: str
    name: str
    api_version: str = ""


def unread_owner(uid: str, namespace: str) -> str:
    """Return what stands for an owner that only references in a namespace name: it is unread, deleted or forged."""
    return f"{_NO_UID.sub('_', uid[:64])}@{namespace}"


class QueueState(StrEnum):
    """How far the admission of a job by a queueing system is."""

    QUEUED = "Queued"
    RESERVED = "QuotaReserved"
    """It has quota, and waits for admission checks."""
    ADMITTED = "Admitted"
    INACTIVE = "Inactive"
    FINISHED = "Finished"


class QueueEntry(msgspec.Struct, frozen=True, gc=False):
    """A job in a queue of Kueue."""

    queue: str
    """The LocalQueue."""
    cluster_queue: str
    """The ClusterQueue with its quota; empty until it is reserved."""
    state: QueueState
    reason: str = ""
    """Why it is not admitted."""
    gpus: int = 0
    """GPUs that its pods request together."""

    @property
    def waits(self) -> bool:
        """Whether its pods may not start yet."""
        return self.state in (QueueState.QUEUED, QueueState.RESERVED, QueueState.INACTIVE)

    @property
    def sentence(self) -> str:
        """Why a job that is not admitted waits."""
        return f"queued in Kueue's LocalQueue {self.queue}: {self.reason}"


class FleetOwner(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """An owner of pods: Job, Deployment, ReplicaSet, PyTorchJob, SlurmJob, …"""

    uid: str
    kind: str
    name: str
    namespace: str = ""
    api_version: str = ""
    source: str = "k8s"
    parent: OwnerRef | None = None
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)
    created: float = 0.0
    ended: float = 0.0
    status: Status | None = None
    """From its own conditions; None if its kind has none, so that the pods decide."""
    queued: QueueEntry | None = None
    """Only for a Workload of Kueue, whose parent is the job in the queue."""


class FleetPod(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A pod, container or part of a job on one node. Times are Unix seconds, 0 for not yet."""

    uid: str
    name: str
    namespace: str = ""
    kind: str = "Pod"
    api_version: str = "v1"
    source: str = "k8s"
    node: str = ""
    """Empty until it is bound."""
    phase: Status = Status.PENDING
    owner: OwnerRef | None = None
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)
    gpus: int = 0
    """GPUs that its containers request, or the count of its claim."""
    share: float = 1.0
    """Share of each GPU: 1 for exclusive, less for Shared and MIG."""
    held: tuple[int, ...] = ()
    """Indices of its GPUs from annotation or claim, one entry for each MIG instance; empty if unknown."""
    model_requested: str = ""
    """The GPU model that it requests; empty if it accepts any."""
    waiting_reason: str = ""
    """Why it is pending, as its scheduler says; empty if it is not or the scheduler has not tried yet."""
    expected_start: float = 0.0
    """When its own scheduler, such as Slurm's, expects it to start; 0 if it does not say."""
    claim: str = ""
    alias: str = ""
    """The id of its Slurm job or container, by which exporters name it."""
    priority: int = 0
    max_runtime: float = 0.0
    """The longest run time that it declares, in seconds; 0 if it declares none."""
    created: float = 0.0
    bound: float = 0.0
    started: float = 0.0
    ended: float = 0.0
    interrupted: bool = False
    """Whether it ends because it is evicted, preempted or has lost its node."""

    @property
    def holds(self) -> bool:
        """Whether it holds GPUs now: bound to a node and not ended."""
        return self.gpus > 0 and self.node != "" and not self.phase.ended
