"""Workloads: what people start, the objects between, and the pods that hold GPUs.

Every source speaks in these terms. A Slurm job is an owner of kind SlurmJob with one pod for
each of its nodes; a container is a pod of kind Container that nobody owns.
"""

from enum import StrEnum

import msgspec


class Status(StrEnum):
    """How a workload is doing, in the words of the contract."""

    PENDING = "Pending"
    RUNNING = "Running"
    COMPLETED = "Completed"
    FAILED = "Failed"
    UNKNOWN = "Unknown"

    @property
    def ended(self) -> bool:
        """Whether nothing more will come of it."""
        return self in (Status.COMPLETED, Status.FAILED)


class OwnerRef(msgspec.Struct, frozen=True, gc=False):
    """What an object says of its controller; the controller itself may be out of sight."""

    uid: str
    kind: str
    name: str
    api_version: str = ""


class FleetOwner(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """An object above pods: Job, Deployment, ReplicaSet, PyTorchJob, SlurmJob, …"""

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
    """From its own conditions; None where its kind has none, so that the pods decide."""


class FleetPod(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What runs on one node and holds GPUs there. Times are Unix seconds, 0 for not yet."""

    uid: str
    name: str
    namespace: str = ""
    kind: str = "Pod"
    api_version: str = "v1"
    source: str = "k8s"
    node: str = ""
    """Where it is bound; empty while it waits."""
    phase: Status = Status.PENDING
    owner: OwnerRef | None = None
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)
    gpus: int = 0
    """GPUs promised: container requests, or the count of its claim."""
    share: float = 1.0
    """How much of each of them: 1 for exclusive, less for Shared and MIG."""
    held: tuple[int, ...] = ()
    """Which GPUs, where annotation or claim say so; empty where nobody does."""
    claim: str = ""
    alias: str = ""
    """Another name that exporters know it by: the id of its Slurm job, or of its container."""
    created: float = 0.0
    bound: float = 0.0
    started: float = 0.0
    ended: float = 0.0

    @property
    def holds(self) -> bool:
        """Whether GPUs are promised to it now: bound to a node and not ended."""
        return self.gpus > 0 and self.node != "" and not self.phase.ended
