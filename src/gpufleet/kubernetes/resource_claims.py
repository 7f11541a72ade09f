"""ResourceClaims, ResourceSlices, templates and DeviceClasses of dynamic resource allocation (`resource.k8s.io/v1`).

A driver publishes the devices of a node in ResourceSlices. A ResourceClaim names devices of them in
`status.allocation`; pods that use the claim get these devices. `claimed_gpus.py` finds the GPUs behind them.
Only the fields that gpufleet reads are here.
"""

from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import Any

from msgspec import field

from gpufleet.kubernetes.annotations import SHARE
from gpufleet.kubernetes.objects import EMPTY, Fields, KubeObject, NodeSelector, Pod

NVIDIA_DRIVER = "gpu.nvidia.com"
AMD_DRIVER = "gpu.amd.com"
AGENT_DRIVER = "gpu.scheduling"
"""The agent's own driver, for nodes without a vendor's."""
GPU_DRIVERS = frozenset({NVIDIA_DRIVER, AMD_DRIVER, AGENT_DRIVER, "gpu.intel.com", "gpu.example.com"})
"""Drivers whose devices are GPUs: those of the vendors, and the example driver of Kubernetes."""

DEVICE_CLASS = "claims.gpu.scheduling"
"""Our DeviceClass. It matches no device, so that kube-scheduler allocates none: gpufleet's planner does."""

POD_CLAIM = "gpu-claim"
"""The name that a pod has for the ResourceClaim of its GpuClaim."""

OWNER_TAINT = "gpu.scheduling/claims"
"""Key of the taint on devices that belong to GpuClaims; kube-scheduler does not allocate them to other claims."""

EXTENDED_RESOURCE_CLAIM = "resource.kubernetes.io/extended-resource-claim"
"""On a claim that kube-scheduler makes for a pod that requests an extended resource of a DeviceClass."""


class Attribute(Fields, frozen=True):
    """The value of a device's attribute; one of the fields is set."""

    text: str | None = field(default=None, name="string")
    number: int | None = field(default=None, name="int")
    version: str | None = None


class Capacity(Fields, frozen=True):
    """An amount that a device has, such as memory, as a Kubernetes quantity."""

    value: str = ""


_NO_ATTRIBUTES: Mapping[str, Attribute] = MappingProxyType({})
_NO_CAPACITY: Mapping[str, Capacity] = MappingProxyType({})


class DeviceTaint(Fields, frozen=True):
    """A taint of a device."""

    key: str = ""
    effect: str = ""


class Device(Fields, frozen=True):
    """A device of a ResourceSlice."""

    name: str = ""
    attributes: Mapping[str, Attribute] = _NO_ATTRIBUTES
    capacity: Mapping[str, Capacity] = _NO_CAPACITY
    node_name: str = ""
    allow_multiple_allocations: bool = False
    taints: tuple[DeviceTaint, ...] = ()


class Pool(Fields, frozen=True):
    """The pool of a slice; only slices of its highest generation are valid."""

    name: str = ""
    generation: int = 0


class ResourceSliceSpec(Fields, frozen=True):
    """Devices of one driver and pool."""

    driver: str = ""
    pool: Pool = field(default_factory=Pool)
    node_name: str = ""
    devices: tuple[Device, ...] = ()


class ResourceSlice(KubeObject, frozen=True):
    """Devices that a driver publishes."""

    spec: ResourceSliceSpec = field(default_factory=ResourceSliceSpec)


class ExactRequest(Fields, frozen=True):
    """The class and the number of the requested devices."""

    device_class_name: str = ""
    count: int = 1


class DeviceRequest(Fields, frozen=True):
    """A request of a claim; with alternatives, `exactly` is None."""

    name: str = ""
    exactly: ExactRequest | None = None


class ClaimDeviceRequests(Fields, frozen=True):
    """The requests of a claim."""

    requests: tuple[DeviceRequest, ...] = ()


class ResourceClaimSpec(Fields, frozen=True):
    """What a claim requests."""

    devices: ClaimDeviceRequests = field(default_factory=ClaimDeviceRequests)


class AllocatedDevice(Fields, frozen=True):
    """A device that a claim has. With `admin_access` it is also the device of others."""

    request: str = ""
    driver: str = ""
    pool: str = ""
    device: str = ""
    admin_access: bool = False
    share_id: str = field(default="", name="shareID")
    consumed_capacity: Mapping[str, str] = EMPTY


class AllocatedDevices(Fields, frozen=True):
    """The devices of an allocation."""

    results: tuple[AllocatedDevice, ...] = ()


class ClaimAllocation(Fields, frozen=True):
    """The devices of a claim and the nodes on which they can be used."""

    devices: AllocatedDevices = field(default_factory=AllocatedDevices)
    node_selector: NodeSelector | None = None
    allocation_timestamp: datetime | None = None

    @property
    def node(self) -> str:
        """Return the only node of the allocation, or an empty string."""
        terms = self.node_selector.node_selector_terms if self.node_selector else ()
        for each in terms[0].match_fields if len(terms) == 1 else ():
            if each.key == "metadata.name" and each.operator == "In" and len(each.values) == 1:
                return each.values[0]
        return ""


class Consumer(Fields, frozen=True):
    """A pod that may use the devices of a claim."""

    resource: str = ""
    name: str = ""
    uid: str = ""


class ResourceClaimStatus(Fields, frozen=True):
    """The allocation of a claim, and the pods that use it."""

    allocation: ClaimAllocation | None = None
    reserved_for: tuple[Consumer, ...] = ()


class ResourceClaim(KubeObject, frozen=True):
    """A claim for devices."""

    spec: ResourceClaimSpec = field(default_factory=ResourceClaimSpec)
    status: ResourceClaimStatus = field(default_factory=ResourceClaimStatus)

    @property
    def devices(self) -> tuple[AllocatedDevice, ...]:
        """Return the devices that the claim has; those with administrative access belong to others."""
        allocation = self.status.allocation
        return (
            tuple(each for each in allocation.devices.results if not each.admin_access) if allocation else ()
        )

    @property
    def class_names(self) -> frozenset[str]:
        """Return the DeviceClasses that the claim requests devices of."""
        exact = (request.exactly for request in self.spec.devices.requests)
        return frozenset(each.device_class_name for each in exact if each is not None)

    @property
    def shared_milli(self) -> int | None:
        """Return the part of each device that a claim of ours has, in thousandths, if it is shared."""
        share = self.metadata.annotations.get(SHARE, "") if DEVICE_CLASS in self.class_names else ""
        return int(share) if share.isascii() and share.isdigit() else None

    @property
    def pod_uids(self) -> tuple[str, ...]:
        """Return the pods that use the claim; for one of a template that no pod has reserved yet, its owner."""
        users = tuple(each.uid for each in self.status.reserved_for if each.resource == "pods")
        return users or tuple(each.uid for each in self.metadata.owner_references if each.kind == "Pod")


class ResourceClaimTemplate(KubeObject, frozen=True):
    """A template from which kube-controller-manager makes a claim for each pod; only its metadata is read."""


class DeviceClass(KubeObject, frozen=True):
    """A class of devices; only its metadata is read."""


def template_name(count: int, shared_milli: int | None = None) -> str:
    """Return the name of the template for so many GPUs, or the same part of each."""
    return f"{POD_CLAIM}-{count}" + ("" if shared_milli is None else f"-share-{shared_milli}")


def template_of_claim(claim: str) -> str:
    """Return the name of the template for pods that were created before their GpuClaim, whose count is not known."""
    return f"{POD_CLAIM}-of-{claim}"


def is_delivered_by_claim(pod: Pod) -> bool:
    """Return whether a ResourceClaim brings the pod the GPUs of its GpuClaim (mode `dra`)."""
    return any(
        each.name == POD_CLAIM and each.resource_claim_template_name.startswith(POD_CLAIM)
        for each in pod.spec.resource_claims
    )


def claim_names(pod: Pod) -> tuple[str, ...]:
    """Return the ResourceClaims in the pod's namespace that it uses, as far as they exist."""
    made = {each.name: each.resource_claim_name for each in pod.status.resource_claim_statuses}
    named = [each.resource_claim_name or made.get(each.name) for each in pod.spec.resource_claims]
    extended = pod.status.extended_resource_claim_status
    if extended is not None:
        named.append(extended.resource_claim_name)
    return tuple(dict.fromkeys(name for name in named if name))


def allocation_manifest(node: str, results: tuple[AllocatedDevice, ...], now: datetime) -> dict[str, Any]:
    """Return the `status.allocation` to write.

    Without `allocationTimestamp` kube-scheduler would try to add one for ever, and the field can't be changed.
    """
    entries = []
    for each in results:
        entry: dict[str, Any] = {
            "request": each.request,
            "driver": each.driver,
            "pool": each.pool,
            "device": each.device,
        }
        if each.share_id:
            entry |= {"shareID": each.share_id, "consumedCapacity": dict(each.consumed_capacity)}
        entries.append(entry)
    at_node = {"key": "metadata.name", "operator": "In", "values": [node]}
    return {
        "devices": {"results": entries},
        "nodeSelector": {"nodeSelectorTerms": [{"matchFields": [at_node]}]},
        "allocationTimestamp": now.replace(microsecond=0).isoformat().replace("+00:00", "Z"),
    }
