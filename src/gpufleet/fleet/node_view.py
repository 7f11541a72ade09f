"""One node as the fleet sees it: its GPUs, who holds them, and what state that makes.

`look` is pure and sees one node at a time; the fleet calls it again for the nodes that changed.

Who holds which GPU is taken from the first of these that knows, per pod: the scheduler's
annotation, its leases, the agent, the exporter's labels; a pod that has a whole node to itself
has all of its GPUs. Where none of that tells, the pod's GPUs are counted and no GPU is named.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

import msgspec

from gpufleet.model.node import FleetGpu, FleetNode, Health, NodeDevices
from gpufleet.model.workload import FleetPod

Holders = Mapping[int, tuple[str, ...]]
"""Uids of the holding pods by GPU index."""


class NodeState(StrEnum):
    """The bucket that a GPU node is counted in."""

    FAULTY = "faulty"
    IDLE = "idle"
    PARTIAL = "partial"
    BUSY = "busy"


class NodeView(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What one look at a node found."""

    node: FleetNode
    gpus: tuple[FleetGpu, ...]
    total: int
    allocated: int
    """GPUs promised to pods, named or not."""
    holders: dict[int, tuple[str, ...]]
    held: frozenset[int]
    """Indices of the GPUs that are certainly allocated: named, or all of a full node."""
    usable: int
    """GPUs that count as capacity: healthy, and neither they nor the node cordoned or faulty."""
    usable_allocated: int
    state: NodeState
    fault: str
    """Why the node is faulty, in words; empty if it is not."""


class GpuReports(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What was said of a node's GPUs by others than the node itself."""

    devices: NodeDevices | None = None
    discovered: tuple[FleetGpu, ...] = ()
    """GPUs that only readings know of."""
    leases: Holders = {}
    exporter: Holders = {}


def look(node: FleetNode, evidence: GpuReports, pods: Iterable[FleetPod]) -> NodeView:
    """Join what is known of one node. `pods` are those that hold GPUs on it."""
    gpus, total = _gpus(node, evidence)
    present = sorted(pods, key=lambda pod: pod.uid)
    holders, unnamed = _holders(present, evidence)
    if unnamed and len(present) == 1 and present[0].gpus == total == len(gpus):
        holders, unnamed = {gpu.index: (present[0].uid,) for gpu in gpus}, 0
    named = frozenset(holders)
    allocated = min(total, len(named) + unnamed)
    held = frozenset(gpu.index for gpu in gpus) if total and allocated == total else named
    fault = _fault(node, gpus)
    barred = {g.index for g in gpus if g.health is not Health.HEALTHY or g.cordoned}
    usable = 0 if fault or node.cordoned else max(0, total - len(barred))
    return NodeView(
        node=node,
        gpus=gpus,
        total=total,
        allocated=allocated,
        holders=holders,
        held=held,
        usable=usable,
        usable_allocated=min(usable, len(named - barred) + unnamed),
        state=_state(fault, allocated, total),
        fault=fault,
    )


def _gpus(node: FleetNode, evidence: GpuReports) -> tuple[tuple[FleetGpu, ...], int]:
    if evidence.devices is not None:
        known = {gpu.index: gpu for gpu in evidence.devices.gpus}
        total = max(evidence.devices.total, len(known))
    else:
        known, total = {}, node.gpu_count
        for index in range(node.gpu_count):
            known[index] = FleetGpu(index=index, model=node.gpu_model, vendor=node.vendor)
    # A node's label names one model, also where its GPUs are of several.
    mixed = evidence.devices is None and len({gpu.model for gpu in evidence.discovered if gpu.model}) > 1
    if total:
        for gpu in evidence.discovered:
            known[gpu.index] = _merge(known.get(gpu.index), gpu, seen_model_first=mixed)
    if evidence.devices is None and len(known) > total:
        # Exporters may number GPUs otherwise than from 0; then theirs are the true indices.
        seen = {gpu.index for gpu in evidence.discovered}
        for index in [i for i in known if i not in seen]:
            if len(known) > total:
                del known[index]
    return tuple(known[index] for index in sorted(known)), max(total, len(known)) if total else 0


def _merge(known: FleetGpu | None, seen: FleetGpu, *, seen_model_first: bool) -> FleetGpu:
    if known is None:
        return seen
    models = (seen.model, known.model) if seen_model_first else (known.model, seen.model)
    return msgspec.structs.replace(
        known,
        uuid=known.uuid or seen.uuid,
        model=models[0] or models[1],
        vendor=known.vendor or seen.vendor,
        health=seen.health if known.health is Health.HEALTHY else known.health,
        health_reason=known.health_reason or seen.health_reason,
        health_since=known.health_since if known.health_since is not None else seen.health_since,
    )


def _holders(pods: Sequence[FleetPod], evidence: GpuReports) -> tuple[dict[int, tuple[str, ...]], int]:
    agent = {gpu.index: gpu.in_use_by for gpu in (evidence.devices.gpus if evidence.devices else ())}
    holders: dict[int, tuple[str, ...]] = {}
    unnamed = 0.0
    for pod in pods:
        indices = (
            pod.held or _named(pod, evidence.leases) or _named(pod, agent) or _named(pod, evidence.exporter)
        )
        for index in indices:
            holders[index] = (*holders.get(index, ()), pod.uid)
        unnamed += max(0, pod.gpus - len(indices)) * pod.share
    return dict(sorted(holders.items())), math.ceil(unnamed - 1e-9)


def _named(pod: FleetPod, said: Holders) -> tuple[int, ...]:
    return tuple(sorted(index for index, uids in said.items() if pod.uid in uids))[: pod.gpus]


def _fault(node: FleetNode, gpus: tuple[FleetGpu, ...]) -> str:
    if not node.ready:
        return node.not_ready_reason or "node is not Ready"
    if node.fault:
        return node.fault
    bad = [gpu for gpu in gpus if gpu.health is Health.UNHEALTHY]
    if not bad:
        return ""
    first = f"GPU {bad[0].index} is unhealthy" + (f": {bad[0].health_reason}" if bad[0].health_reason else "")
    return first if len(bad) == 1 else f"{first} (and {len(bad) - 1} more)"


def _state(fault: str, allocated: int, total: int) -> NodeState:
    if fault:
        return NodeState.FAULTY
    if allocated == 0:
        return NodeState.IDLE
    return NodeState.BUSY if allocated >= total else NodeState.PARTIAL
