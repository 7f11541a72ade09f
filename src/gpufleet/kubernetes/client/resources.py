"""Kinds of objects: their API path and the type they decode to.

Decoders are built once per type. `complete` marks types with every field of their kind: only
those may be replaced, since replacing a partial object would delete the fields that were not read.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Generic, TypeVar, cast
from urllib.parse import quote

import msgspec

from gpufleet.kubernetes.client.errors import Status
from gpufleet.kubernetes.crds import GROUP, VERSION
from gpufleet.kubernetes.crds.gpu_claim import GpuClaim
from gpufleet.kubernetes.crds.gpu_node_status import GpuNodeStatus
from gpufleet.kubernetes.crds.gpu_queue import GpuQueue
from gpufleet.kubernetes.crds.gpu_repair import GpuRepair
from gpufleet.kubernetes.objects import (
    EndpointSlice,
    Event,
    Job,
    KubeObject,
    Lease,
    NativePodGroup,
    Node,
    Pod,
    PodDisruptionBudget,
    PodGroup,
)
from gpufleet.kubernetes.resource_claims import (
    DeviceClass,
    ResourceClaim,
    ResourceClaimTemplate,
    ResourceSlice,
)

T = TypeVar("T", bound=KubeObject)


class ListMeta(msgspec.Struct, frozen=True, rename="camel"):
    """The resource version of a list and the token for its next page."""

    resource_version: str = ""
    continue_: str = msgspec.field(default="", name="continue")


class ObjectList(msgspec.Struct, Generic[T], frozen=True):
    """A page of a list on the wire."""

    metadata: ListMeta = ListMeta()
    items: list[T] | None = None


class RawList(msgspec.Struct, frozen=True):
    """A page whose items are not decoded."""

    metadata: ListMeta = ListMeta()
    items: list[msgspec.Raw] | None = None


class Added(msgspec.Struct, Generic[T], frozen=True, gc=False, tag="ADDED"):
    """A watch event: the object is new."""

    object: T


class Modified(msgspec.Struct, Generic[T], frozen=True, gc=False, tag="MODIFIED"):
    """A watch event: the object has changed."""

    object: T


class Deleted(msgspec.Struct, Generic[T], frozen=True, gc=False, tag="DELETED"):
    """A watch event: the object is deleted; `object` is its last state."""

    object: T


class Bookmark(msgspec.Struct, frozen=True, gc=False, tag="BOOKMARK"):
    """A watch event that only carries the current resource version."""

    object: KubeObject


class Failed(msgspec.Struct, frozen=True, tag="ERROR"):
    """A watch event: the watch ends with this error."""

    object: Status


@dataclass(frozen=True)
class Resource(Generic[T]):
    """A kind: its API path and the type that its objects decode to."""

    group: str
    version: str
    plural: str
    kind: str
    type: type[T]
    namespaced: bool = True
    complete: bool = False

    @property
    def api_version(self) -> str:
        """Return the `apiVersion` as manifests spell it."""
        return f"{self.group}/{self.version}" if self.group else self.version

    def path(self, namespace: str = "", name: str = "", subresource: str = "") -> str:
        """Return the URL path of one object, of a namespace, or of all objects."""
        if name and self.namespaced and not namespace:
            raise ValueError(f"{self.kind} {name} needs a namespace")
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        scope = f"/namespaces/{quote(namespace, safe='')}" if namespace and self.namespaced else ""
        parts = [self.plural, *(quote(part, safe="") for part in (name, subresource) if part)]
        return f"{root}{scope}/{'/'.join(parts)}"

    def encode(self, item: T) -> bytes:
        """Encode the object with its `apiVersion` and `kind`, which the types leave out."""
        head = msgspec.json.encode({"apiVersion": self.api_version, "kind": self.kind})
        body = msgspec.json.encode(item)
        return head if body == b"{}" else head[:-1] + b"," + body[1:]

    @property
    def decoder(self) -> "msgspec.json.Decoder[T]":
        """Return the decoder of one object."""
        return cast("msgspec.json.Decoder[T]", _decoder(self.type))

    @property
    def list_decoder(self) -> "msgspec.json.Decoder[ObjectList[T]]":
        """Return the decoder of a page of a list."""
        return cast("msgspec.json.Decoder[ObjectList[T]]", _list_decoder(self.type))

    @property
    def event_decoder(
        self,
    ) -> "msgspec.json.Decoder[Added[T] | Modified[T] | Deleted[T] | Bookmark | Failed]":
        """Return the decoder of watch events."""
        return _event_decoder(self.type)


@lru_cache(maxsize=256)
def _decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(kind)


@lru_cache(maxsize=256)
def _list_decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(ObjectList[kind])


@lru_cache(maxsize=256)
def _event_decoder(kind: Any) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(Added[kind] | Modified[kind] | Deleted[kind] | Bookmark | Failed)


NODES = Resource("", "v1", "nodes", "Node", Node, namespaced=False)
PODS = Resource("", "v1", "pods", "Pod", Pod)
LEASES = Resource("coordination.k8s.io", "v1", "leases", "Lease", Lease, complete=True)
ENDPOINT_SLICES = Resource("discovery.k8s.io", "v1", "endpointslices", "EndpointSlice", EndpointSlice)
EVENTS = Resource("events.k8s.io", "v1", "events", "Event", Event)
POD_GROUPS = Resource("scheduling.x-k8s.io", "v1alpha1", "podgroups", "PodGroup", PodGroup)
NATIVE_POD_GROUPS, *OLDER_NATIVE_POD_GROUPS = (
    Resource("scheduling.k8s.io", version, "podgroups", "PodGroup", NativePodGroup)
    for version in ("v1beta1", "v1alpha3", "v1alpha2")
)
"""Kubernetes 1.36 has them as v1alpha2; the feature gate GenericWorkload and the version must be enabled."""
POD_DISRUPTION_BUDGETS = Resource(
    "policy", "v1", "poddisruptionbudgets", "PodDisruptionBudget", PodDisruptionBudget
)
GPU_CLAIMS = Resource(GROUP, VERSION, "gpuclaims", "GpuClaim", GpuClaim, complete=True)
GPU_NODE_STATUSES = Resource(
    GROUP, VERSION, "gpunodestatuses", "GpuNodeStatus", GpuNodeStatus, namespaced=False, complete=True
)
GPU_QUEUES = Resource(GROUP, VERSION, "gpuqueues", "GpuQueue", GpuQueue, namespaced=False, complete=True)
NAMESPACES = Resource("", "v1", "namespaces", "Namespace", KubeObject, namespaced=False)
LOCAL_QUEUES, *OLDER_LOCAL_QUEUES = (
    Resource("kueue.x-k8s.io", version, "localqueues", "LocalQueue", KubeObject)
    for version in ("v1beta2", "v1beta1")
)
GPU_REPAIRS = Resource(GROUP, VERSION, "gpurepairs", "GpuRepair", GpuRepair, namespaced=False, complete=True)
JOBS = Resource("batch", "v1", "jobs", "Job", Job)
RESOURCE_CLAIMS = Resource("resource.k8s.io", "v1", "resourceclaims", "ResourceClaim", ResourceClaim)
RESOURCE_SLICES = Resource(
    "resource.k8s.io", "v1", "resourceslices", "ResourceSlice", ResourceSlice, namespaced=False
)
RESOURCE_CLAIM_TEMPLATES = Resource(
    "resource.k8s.io", "v1", "resourceclaimtemplates", "ResourceClaimTemplate", ResourceClaimTemplate
)
DEVICE_CLASSES = Resource(
    "resource.k8s.io", "v1", "deviceclasses", "DeviceClass", DeviceClass, namespaced=False
)
DEVICE_TAINT_RULES, *OLDER_DEVICE_TAINT_RULES = (
    Resource("resource.k8s.io", version, "devicetaintrules", "DeviceTaintRule", KubeObject, namespaced=False)
    for version in ("v1", "v1beta2", "v1alpha3")
)
"""v1 from Kubernetes 1.37; before that the feature gate DRADeviceTaintRules and the version must be enabled."""
