"""Find the GPUs behind the devices of ResourceClaims.

A device is a GPU of its node's GpuNodeStatus if their UUIDs are equal (NVIDIA), else their PCI addresses (AMD), else,
if nothing contradicts, their indices. A MIG device is an instance of the GPU that it names as its parent. A device
that several claims share by capacity counts with the largest part that is consumed of any of its capacities; a claim of
gpufleet says its part itself, because its device may have no capacity to consume.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from gpufleet.kubernetes.crds.gpu_node_status import DeviceStatus
from gpufleet.kubernetes.quantities import parse_quantity
from gpufleet.kubernetes.resource_claims import (
    GPU_DRIVERS,
    AllocatedDevice,
    Attribute,
    Device,
    ResourceClaim,
    ResourceSlice,
)

WHOLE_MILLI = 1000
"""A whole GPU, in thousandths."""

_PCI = ("pciBusID", "pcieBusID", "pciAddr", "pciAddress")
_Value = TypeVar("_Value")


class DeviceName(NamedTuple):
    """What identifies a device in the cluster."""

    driver: str
    pool: str
    device: str


class PublishedDevice(NamedTuple):
    """A device in a ResourceSlice; `node` is empty if it is not a device of one node."""

    name: DeviceName
    node: str
    device: Device


@dataclass(frozen=True, slots=True)
class ClaimedGpu:
    """A GPU that a claim has on a node, or a part of it.

    `milli` is the part in thousandths, 0 for a MIG instance. `instance` is the id of the MIG instance in the
    GpuNodeStatus; a partition without an entry there has `profile` and no `instance`, and its GPU must be treated
    as taken.
    """

    device: DeviceName
    node: str
    gpu: int
    milli: int = WHOLE_MILLI
    instance: str = ""
    profile: str = ""


class PublishedDevices:
    """The devices of all ResourceSlices; only those of the highest generation of a pool are valid."""

    def __init__(self) -> None:
        self._slices: dict[tuple[str, str], dict[str, ResourceSlice]] = {}
        self._devices: dict[tuple[str, str], dict[str, PublishedDevice]] = {}
        self._pools_of: dict[str, set[tuple[str, str]]] = {}

    def put(self, item: ResourceSlice) -> set[str]:
        """Store a slice; return the nodes whose devices may have changed."""
        pool = _pool(item)
        self._slices.setdefault(pool, {})[item.metadata.name] = item
        return self._rebuild(pool)

    def drop(self, item: ResourceSlice) -> set[str]:
        """Remove a slice; return the nodes whose devices may have changed."""
        pool = _pool(item)
        slices = self._slices.get(pool, {})
        slices.pop(item.metadata.name, None)
        if not slices:
            self._slices.pop(pool, None)
        return self._rebuild(pool)

    def get(self, name: DeviceName) -> PublishedDevice | None:
        """Return a device, if it is published."""
        return self._devices.get((name.driver, name.pool), {}).get(name.device)

    def nodes(self) -> set[str]:
        """Return the nodes that have devices."""
        return set(self._pools_of)

    def on_node(self, node: str) -> Iterator[PublishedDevice]:
        """Return the devices of one node."""
        for pool in sorted(self._pools_of.get(node, ())):
            yield from (each for each in self._devices[pool].values() if each.node == node)

    def drivers(self) -> set[str]:
        """Return the names of the drivers that publish devices."""
        return {driver for driver, _ in self._devices}

    def __iter__(self) -> Iterator[PublishedDevice]:
        for devices in self._devices.values():
            yield from devices.values()

    def _rebuild(self, pool: tuple[str, str]) -> set[str]:
        before = self._devices.pop(pool, {})
        slices = self._slices.get(pool, {}).values()
        newest = max((each.spec.pool.generation for each in slices), default=0)
        devices = {
            device.name: PublishedDevice(
                DeviceName(*pool, device.name), device.node_name or each.spec.node_name, device
            )
            for each in slices
            if each.spec.pool.generation == newest
            for device in each.spec.devices
        }
        if devices:
            self._devices[pool] = devices
        for node in {each.node for each in before.values()}:
            self._pools_of[node].discard(pool)
            if not self._pools_of[node]:
                del self._pools_of[node]
        for node in {each.node for each in devices.values()}:
            self._pools_of.setdefault(node, set()).add(pool)
        return {each.node for each in (*before.values(), *devices.values())} - {""}


def claimed_gpus(
    claim: ResourceClaim, published: PublishedDevices, gpus_of: Callable[[str], Sequence[DeviceStatus]]
) -> list[ClaimedGpu]:
    """Return the GPUs that a claim has; `gpus_of` returns the GPUs of a node. Other devices are left out."""
    allocation = claim.status.allocation
    found = []
    for result in claim.devices:
        device = published.get(name_of(result))
        node = (device.node if device else "") or (allocation.node if allocation else "")
        if device is None or not node:
            continue
        match = find_gpu(device, gpus_of(node))
        if match is not None:
            milli = _milli(claim, result, device.device) if match.milli else 0
            found.append(ClaimedGpu(device.name, node, match.gpu, milli, match.instance, match.profile))
    return found


def find_gpu(published: PublishedDevice, gpus: Sequence[DeviceStatus]) -> ClaimedGpu | None:
    """Return the GPU or MIG instance that a device is, or None if it is none of these GPUs."""
    name, node, device = published
    uuid, parent = text(device, "uuid"), text(device, "parentUUID")
    if parent or text(device, "type") in ("mig", "amdgpu-partition"):
        instances = ((gpu, each) for gpu in gpus for each in gpu.mig_instances)
        for gpu, each in instances:
            if uuid and each.uuid.lower() == uuid.lower():
                return ClaimedGpu(name, node, gpu.id, 0, str(each.id), each.profile)
        profile = text(device, "profile") or text(device, "partitionProfile") or "unknown"
        whole = _find(published, parent, number(device, "parentIndex"), gpus)
        return ClaimedGpu(name, node, whole.id, 0, "", profile) if whole is not None else None
    whole = _find(published, uuid, number(device, "index"), gpus)
    return ClaimedGpu(name, node, whole.id) if whole is not None else None


def _milli(claim: ResourceClaim, result: AllocatedDevice, device: Device) -> int:
    shared = claim.shared_milli
    return consumed_milli(result, device) if shared is None else min(max(shared, 1), WHOLE_MILLI)


def consumed_milli(result: AllocatedDevice, device: Device) -> int:
    """Return the part of a device that an allocation consumes, in thousandths; at least one."""
    parts = [
        parse_quantity(amount) / total
        for key, amount in result.consumed_capacity.items()
        if (has := _of(device.capacity, key)) is not None and (total := parse_quantity(has.value)) > 0
    ]
    return min(max(round(max(parts) * WHOLE_MILLI), 1), WHOLE_MILLI) if parts else WHOLE_MILLI


def name_of(result: AllocatedDevice) -> DeviceName:
    """Return the name of the device in an allocation."""
    return DeviceName(result.driver, result.pool, result.device)


def text(device: Device, name: str) -> str:
    """Return an attribute of a device as text; a driver may qualify its name with a domain."""
    value = _attribute(device, name)
    return (value.text or value.version or "") if value else ""


def number(device: Device, name: str) -> int | None:
    """Return an attribute of a device as a number."""
    value = _attribute(device, name)
    return value.number if value else None


def normal_pci(address: str) -> str:
    """Return a PCI address in the form 0000:1b:00.0; NVML writes the domain with eight digits."""
    domain, _, rest = address.lower().partition(":")
    return f"{domain[-4:]}:{rest}" if rest.count(":") == 1 else f"0000:{address.lower()}" if rest else ""


def _find(
    published: PublishedDevice, uuid: str, index: int | None, gpus: Sequence[DeviceStatus]
) -> DeviceStatus | None:
    pci = normal_pci(_pci_address(published.device))
    for gpu in gpus:
        if uuid and gpu.uuid.lower() == uuid.lower():
            return gpu
    for gpu in gpus:
        if pci and normal_pci(gpu.pci_bus_id) == pci:
            return gpu
    if index is None or published.name.driver not in GPU_DRIVERS:
        # The index of a network card says nothing about GPUs.
        return None
    found = next((gpu for gpu in gpus if gpu.id == index), None)
    if found is None or (uuid and found.uuid) or (pci and found.pci_bus_id):
        return None
    return found


def _pci_address(device: Device) -> str:
    values = (text(device, name) for name in _PCI)
    return next(filter(None, values), "")


def _attribute(device: Device, name: str) -> Attribute | None:
    return _of(device.attributes, name)


def _of(values: Mapping[str, _Value], name: str) -> _Value | None:
    """Return a value by its name, qualified with a domain or not."""
    if name in values:
        return values[name]
    plain = name.rpartition("/")[2]
    return next((value for key, value in values.items() if key.rpartition("/")[2] == plain), None)


def _pool(item: ResourceSlice) -> tuple[str, str]:
    return item.spec.driver, item.spec.pool.name
