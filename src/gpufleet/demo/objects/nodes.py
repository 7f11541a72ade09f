"""Nodes, GpuNodeStatus, namespaces and definitions of a simulated fleet."""

import random
from collections.abc import Mapping, Sequence

from gpufleet.demo.objects.identities import Json, timestamp
from gpufleet.demo.simulation.hardware import BUILT, XID, XID_MEANING, Hardware, Machine, new_uid
from gpufleet.demo.simulation.teams import TEAMS


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


def node(machine: Machine, hardware: Hardware, at: float) -> Json:
    """Return the Node object of a machine at a time."""
    count = str(machine.gpus)
    model, resource = machine.model, machine.model.resource
    down = hardware.is_down(machine, at)
    labels = {
        "kubernetes.io/hostname": machine.name,
        "kubernetes.io/arch": "amd64",
        "kubernetes.io/os": "linux",
        "topology.kubernetes.io/zone": f"eu-1{machine.zone}",
        "topology.kubernetes.io/rack": machine.rack,
        "gpu-type": model.short,
        f"{model.vendor}.com/gpu.product{'-name' if model.vendor == 'amd' else ''}": model.name.replace(
            " ", "-"
        ),
    }
    capacity = {"cpu": "192", "memory": "2113456000Ki", "pods": "110", resource: count}
    spec: Json = {}
    if hardware.is_cordoned(machine):
        spec = {
            "unschedulable": True,
            "taints": [{"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}],
        }
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


def _ready(machine: Machine, hardware: Hardware, at: float) -> Json:
    if hardware.is_down(machine, at):
        return {
            "type": "Ready",
            "status": "Unknown",
            "reason": "NodeStatusUnknown",
            "message": "Kubelet stopped posting node status.",
            "lastTransitionTime": timestamp(hardware.down_since(at)),
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
    """Return the GpuNodeStatus of a machine at a time; `users` has the pod uids of each GPU."""
    lost, down = hardware.lost_gpu(machine, at), hardware.is_down(machine, at)
    devices = []
    for gpu in range(machine.gpus):
        device: Json = {
            "id": gpu,
            "inUseBy": list(users.get(gpu, ())),
            "health": "Unknown" if down else "Unhealthy" if gpu == lost else "Healthy",
            "bandwidthGBps": machine.model.bandwidth_gbps,
            "island": machine.island(gpu),
            "uuid": machine.uuids[gpu],
            "vendor": machine.model.vendor,
            "model": machine.model.name,
            "memoryMiB": machine.model.memory_bytes // 2**20,
            "pciBusId": f"0000:{0x18 + 0x10 * gpu % 0xE0:02x}:00.0",
            "numaNode": 2 * gpu // max(1, machine.gpus),
        }
        if down:
            device["healthReason"] = "the node's agent does not report"
            device["healthSince"] = timestamp(hardware.down_since(at))
        elif gpu == lost:
            device["healthReason"] = f"XID {XID}: {XID_MEANING}"
            device["healthSince"] = timestamp(hardware.lost_since(at))
        devices.append(device)
    unhealthy = sum(device["health"] != "Healthy" for device in devices)
    free = sum(device["health"] == "Healthy" and not device["inUseBy"] for device in devices)
    return {
        "apiVersion": "gpu.scheduling/v1",
        "kind": "GpuNodeStatus",
        "metadata": {
            "name": machine.name,
            "uid": new_uid(random.Random(machine.uid)),  # noqa: S311  (a simulation, no secret)
            "creationTimestamp": timestamp(machine.created),
        },
        "spec": {"nodeName": machine.name},
        "status": {"devices": devices, "total": machine.gpus, "free": free, "unhealthy": unhealthy},
    }
