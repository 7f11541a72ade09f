"""The fields of Kubernetes objects that gpufleet reads, and no others.

A pod on the wire is 5 to 20 kB; what is kept of it here is a few hundred bytes. Decoders
skip unknown fields without building them, which is where both the speed and the small
memory come from. Every field has a default, so that an object from an older or a thinner
server decodes as well. The structs are frozen, hold tuples instead of lists, share their
empty defaults and are invisible to the garbage collector: they can't form cycles.

A type that holds only part of its kind must never be written back whole: `Resource.whole`
says which may.
"""

from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any

from msgspec import Struct, field
from msgspec.structs import force_setattr

EMPTY: Mapping[str, str] = MappingProxyType({})
"""The one empty mapping that all objects without labels, annotations or requests share."""


class Fields(Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """A part of a Kubernetes object: camelCase on the wire, defaults left out."""


class OwnerReference(Fields, frozen=True):
    """Who an object belongs to; the one with `controller` manages it."""

    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None
    block_owner_deletion: bool | None = None


class ObjectMeta(Fields, frozen=True):
    """What every object has; complete but for `managedFields`, which the server keeps by itself."""

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
        """The owner that manages this object, if there is one."""
        return next((owner for owner in self.owner_references if owner.controller), None)


class KubeObject(Fields, frozen=True):
    """An object of any kind, of which only the metadata is read."""

    metadata: ObjectMeta = field(default_factory=ObjectMeta)


class Condition(Fields, frozen=True):
    """One of an object's conditions; `status` is True, False or Unknown."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: datetime | None = None


class Taint(Fields, frozen=True):
    """What keeps pods off a node."""

    key: str = ""
    value: str = ""
    effect: str = ""


class NodeSpec(Fields, frozen=True):
    """Whether the node takes pods."""

    unschedulable: bool = False
    taints: tuple[Taint, ...] = ()


class NodeAddress(Fields, frozen=True):
    """A name or an address under which the node is reached."""

    type: str = ""
    address: str = ""


class NodeStatusFields(Fields, frozen=True):
    """What the kubelet reports of its node; amounts are Kubernetes quantities."""

    capacity: Mapping[str, str] = EMPTY
    allocatable: Mapping[str, str] = EMPTY
    conditions: tuple[Condition, ...] = ()
    addresses: tuple[NodeAddress, ...] = ()


class Node(KubeObject, frozen=True):
    """A node."""

    spec: NodeSpec = field(default_factory=NodeSpec)
    status: NodeStatusFields = field(default_factory=NodeStatusFields)


class Resources(Fields, frozen=True):
    """What a container asks for and may use, as Kubernetes quantities."""

    requests: Mapping[str, str] = EMPTY
    limits: Mapping[str, str] = EMPTY

    def requested(self, resource: str) -> str:
        """Return the request for a resource, or its limit, which is also the request if that is missing."""
        return self.requests.get(resource) or self.limits.get(resource, "")


_NO_RESOURCES = Resources()


class Container(Fields, frozen=True):
    """A container; an init container with `restart_policy` Always is a sidecar."""

    name: str = ""
    image: str = ""
    resources: Resources = _NO_RESOURCES
    restart_policy: str = ""


class Toleration(Fields, frozen=True):
    """A taint that the pod puts up with."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""


class NodeRequirement(Fields, frozen=True):
    """What a label (or field) of a node has to be."""

    key: str = ""
    operator: str = ""
    values: tuple[str, ...] = ()


class NodeTerm(Fields, frozen=True):
    """Requirements that a node has to meet all of."""

    match_expressions: tuple[NodeRequirement, ...] = ()
    match_fields: tuple[NodeRequirement, ...] = ()


class NodeTerms(Fields, frozen=True):
    """A node has to meet one of these."""

    node_selector_terms: tuple[NodeTerm, ...] = ()


class NodeAffinity(Fields, frozen=True):
    """Where the pod must run; what it would merely like is kube-scheduler's to weigh."""

    required: NodeTerms | None = field(default=None, name="requiredDuringSchedulingIgnoredDuringExecution")


class Affinity(Fields, frozen=True):
    """Which nodes the pod goes to; of affinity between pods nothing is read."""

    node_affinity: NodeAffinity | None = None


class SchedulingGate(Fields, frozen=True):
    """A reason for which the pod must not be scheduled yet."""

    name: str = ""


class PodSpec(Fields, frozen=True):
    """What a pod asks for, and where it runs."""

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
    priority_class_name: str = ""
    preemption_policy: str = ""

    def __post_init__(self) -> None:
        if self.node_name and self.affinity is not None:
            # Of use until the pod has a node; each pod of a DaemonSet has one, half as large as all else of it.
            force_setattr(self, "affinity", None)


class ContainerTerminated(Fields, frozen=True):
    """How a container ended."""

    exit_code: int = 0
    reason: str = ""
    started_at: datetime | None = None
    finished_at: datetime | None = None


class ContainerWaiting(Fields, frozen=True):
    """Why a container does not run yet."""

    reason: str = ""


class ContainerRunning(Fields, frozen=True):
    """Since when a container runs."""

    started_at: datetime | None = None


class ContainerState(Fields, frozen=True):
    """One of the three is set."""

    waiting: ContainerWaiting | None = None
    running: ContainerRunning | None = None
    terminated: ContainerTerminated | None = None


_NO_STATE = ContainerState()


class ContainerStatus(Fields, frozen=True):
    """How one container of a pod is."""

    name: str = ""
    container_id: str = field(default="", name="containerID")
    ready: bool = False
    restart_count: int = 0
    state: ContainerState = _NO_STATE


class PodStatus(Fields, frozen=True):
    """How a pod is."""

    phase: str = ""
    reason: str = ""
    message: str = ""
    pod_ip: str = field(default="", name="podIP")
    nominated_node_name: str = ""
    start_time: datetime | None = None
    conditions: tuple[Condition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()


class Pod(KubeObject, frozen=True):
    """A pod."""

    spec: PodSpec = field(default_factory=PodSpec)
    status: PodStatus = field(default_factory=PodStatus)

    @property
    def finished(self) -> bool:
        """Whether the pod has ended for good and holds nothing any more."""
        return self.status.phase in ("Succeeded", "Failed")


class OwnerSpec(Fields, frozen=True):
    """How many replicas an owner wants, for the kinds that count them."""

    replicas: int | None = None
    parallelism: int | None = None
    completions: int | None = None
    suspend: bool | None = None


class OwnerStatus(Fields, frozen=True):
    """How an owner says it is: conditions, counts, times, by whichever name its kind has."""

    conditions: tuple[Condition, ...] | None = ()
    phase: Any = ""
    active: Any = None
    succeeded: Any = None
    failed: Any = None
    replicas: Any = None
    ready_replicas: Any = None
    available_replicas: Any = None
    number_ready: Any = None
    desired_number_scheduled: Any = None
    job_status: str = ""
    start_time: datetime | None = None
    completion_time: datetime | None = None


class Owner(KubeObject, frozen=True):
    """A workload of any kind (Job, Deployment, PyTorchJob, RayJob, …), as its status shows it."""

    spec: OwnerSpec = field(default_factory=OwnerSpec)
    status: OwnerStatus = field(default_factory=OwnerStatus)


class LeaseSpec(Fields, frozen=True):
    """Who holds a lease, and since when; complete."""

    holder_identity: str | None = None
    lease_duration_seconds: int | None = None
    acquire_time: datetime | None = None
    renew_time: datetime | None = None
    lease_transitions: int | None = None
    strategy: str | None = None
    preferred_holder: str | None = None


class Lease(KubeObject, frozen=True):
    """A lease of coordination.k8s.io; times go out through `micro_time`."""

    spec: LeaseSpec = field(default_factory=LeaseSpec)


def micro_time(moment: datetime) -> datetime:
    """`moment` fit for a MicroTime field: servers before 1.35 insist on six decimals, which a full second lacks."""
    return moment if moment.microsecond else moment.replace(microsecond=1)


class ObjectReference(Fields, frozen=True):
    """Which object an event is about."""

    api_version: str = ""
    kind: str = ""
    namespace: str = ""
    name: str = ""
    uid: str = ""
    resource_version: str = ""


class EventSeries(Fields, frozen=True):
    """How often an event has happened again, and when last."""

    count: int = 0
    last_observed_time: datetime | None = None


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
    series: EventSeries | None = None


class PodGroupSpec(Fields, frozen=True):
    """How many pods make a gang, and how long it may take to place them."""

    min_member: int = 1
    schedule_timeout_seconds: int | None = None


class PodGroup(KubeObject, frozen=True):
    """A gang, as scheduling.x-k8s.io/v1alpha1 has it."""

    spec: PodGroupSpec = field(default_factory=PodGroupSpec)
