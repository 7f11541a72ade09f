"""Convert Kubernetes nodes and GpuNodeStatus objects to the types of the fleet."""

import re

from gpufleet.kubernetes.crds.gpu_node_status import DeviceStatus, GpuNodeStatus
from gpufleet.kubernetes.gpu_requests import INTEL, MIG, TIME_SLICED, WHOLE, hami_gpus
from gpufleet.kubernetes.model_labels import model_in
from gpufleet.kubernetes.objects import Node
from gpufleet.kubernetes.quantities import parse_count
from gpufleet.model.node import FleetGpu, FleetNode, Health, NodeDevices


def node_from(node: Node, fault_taints: tuple[str, ...] = ()) -> FleetNode:
    """Convert a node; a taint in `fault_taints` marks it as faulty."""
    ready = next((c for c in node.status.conditions if c.type == "Ready"), None)
    labels = dict(node.metadata.labels)
    count, vendor, missing = _gpus(node, labels)
    tainted = next((taint.key for taint in node.spec.taints if taint.key in fault_taints), "")
    fault = f"taint {tainted}" if tainted else ""
    if not fault and missing:
        fault = f"{missing} of {count} GPUs not allocatable"
    is_ready = ready is not None and ready.status == "True"
    return FleetNode(
        name=node.metadata.name,
        aliases=tuple(a.address for a in node.status.addresses if a.address != node.metadata.name),
        ready=is_ready,
        not_ready_reason=""
        if is_ready
        else _not_ready_reason(ready.reason, ready.message)
        if ready
        else "no Ready condition",
        cordoned=node.spec.unschedulable,
        fault=fault,
        labels=labels,
        gpu_count=count,
        gpu_model=model_in(labels),
        vendor=vendor,
        created=node.metadata.creation_timestamp.timestamp() if node.metadata.creation_timestamp else 0.0,
    )


def devices_from(status: GpuNodeStatus) -> NodeDevices:
    """Convert the GPUs that the agent of the node reports."""
    return NodeDevices(
        node=status.spec.node_name,
        gpus=tuple(_gpu(device) for device in sorted(status.status.devices, key=lambda d: d.id)),
        total=status.status.total,
    )


def mig_profiles(status: GpuNodeStatus | None) -> dict[tuple[int, str], str]:
    """Return the profile of each MIG instance of a node by GPU and instance id."""
    return {
        (device.id, str(instance.id)): instance.profile
        for device in (status.status.devices if status else ())
        for instance in device.mig_instances
    }


def _not_ready_reason(reason: str, message: str) -> str:
    return f"node is not Ready: {message or reason or 'no reason given'}"


def _gpus(node: Node, labels: dict[str, str]) -> tuple[int, str, int]:
    """Return the number of physical GPUs, their vendor, and how many of them are not allocatable."""
    capacity, allocatable = node.status.capacity, node.status.allocatable
    if registered := hami_gpus(node.metadata.annotations):
        return len(registered), "nvidia", 0  # HAMi advertises the parts into which it may split GPUs
    physical = parse_count(labels.get("nvidia.com/gpu.count", ""))
    sliced = parse_count(labels.get("nvidia.com/gpu.replicas", "")) > 1 or TIME_SLICED in capacity
    partitioned = any(MIG.fullmatch(name) and parse_count(amount) for name, amount in capacity.items())
    if physical and (sliced or partitioned):
        # Time-sliced and MIG nodes advertise slices; GPU feature discovery labels count the GPUs.
        return physical, "nvidia", 0
    for name in (*WHOLE, *(name for name in capacity if INTEL.fullmatch(name))):
        if count := parse_count(capacity.get(name, "")):
            vendor = re.split(r"[./]", name.removeprefix("gpu."))[0]
            return count, vendor, max(0, count - parse_count(allocatable.get(name, capacity[name])))
    return 0, "", 0


def _gpu(device: DeviceStatus) -> FleetGpu:
    return FleetGpu(
        index=device.id,
        uuid=device.uuid,
        model=device.model,
        vendor=device.vendor or "",
        memory_bytes=device.memory_mib * 1024 * 1024 if device.memory_mib is not None else None,
        island=device.island,
        bandwidth_gbps=device.bandwidth_gbps,
        health=Health(device.health),
        health_reason=device.health_reason,
        health_since=device.health_since.timestamp() if device.health_since else None,
        cordoned=device.cordoned,
        mig_profiles=tuple(instance.profile for instance in device.mig_instances),
        in_use_by=device.in_use_by,
    )
