"""Nodes, GpuNodeStatus, namespaces and definitions of a simulated fleet."""

import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import msgspec

from gpufleet.agent.monitor import Observation
from gpufleet.agent.node_status import node_gpus
from gpufleet.demo.objects.claims import GPU_TYPE, POOL
from gpufleet.demo.objects.identities import Json, timestamp
from gpufleet.demo.simulation.hardware import BUILT, XID, Hardware, Machine, new_uid
from gpufleet.demo.simulation.teams import TEAMS
from gpufleet.gpus.health import HealthTracker
from gpufleet.gpus.rules import finding
from gpufleet.gpus.topology import gpu_positions
from gpufleet.model.device import Device, DeviceEvent, EventKind, Link, LinkKind, MigInstance, Vendor
from gpufleet.repair.node_marks import TAINT


def team_namespaces() -> list[Json]:
    """Return the namespaces of the teams."""
    namespaces = [
        {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": {
                "name": team.namespace,
                "uid": new_uid(random.Random(team.namespace)),  # noqa: S311  (a simulation, no secret)
                "creationTimestamp": timestamp(BUILT),
                "labels": {"team": team.name},
                "annotations": {"finance/cost-center": team.cost_center},
            },
            "status": {"phase": "Active"},
        }
        for team in TEAMS
    ]
    return namespaces


def custom_resource_definitions() -> list[Json]:
    """Return minimal definitions of PyTorchJob and PodGroup."""
    state = {"name": "State", "type": "string", "jsonPath": ".status.conditions[-1:].type"}
    members = {"name": "Members", "type": "integer", "jsonPath": ".spec.minMember"}
    return [
        _definition("kubeflow.org", "v1", "PyTorchJob", state),
        _definition("scheduling.x-k8s.io", "v1alpha1", "PodGroup", members),
    ]


def _definition(group: str, version: str, kind: str, column: Json) -> Json:
    anything = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    singular = kind.lower()
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{singular}s.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {
                "kind": kind,
                "listKind": f"{kind}List",
                "plural": f"{singular}s",
                "singular": singular,
            },
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": True,
                    "subresources": {"status": {}},
                    "additionalPrinterColumns": [
                        column,
                        {"name": "Age", "type": "date", "jsonPath": ".metadata.creationTimestamp"},
                    ],
                    "schema": {
                        "openAPIV3Schema": {
                            "type": "object",
                            "properties": {"spec": anything, "status": anything},
                        }
                    },
                }
            ],
        },
    }


def node(machine: Machine, hardware: Hardware, at: float, pool: str = "") -> Json:
    """Return the Node object of a machine at a time."""
    model = machine.model
    down = hardware.is_down(machine, at)
    labels = {
        "kubernetes.io/hostname": machine.name,
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/os": "linux",
        "topology.kubernetes.io/zone": f"eu-1{machine.zone}",
        "topology.kubernetes.io/rack": machine.rack,
        GPU_TYPE: model.short,
        f"{model.vendor}.com/gpu.product{'-name' if model.vendor == 'amd' else ''}": model.name.replace(
            " ", "-"
        ),
    }
    if pool:
        labels[POOL] = pool
    if machine.mig_gpus:
        labels[f"{model.vendor}.com/gpu.count"] = str(machine.gpus)
    capacity = {"cpu": "192", "memory": "2113456000Ki", "pods": "110", **_plugin_resources(machine)}
    spec: Json = {}
    if hardware.is_cordoned(machine):
        spec = {
            "unschedulable": True,
            "taints": [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}],
        }
    if hardware.lost_gpu(machine, at) is not None:
        spec = {"taints": [{"key": TAINT.key, "value": TAINT.value, "effect": TAINT.effect}]}
    if down:
        spec = {"taints": [{"key": "node.kubernetes.io/unreachable", "effect": "NoSchedule"}]}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": machine.name,
            "uid": machine.uid,
            "creationTimestamp": timestamp(machine.created),
            "labels": labels,
        },
        "spec": spec,
        "status": {
            "capacity": capacity,
            "allocatable": capacity,
            "addresses": [
                {"type": "InternalIP", "address": machine.address},
                {"type": "Hostname", "address": machine.name},
            ],
            "conditions": [_ready(machine, hardware, at)],
            "nodeInfo": _INFO,
        },
    }


_INFO = {
    "architecture": "amd64",
    "bootID": "",
    "containerRuntimeVersion": "containerd://2.1.4",
    "kernelVersion": "6.8.0-64-generic",
    "kubeProxyVersion": "",
    "kubeletVersion": "v1.34.1",
    "machineID": "",
    "operatingSystem": "linux",
    "osImage": "Ubuntu 24.04.3 LTS",
    "systemUUID": "",
}


def _plugin_resources(machine: Machine) -> dict[str, str]:
    """Return what the device plugin offers: whole GPUs, and MIG instances by profile."""
    profiles = Counter(part.profile for gpu in range(machine.mig_gpus) for part in machine.mig_parts(gpu))
    vendor = machine.model.vendor
    return {
        machine.model.resource: str(machine.gpus - machine.mig_gpus),
        **{f"{vendor}.com/mig-{profile}": str(count) for profile, count in profiles.items()},
    }


def _ready(machine: Machine, hardware: Hardware, at: float) -> Json:
    if hardware.is_down(machine, at):
        return {
            "type": "Ready",
            "status": "Unknown",
            "reason": "NodeStatusUnknown",
            "message": "Kubelet stopped posting node status.",
            "lastTransitionTime": timestamp(hardware.out_since(machine, at)),
        }
    return {
        "type": "Ready",
        "status": "True",
        "reason": "KubeletReady",
        "message": "kubelet is posting ready status",
        "lastTransitionTime": timestamp(machine.created),
    }


def gpu_node_status(
    machine: Machine, hardware: Hardware, at: float, users: Mapping[int, Sequence[str]]
) -> Json:
    """Return the GpuNodeStatus that the agent of a machine publishes; `users` has the pod uids of each GPU.

    The agent of a node that is down publishes nothing, so the last status stays.
    """
    devices = gpu_devices(machine, hardware, at)
    tracker = _health(machine, hardware, at, devices)
    observation = Observation(
        devices, gpu_positions(devices), tracker.verdicts(), tuple(tracker.open_findings())
    )
    status: Json = msgspec.to_builtins(node_gpus(observation, users))
    return {
        "apiVersion": "gpu.scheduling/v1",
        "kind": "GpuNodeStatus",
        "metadata": {
            "name": machine.name,
            "uid": new_uid(random.Random(machine.uid)),  # noqa: S311  (a simulation, no secret)
            "creationTimestamp": timestamp(machine.created),
        },
        "spec": {"nodeName": machine.name},
        "status": status,
    }


def gpu_devices(machine: Machine, hardware: Hardware, at: float) -> tuple[Device, ...]:
    """Return the GPUs of a machine as its driver reports them."""
    lost = hardware.lost_gpu(machine, at)
    return tuple(_device(machine, gpu, lost=gpu == lost) for gpu in range(machine.gpus))


def _device(machine: Machine, gpu: int, *, lost: bool) -> Device:
    model, peers, parts = machine.model, machine.peers(gpu), machine.mig_parts(gpu)
    kind = LinkKind.XGMI if model.vendor == Vendor.AMD else LinkKind.NVLINK
    bandwidth = model.bandwidth_gbps / max(1, len(peers))
    return Device(
        index=gpu,
        uuid=machine.uuids[gpu],
        vendor=Vendor(model.vendor),
        model=model.name,
        memory_bytes=model.memory_bytes,
        pci_bus_id=_pci_address(gpu),
        numa_node=2 * gpu // max(1, machine.gpus),
        mig_enabled=bool(parts),
        mig=tuple(MigInstance(part.id, part.uuid, part.profile) for part in parts),
        links=tuple(Link(kind, _pci_address(peer), bandwidth_gbps=bandwidth) for peer in peers),
        fault=_LOST if lost else None,
    )


def _health(machine: Machine, hardware: Hardware, at: float, devices: Sequence[Device]) -> HealthTracker:
    """Return the health of each GPU by the rules of the agent."""
    tracker = HealthTracker()
    tracker.observe_devices([replace(device, fault=None) for device in devices], machine.created)
    if (lost := hardware.lost_gpu(machine, at)) is not None:
        since = hardware.out_since(machine, at)
        tracker.observe_events([DeviceEvent(EventKind.XID, XID, since, machine.uuids[lost])])
        tracker.observe_devices(devices, since)
    for each in hardware.degraded:
        if each.node == machine.number:
            found = {each.gpu: finding(each.signal, each.message)}
            tracker.set_gpu_findings(each.signal, found, each.since(at))
    return tracker


def _pci_address(gpu: int) -> str:
    return f"0000:{0x18 + 0x10 * gpu % 0xE0:02x}:00.0"


_LOST = "the GPU is lost: it fell off the bus or is inaccessible"
