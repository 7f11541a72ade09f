"""Turn an observation into the status of a GpuNodeStatus, and back.

A status holds nothing that changes all the time, such as temperatures or the time of the last read. Two
statuses differ only if something happened, and only then one is written.
"""

from collections.abc import Collection, Iterable, Mapping
from datetime import UTC, datetime
from types import MappingProxyType
from typing import Literal

from gpufleet.agent.monitor import Observation, PreviousState
from gpufleet.gpus.health import HealthVerdict, OpenFinding
from gpufleet.gpus.rules import Finding, Remedy, Scope, Severity
from gpufleet.gpus.topology import GpuPosition
from gpufleet.kubernetes.annotations import RELEASE_DRIVER
from gpufleet.kubernetes.crds.gpu_claim import MOST_GPUS
from gpufleet.kubernetes.crds.gpu_node_status import (
    DeviceStatus,
    FindingStatus,
    GpuNodeStatus,
    MigInstanceStatus,
    NodeGpus,
)
from gpufleet.model import device as driver
from gpufleet.model.gpu_models import canonical_model
from gpufleet.model.node import Health

Holders = Mapping[int, Collection[str]]
"""UIDs of the pods that hold each GPU, by id."""

_UNKNOWN = HealthVerdict(Health.UNKNOWN, "", 0.0)
_MAX_REASON_LENGTH = 1024
_MAX_FINDINGS = 256
_SEVERITIES: dict[Severity, Literal["Warning", "Degraded", "Unhealthy"]] = {
    Severity.WARNING: "Warning",
    Severity.DEGRADED: "Degraded",
    Severity.UNHEALTHY: "Unhealthy",
}


def node_gpus(
    observation: Observation,
    holders: Holders,
    cordoned: Collection[int] = (),
    draining: Holders = MappingProxyType({}),
    kernel_log: str = "",
) -> NodeGpus:
    """Return the status of the node. Cordoned GPUs are not free; the field `cordoned` itself is the operator's.

    `draining` are the pods that are gone but still have processes on a GPU.
    """
    devices = tuple(
        _device(
            device,
            observation.positions.get(device.uuid),
            observation.verdicts.get(device.uuid, _UNKNOWN),
            holders.get(device.index, ()),
            draining.get(device.index, ()),
            observation.links.get(device.uuid, 0),
        )
        for device in observation.devices[:MOST_GPUS]
        if device.index < MOST_GPUS
    )
    healthy = [device for device in devices if device.health == "Healthy"]
    free = [
        device
        for device in healthy
        if not device.in_use_by and not device.draining_pods and device.id not in cordoned
    ]
    worst_first = sorted(observation.findings, key=lambda each: -each.finding.severity)
    return NodeGpus(
        devices,
        len(devices),
        len(free),
        len(devices) - len(healthy),
        tuple(_finding(each) for each in worst_first[:_MAX_FINDINGS]),
        tuple(sorted(observation.ports)),
        kernel_log,
    )


def _finding(each: OpenFinding) -> FindingStatus:
    found = each.finding
    return FindingStatus(
        signal=found.key,
        severity=_SEVERITIES[found.severity],
        scope=found.scope.value,
        message=found.reason[:_MAX_REASON_LENGTH],
        action=found.remedy.value,
        gpu=each.gpu,
        since=datetime.fromtimestamp(int(each.since), UTC),
    )


def _device(
    device: driver.Device,
    position: GpuPosition | None,
    verdict: HealthVerdict,
    holders: Collection[str],
    draining: Collection[str],
    links: int,
) -> DeviceStatus:
    return DeviceStatus(
        id=device.index,
        in_use_by=tuple(sorted(holders)),
        draining_pods=tuple(sorted(draining)),
        health=verdict.health.value,
        bandwidth_gbps=position.bandwidth_gbps if position else 0,
        island=position.island if position else "",
        uuid=device.uuid,
        vendor=device.vendor.value,
        model=canonical_model(device.model or ""),
        memory_mib=device.memory_bytes // 2**20 if device.memory_bytes else None,
        pci_bus_id=device.pci_bus_id or "",
        numa_node=device.numa_node,
        health_reason=verdict.reason[:_MAX_REASON_LENGTH],
        health_since=datetime.fromtimestamp(int(verdict.since), UTC) if verdict.since else None,
        mig_instances=tuple(MigInstanceStatus(part.index, part.profile, part.uuid) for part in device.mig),
        nvlinks=links,
    )


def previous_state(status: GpuNodeStatus) -> PreviousState:
    """Return what an earlier agent published."""
    known = [device for device in status.status.devices if device.uuid and device.vendor in ("nvidia", "amd")]
    return PreviousState(
        devices=tuple(_driver_device(device) for device in known),
        positions={device.uuid: GpuPosition(device.island, device.bandwidth_gbps) for device in known},
        health={
            device.uuid: HealthVerdict(
                Health(device.health), device.health_reason, device.health_since.timestamp()
            )
            for device in known
            if device.health_since is not None
        },
        ports=frozenset(status.status.network_ports),
        links={device.uuid: device.nvlinks for device in known},
        switch_error=next(
            (_switch_error(each) for each in status.status.findings if each.signal == "sxid"), None
        ),
    )


def released_until(status: GpuNodeStatus | None) -> float:
    """Return until when the driver must stay closed; 0 if it need not."""
    text = status.metadata.annotations.get(RELEASE_DRIVER, "") if status else ""
    try:
        return datetime.fromisoformat(text).timestamp() if text else 0.0
    except ValueError:
        return 0.0


def _switch_error(status: FindingStatus) -> OpenFinding:
    since = status.since.timestamp() if status.since else 0.0
    found = Finding("sxid", Severity.UNHEALTHY, status.message, Remedy(status.action), Scope.ISLAND)
    return OpenFinding(None, found, since, since)


def _driver_device(device: DeviceStatus) -> driver.Device:
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


def cordoned_ids(devices: Iterable[DeviceStatus]) -> frozenset[int]:
    """Return the ids of the GPUs that an operator has cordoned."""
    return frozenset(device.id for device in devices if device.cordoned)
