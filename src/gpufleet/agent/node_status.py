"""What the agent publishes, made of what it sees: pure, so that equal sights make equal reports.

Nothing in a report moves by itself: no time of the last look, no temperature. Two reports differ
only if something happened, and only then is one written.
"""

from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime

from gpufleet.agent.monitor import MonitorMemory, Observation
from gpufleet.gpus.health import HealthVerdict
from gpufleet.gpus.topology import GpuPosition
from gpufleet.kubernetes.crds.gpu_claim import MOST_GPUS
from gpufleet.kubernetes.crds.gpu_node_status import DeviceStatus, GpuNodeStatus, MigInstanceStatus, NodeGpus
from gpufleet.model import device as driver
from gpufleet.model.node import Health

Holders = Mapping[int, Collection[str]]
"""UIDs of the pods that hold each GPU, by id."""

_UNSEEN = HealthVerdict(Health.UNKNOWN, "", 0.0)
_LONGEST_REASON = 1024


def report(sight: Observation, holders: Holders, cordoned: Collection[int] = ()) -> NodeGpus:
    """The status of the node. `cordoned` is the operator's word: it counts for `free` and is not repeated."""
    devices = tuple(
        _device(
            device,
            sight.places.get(device.uuid),
            sight.verdicts.get(device.uuid, _UNSEEN),
            holders.get(device.index, ()),
        )
        for device in sight.devices[:MOST_GPUS]
        if device.index < MOST_GPUS
    )
    healthy = [device for device in devices if device.health == "Healthy"]
    free = [device for device in healthy if not device.in_use_by and device.id not in cordoned]
    return NodeGpus(devices, len(devices), len(free), len(devices) - len(healthy))


def _device(
    device: driver.Device, place: GpuPosition | None, verdict: HealthVerdict, holders: Collection[str]
) -> DeviceStatus:
    return DeviceStatus(
        id=device.index,
        in_use_by=tuple(sorted(holders)),
        health=verdict.health.value,
        bandwidth_gbps=place.bandwidth_gbps if place else 0,
        island=place.island if place else "",
        uuid=device.uuid,
        vendor=device.vendor.value,
        model=device.model or "",
        memory_mib=device.memory_bytes // 2**20 if device.memory_bytes else None,
        pci_bus_id=device.pci_bus_id or "",
        numa_node=device.numa_node,
        health_reason=verdict.reason[:_LONGEST_REASON],
        health_since=datetime.fromtimestamp(int(verdict.since), UTC) if verdict.since else None,
        mig_instances=tuple(MigInstanceStatus(part.index, part.profile, part.uuid) for part in device.mig),
    )


def memory_of(status: GpuNodeStatus) -> MonitorMemory:
    """What an earlier agent published, for the roll call of this one."""
    known = [device for device in status.status.devices if device.uuid and device.vendor in ("nvidia", "amd")]
    return MonitorMemory(
        devices=tuple(_as_driver_told(device) for device in known),
        places={device.uuid: GpuPosition(device.island, device.bandwidth_gbps) for device in known},
        health={
            device.uuid: HealthVerdict(
                Health(device.health), device.health_reason, device.health_since.timestamp()
            )
            for device in known
            if device.health_since is not None
        },
    )


def _as_driver_told(device: DeviceStatus) -> driver.Device:
    assert device.vendor is not None
    return driver.Device(
        index=device.id,
        uuid=device.uuid,
        vendor=driver.Vendor(device.vendor),
        model=device.model or None,
        memory_bytes=device.memory_mib * 2**20 if device.memory_mib else None,
        pci_bus_id=device.pci_bus_id or None,
        numa_node=device.numa_node,
    )


def cordons(devices: Iterable[DeviceStatus]) -> frozenset[int]:
    """The GPUs that an operator has cordoned."""
    return frozenset(device.id for device in devices if device.cordoned)
