"""Build a sample fleet of any size: busy, reproducible, and with labels that contain HTML.

python -m dashboard.tools.serve --nodes 48
"""

import math
import random
from collections.abc import Iterator

import numpy as np

from gpufleet.fleet.state import Fleet
from gpufleet.model.node import FleetGpu, FleetNode, Health, NodeDevices
from gpufleet.model.reading import (
    GpuIdentity,
    GpuProcess,
    GpuRef,
    Processes,
    Quantity,
    Readings,
    TrainingPoint,
)
from gpufleet.model.workload import FleetOwner, FleetPod, OwnerRef, Status

GIB = 1024**3
HTML_LABEL = "<img src=x onerror=alert(1)>"
"""A label value that would run a script if the page inserted it as HTML."""
_MODELS = (("NVIDIA H200", "nvidia", 141, 700.0), ("AMD Instinct MI300X", "amd", 192, 750.0))
_NAMESPACES = ("research", "vision", "platform", "speech", "agents")
_JOBS = (
    "llama-pretrain",
    "whisper-ft",
    "vit-large",
    "rlhf-sweep",
    "embed-index",
    "diffusion-xl",
    "moe-8x22b",
)


def sample_fleet(nodes: int, now: float, seed: int = 7, name: str = "prod") -> Fleet:
    """Return a cluster of `nodes` nodes with eight GPUs each, most of them allocated."""
    rng = random.Random(seed)
    fleet = Fleet(name, clock=lambda: now)
    for number in range(nodes):
        _put_node(fleet, number, now)
    _put_workloads(fleet, nodes, now, rng)
    return fleet


def _put_node(fleet: Fleet, number: int, now: float) -> None:
    name = node_name(number)
    model, vendor, memory, _ = _MODELS[number % 5 == 4]
    ready = number % 23 != 11
    fleet.put_node(
        FleetNode(
            name=name,
            gpu_count=8,
            gpu_model=model,
            vendor=vendor,
            ready=ready,
            not_ready_reason="" if ready else "kubelet stopped posting node status",
            cordoned=number % 19 == 7,
            labels={
                "topology.kubernetes.io/zone": f"zone-{'abc'[number % 3]}",
                "gpu": model,
                "note": HTML_LABEL,
            },
        )
    )
    gpus = []
    for index in range(8):
        unhealthy = number % 17 == 5 and index == 3
        gpus.append(
            FleetGpu(
                index=index,
                uuid=f"GPU-{number:05d}-{index}",
                model=model,
                vendor=vendor,
                memory_bytes=memory * GIB,
                island=f"nvlink-{index // 4}" if vendor == "nvidia" else "xgmi-0",
                bandwidth_gbps=900 if vendor == "nvidia" else 448,
                health=Health.UNHEALTHY if unhealthy else Health.HEALTHY,
                health_reason="XID 79: GPU has fallen off the bus" if unhealthy else "",
                health_since=now - 5400 if unhealthy else None,
            )
        )
    fleet.put_devices(NodeDevices(node=name, gpus=tuple(gpus), total=8))


def _put_workloads(fleet: Fleet, nodes: int, now: float, rng: random.Random) -> None:
    place = 0
    number = 0
    while place < nodes * 8 * 0.82:
        gpus = rng.choice((1, 1, 2, 4, 8, 8, 16, 32, 64))
        base, space = rng.choice(_JOBS), rng.choice(_NAMESPACES)
        serving = rng.random() < 0.25
        kind, version = ("Deployment", "apps/v1") if serving else ("PyTorchJob", "kubeflow.org/v1")
        name, uid = f"{base}-{number}", f"wl-{number:05d}"
        age = rng.uniform(900, 400_000)
        labels = {"team": space, "tier": rng.choice(("prod", "batch"))}
        if number == 0:
            labels["note"] = HTML_LABEL
        fleet.put_owner(
            FleetOwner(
                uid=uid,
                kind=kind,
                name=name,
                namespace=space,
                api_version=version,
                status=Status.RUNNING,
                created=now - age,
                labels=labels,
                annotations={"owner": f"{space}@example.com"},
            )
        )
        parent = OwnerRef(uid, kind, name, version)
        if serving:
            fleet.put_owner(
                FleetOwner(
                    uid=f"rs-{number:05d}",
                    kind="ReplicaSet",
                    name=f"{name}-7d8f9c",
                    namespace=space,
                    parent=parent,
                )
            )
            parent = OwnerRef(f"rs-{number:05d}", "ReplicaSet", f"{name}-7d8f9c")
        for part, (node, held) in enumerate(_places(place, gpus)):
            if node < nodes:
                fleet.put_pod(
                    FleetPod(
                        uid=f"pod-{number:05d}-{part}",
                        name=f"{name}-worker-{part}",
                        namespace=space,
                        node=node_name(node),
                        phase=Status.RUNNING,
                        owner=parent,
                        gpus=len(held),
                        held=held,
                        created=now - age,
                        bound=now - age + 12,
                        started=now - age + 30,
                    )
                )
        place += gpus + rng.choice((0, 0, 0, 1, 2))
        number += 1
    for extra in range(14):
        space, status = _NAMESPACES[extra % 5], (Status.COMPLETED, Status.FAILED, Status.PENDING)[extra % 3]
        pending = status is Status.PENDING
        fleet.put_pod(
            FleetPod(
                uid=f"bare-{extra:02d}",
                name=f"notebook-{extra}",
                namespace=space,
                node="" if pending else node_name(extra % nodes),
                phase=status,
                gpus=4 if pending else 1,
                created=now - 7000 - extra * 600,
                bound=0.0 if pending else now - 6900 - extra * 600,
                ended=0.0 if pending else now - 1200 - extra * 60,
            )
        )


def _places(first: int, count: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    taken = range(first, first + count)
    for node in sorted({place // 8 for place in taken}):
        yield node, tuple(place % 8 for place in taken if place // 8 == node)


def node_name(number: int) -> str:
    """Return the name of a node. Names sort by number within a zone."""
    return f"gpu-{'abc'[number % 3]}{number:05d}"


def sample_readings(fleet: Fleet, at: float) -> Readings:
    """Return readings at a moment: allocated GPUs are busy, except for some idle ones."""
    identities: list[GpuIdentity] = []
    columns: dict[Quantity, list[float]] = {
        quantity: []
        for quantity in (
            Quantity.UTILIZATION,
            Quantity.TEMPERATURE,
            Quantity.POWER,
            Quantity.MEMORY_USED,
            Quantity.MEMORY_TOTAL,
            Quantity.MEMORY_UTILIZATION,
        )
    }
    for name, view in sorted(fleet.views().items()):
        if not view.node.ready:
            continue
        memory, top = (141.0, 700.0) if view.node.vendor == "nvidia" else (192.0, 750.0)
        for gpu in view.gpus:
            load = _load(view.holders.get(gpu.index, ()), gpu.index, at)
            share = 4.0 + 0.8 * load if load else 0.6
            identities.append(GpuIdentity(GpuRef(name, gpu.index), gpu.uuid, gpu.model, gpu.vendor))
            columns[Quantity.UTILIZATION].append(load)
            columns[Quantity.TEMPERATURE].append(31.0 + 0.43 * load + gpu.index % 4)
            columns[Quantity.POWER].append(90.0 + (top - 110.0) * load / 100)
            columns[Quantity.MEMORY_USED].append(share / 100 * memory * GIB)
            columns[Quantity.MEMORY_TOTAL].append(memory * GIB)
            columns[Quantity.MEMORY_UTILIZATION].append(share)
    values = {quantity: np.array(column) for quantity, column in columns.items()}
    return Readings(
        taken_at=at,
        gpus=tuple(identities),
        values=values,
        times={quantity: np.full(len(identities), at) for quantity in values},
    )


def _load(holders: tuple[str, ...], index: int, at: float) -> float:
    if not holders:
        return 0.0
    seed = sum(holders[0].encode()) * 37
    if seed % 9 == 0:
        return 0.0  # idle while allocated
    wave = math.sin(at / 900 + seed % 13) * 9 + math.sin(at / 170 + index) * 4
    return min(100.0, max(2.0, 45 + seed % 50 + wave))


def sample_processes(fleet: Fleet, at: float) -> Processes:
    """Return one process on each allocated GPU of the first 200 nodes."""
    rows = [
        GpuProcess(
            GpuRef(name, index), 4000 + number * 8 + index, "python", "ml", "", 60.0 * GIB, 97.0, 2.5, at
        )
        for number, (name, view) in enumerate(sorted(fleet.views().items())[:200])
        for index in view.holders
    ]
    return Processes(tuple(rows))


def sample_training(start: float, end: float) -> list[TrainingPoint]:
    """Return a falling loss and a fluctuating throughput, one point per minute."""
    points = []
    for step, at in enumerate(np.arange(start, end, 60.0).tolist()):
        points.append(TrainingPoint("loss", 1.7 + 3.2 * math.exp(-step / 40) + 0.03 * math.sin(step), at))
        points.append(TrainingPoint("tokens_per_second", 41_000 + 900 * math.sin(step / 7), at))
        points.append(TrainingPoint("mfu", 0.46 + 0.012 * math.sin(step / 5), at))
    return points
