"""The fields of Kueue's Workload that gpufleet reads.

Kueue makes one Workload for each job in a queue. Its pod sets are copies of the job's pod templates, and its
conditions tell whether the job is admitted. Versions v1beta1 and v1beta2 have these fields in common.
"""

from typing import ClassVar

from msgspec import field

from gpufleet.kubernetes.objects import Condition, Fields, KubeObject, Pod

GROUP = "kueue.x-k8s.io"
VERSIONS = ("v1beta2", "v1beta1")
"""Versions of Workload, the newest first; Kueue before 0.15 serves only v1beta1."""
KIND = "Workload"
QUEUE_NAME = "kueue.x-k8s.io/queue-name"
"""The label of a job or pod that waits in a LocalQueue."""


class PodSet(Fields, frozen=True):
    """Equal pods of a job."""

    count: int = 0
    template: Pod = field(default_factory=Pod)
    """Only its metadata and spec."""


class WorkloadSpec(Fields, frozen=True):
    """The queue and the pods."""

    queue_name: str = ""
    active: bool | None = None
    pod_sets: tuple[PodSet, ...] = ()


class Admission(Fields, frozen=True):
    """Where the quota is reserved."""

    cluster_queue: str = ""


class AdmissionCheck(Fields, frozen=True):
    """A check that must pass before a Workload with quota is admitted."""

    name: str = ""
    state: str = ""
    message: str = ""


class WorkloadStatus(Fields, frozen=True):
    """How far admission is."""

    conditions: tuple[Condition, ...] | None = ()
    admission: Admission | None = None
    admission_checks: tuple[AdmissionCheck, ...] | None = ()


class KueueWorkload(KubeObject, frozen=True):
    """A job in a queue of Kueue."""

    all_annotations: ClassVar[bool] = False
    spec: WorkloadSpec = field(default_factory=WorkloadSpec)
    status: WorkloadStatus = field(default_factory=WorkloadStatus)

    def condition(self, kind: str) -> Condition | None:
        """Return the condition of that type, whatever its status."""
        return next((each for each in self.status.conditions or () if each.type == kind), None)

    def is_true(self, kind: str) -> bool:
        """Return whether the condition of that type is True."""
        found = self.condition(kind)
        return found is not None and found.status == "True"
