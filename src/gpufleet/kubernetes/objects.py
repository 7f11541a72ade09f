"""The fields of Kubernetes objects that gpufleet reads.

A pod is 5 to 20 kB on the wire and a few hundred bytes here: decoders skip unknown fields without
building them, which saves both time and memory. Every field has a default, so objects of older
servers decode too. The structs are frozen, use tuples, share their empty defaults, and are
invisible to the garbage collector, because they can't form cycles.

Types with only some fields of their kind must never be used to replace an object; see
`Resource.complete`.
"""

from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any, ClassVar

from msgspec import Struct, field
from msgspec.structs import force_setattr

EMPTY: Mapping[str, str] = MappingProxyType({})
"""The empty mapping shared by all objects without labels, annotations or requests."""


class Fields(Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """Base of all structs: camelCase on the wire, defaults left out."""


class OwnerReference(Fields, frozen=True):
    """An owner of an object; the one with `controller` manages it."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class ObjectMeta(Fields, frozen=True):
    """Object metadata; complete except for `managedFields`, which the server maintains."""

    name: str = ""
    generate_name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    labels: Mapping[str, str] = EMPTY
    annotations: Mapping[str, str] = EMPTY
    owner_references: tuple[OwnerReference, ...] = ()
    finalizers: tuple[str, ...] = ()

    @property
    def controller(self) -> OwnerReference | None:
        """Return the owner that manages this object, if any."""
        return next((owner for owner in self.owner_references if owner.controller), None)


class KubeObject(Fields, frozen=True):
    """An object of any kind; only its metadata is read."""

    all_annotations: ClassVar[bool] = True
    """Whether caches keep all annotations, not only those that gpufleet reads: users write those of pods and owners."""
    metadata: ObjectMeta = field(default_factory=ObjectMeta)


class Condition(Fields, frozen=True):
    """A condition of an object; `status` is True, False or Unknown."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None


class Taint(Fields, frozen=True):
    """A taint of a node."""

    key: str = ""
    value: str = ""
    effect: str = ""


class NodeSpec(Fields, frozen=True):
    """The spec of a node."""

    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()


class NodeAddress(Fields, frozen=True):
    """A name or address of a node."""

    type: str = ""
    address: str = ""


class NodeInfo(Fields, frozen=True):
    """The system of a node."""

    boot_id: str = field(default="", name="bootID")
    """Changes when the node boots."""


class NodeStatusFields(Fields, frozen=True):
    """The status that the kubelet reports; amounts are Kubernetes quantities."""

    capacity: Mapping[str, str] = EMPTY
    allocatable: Mapping[str, str] = EMPTY
    conditions: tuple[Condition, ...] = ()
    addresses: tuple[NodeAddress, ...] = ()
    node_info: NodeInfo = field(default_factory=NodeInfo)


class Node(KubeObject, frozen=True):
    """A node."""

    spec: NodeSpec = field(default_factory=NodeSpec)
    status: NodeStatusFields = field(default_factory=NodeStatusFields)


class Resources(Fields, frozen=True):
    """The requests and limits of a container, as Kubernetes quantities."""

    requests: Mapping[str, str | float] = EMPTY
    limits: Mapping[str, str | float] = EMPTY

    def requested(self, resource: str) -> str:
        """Return the request for a resource, or its limit, which is also the request if that is missing.

        An API server writes quantities as text, but a review of a pod may contain plain numbers.
        """
        return str(self.requests.get(resource) or self.limits.get(resource, ""))


_NO_RESOURCES = Resources()


class Container(Fields, frozen=True):
    """A container; an init container with `restart_policy` Always is a sidecar."""

    name: str = ""
    resources: Resources = _NO_RESOURCES
    restart_policy: str = ""


class Toleration(Fields, frozen=True):
    """A toleration of a pod."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""


class NodeSelectorRequirement(Fields, frozen=True):
    """A requirement on a label or field of a node."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


class NodeSelectorTerm(Fields, frozen=True):
    """Requirements that must all be met."""

    match_expressions: tuple[NodeSelectorRequirement, ...] = ()
    match_fields: tuple[NodeSelectorRequirement, ...] = ()


class NodeSelector(Fields, frozen=True):
    """Terms of which one must be met."""

    node_selector_terms: tuple[NodeSelectorTerm, ...] = ()


class NodeAffinity(Fields, frozen=True):
    """The required node affinity; kube-scheduler weighs preferences."""

    required: NodeSelector | None = field(default=None, name="requiredDuringSchedulingIgnoredDuringExecution")


class Affinity(Fields, frozen=True):
    """The affinity of a pod; affinity between pods is not read."""

    node_affinity: NodeAffinity | None = None


class SchedulingGate(Fields, frozen=True):
    """A gate that keeps a pod from being scheduled."""

    name: str = ""


class SchedulingGroup(Fields, frozen=True):
    """The native PodGroup (scheduling.k8s.io) that a pod belongs to."""

    pod_group_name: str = ""


class PodResourceClaim(Fields, frozen=True):
    """A ResourceClaim that a pod names, or the template from which it is made."""

    name: str = ""
    resource_claim_name: str = ""
    resource_claim_template_name: str = ""


class PodSpec(Fields, frozen=True):
    """The spec of a pod."""

    node_name: str = ""
    scheduler_name: str = ""
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    overhead: Mapping[str, str] = EMPTY
    node_selector: Mapping[str, str] = EMPTY
    affinity: Affinity | None = None
    tolerations: tuple[Toleration, ...] = ()
    scheduling_gates: tuple[SchedulingGate, ...] = ()
    priority: int | None = None
    preemption_policy: str = ""
    active_deadline_seconds: int | None = None
    termination_grace_period_seconds: int | None = None
    scheduling_group: SchedulingGroup | None = None
    resource_claims: tuple[PodResourceClaim, ...] = ()

    def __post_init__(self) -> None:
        if self.node_name and self.affinity is not None:
            # Not needed once the pod is bound, and in DaemonSet pods half as large as everything else.
            force_setattr(self, "affinity", None)


class ContainerTerminated(Fields, frozen=True):
    """How a container terminated."""

    finished_at: datetime | None = None


class ContainerWaiting(Fields, frozen=True):
    """Why a container has not started."""

    reason: str = ""
    message: str = ""


class ContainerState(Fields, frozen=True):
    """The state of a container; both fields are None while it runs."""

    waiting: ContainerWaiting | None = None
    terminated: ContainerTerminated | None = None


_NO_STATE = ContainerState()


class ContainerStatus(Fields, frozen=True):
    """The status of a container."""

    state: ContainerState = _NO_STATE


class PodResourceClaimStatus(Fields, frozen=True):
    """The ResourceClaim that was made for a pod, by the name that the pod has for it."""

    name: str = ""
    resource_claim_name: str | None = None


class ExtendedResourceClaimStatus(Fields, frozen=True):
    """The ResourceClaim that kube-scheduler made for the extended resources of a pod."""

    resource_claim_name: str = ""


class PodStatus(Fields, frozen=True):
    """The status of a pod."""

    phase: str = ""
    start_time: datetime | None = None
    conditions: tuple[Condition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    resource_claim_statuses: tuple[PodResourceClaimStatus, ...] = ()
    extended_resource_claim_status: ExtendedResourceClaimStatus | None = None


class Pod(KubeObject, frozen=True):
    """A pod."""

    all_annotations: ClassVar[bool] = False
    spec: PodSpec = field(default_factory=PodSpec)
    status: PodStatus = field(default_factory=PodStatus)

    @property
    def finished(self) -> bool:
        """Return whether the pod has ended permanently and holds no resources."""
        return self.status.phase in ("Succeeded", "Failed")


class OwnerSpec(Fields, frozen=True):
    """The desired replicas of a workload, by the field names of several kinds."""

    replicas: int | None = None
    suspend: bool | None = None


class OwnerStatus(Fields, frozen=True):
    """The status of a workload: conditions, counts and times, by the field names of several kinds."""

    conditions: tuple[Condition, ...] | None = ()
    phase: Any = ""
    ready_replicas: Any = None
    number_ready: Any = None
    desired_number_scheduled: Any = None
    job_status: str = ""
    completion_time: datetime | None = None


class Owner(KubeObject, frozen=True):
    """A workload of any kind (Job, Deployment, PyTorchJob, RayJob, …)."""

    all_annotations: ClassVar[bool] = False
    spec: OwnerSpec = field(default_factory=OwnerSpec)
    status: OwnerStatus = field(default_factory=OwnerStatus)


class JobStatus(Fields, frozen=True):
    """The status of a Job."""

    conditions: tuple[Condition, ...] = ()


class Job(KubeObject, frozen=True):
    """A Job; only whether it has ended is read."""

    status: JobStatus = field(default_factory=JobStatus)


class LeaseSpec(Fields, frozen=True):
    """The spec of a lease; complete."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: datetime | None = None
    renew_time: datetime | None = None
    lease_transitions: int | None = None
    strategy: str | None = None
    preferred_holder: str | None = None


class Lease(KubeObject, frozen=True):
    """A lease of coordination.k8s.io; write its times with `micro_time`."""

    spec: LeaseSpec = field(default_factory=LeaseSpec)


def micro_time(moment: datetime) -> datetime:
    """Return `moment` for a MicroTime field: servers before 1.35 need six decimals, which a full second lacks."""
    return moment if moment.microsecond else moment.replace(microsecond=1)


class ObjectReference(Fields, frozen=True):
    """The object that an event is about."""

    api_version: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    resource_version: str = ""


class Event(KubeObject, frozen=True):
    """An event of events.k8s.io/v1."""

    event_time: datetime | None = None
    reporting_controller: str = ""
    reporting_instance: str = ""
    action: str = ""
    reason: str = ""
    note: str = ""
    type: str = ""
    regarding: ObjectReference = field(default_factory=ObjectReference)


class PodGroupSpec(Fields, frozen=True):
    """The size of a gang and the time it may take to schedule."""

    min_member: int = 1
    schedule_timeout_seconds: int | None = None


class PodGroup(KubeObject, frozen=True):
    """A gang (scheduling.x-k8s.io/v1alpha1)."""

    all_annotations: ClassVar[bool] = False
    spec: PodGroupSpec = field(default_factory=PodGroupSpec)


class GangPolicy(Fields, frozen=True):
    """The size of a native gang."""

    min_count: int = 1


class SchedulingPolicy(Fields, frozen=True):
    """How the pods of a native PodGroup are scheduled; without `gang`, one by one."""

    gang: GangPolicy | None = None


class NativePodGroupSpec(Fields, frozen=True):
    """The spec of a native PodGroup."""

    scheduling_policy: SchedulingPolicy = field(default_factory=SchedulingPolicy)


class NativePodGroup(KubeObject, frozen=True):
    """A group of pods (scheduling.k8s.io), which pods name in `spec.schedulingGroup`."""

    all_annotations: ClassVar[bool] = False
    spec: NativePodGroupSpec = field(default_factory=NativePodGroupSpec)


class LabelSelector(Fields, frozen=True):
    """A selector of labels; all of its requirements must be met."""

    match_labels: Mapping[str, str] = EMPTY
    match_expressions: tuple[NodeSelectorRequirement, ...] = ()


class PodDisruptionBudgetSpec(Fields, frozen=True):
    """The pods of a disruption budget."""

    selector: LabelSelector | None = None


class PodDisruptionBudgetStatus(Fields, frozen=True):
    """The number of pods that may be evicted now."""

    disruptions_allowed: int = 0


class PodDisruptionBudget(KubeObject, frozen=True):
    """A disruption budget (policy/v1)."""

    spec: PodDisruptionBudgetSpec = field(default_factory=PodDisruptionBudgetSpec)
    status: PodDisruptionBudgetStatus = field(default_factory=PodDisruptionBudgetStatus)


class EndpointConditions(Fields, frozen=True):
    """Whether an endpoint takes traffic; None counts as ready."""

    ready: bool | None = None


_NO_CONDITIONS = EndpointConditions()


class Endpoint(Fields, frozen=True):
    """A pod behind a Service."""

    addresses: tuple[str, ...] = ()
    conditions: EndpointConditions = _NO_CONDITIONS
    node_name: str = ""


class EndpointPort(Fields, frozen=True):
    """A port of all endpoints of a slice."""

    name: str = ""
    port: int | None = None


class EndpointSlice(KubeObject, frozen=True):
    """Some of the pods behind a Service."""

    endpoints: tuple[Endpoint, ...] | None = None
    ports: tuple[EndpointPort, ...] | None = None
