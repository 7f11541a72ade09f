"""One node as the fleet sees it: its GPUs, who holds them, and its state.

`node_view` is pure and works on one node; the fleet calls it for each node that changed.

Who holds which GPU is decided per pod, by the first of these that names GPUs: the scheduler's
annotation, its leases, the agent, the exporter's labels. A pod that fills a whole node holds all of
its GPUs. Otherwise the pod's GPUs are counted without naming them.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

import msgspec

from gpufleet.model.gpu_models import more_exact, single_model
from gpufleet.model.node import FleetGpu, FleetNode, Health, NodeDevices
from gpufleet.model.workload import FleetPod

Holders = Mapping[int, tuple[str, ...]]
"""Uids of the holding pods by GPU index."""


class NodeState(StrEnum):
    """The state that a GPU node is counted under."""

    FAULTY = "faulty"
    IDLE = "idle"
    PARTIAL = "partial"
    BUSY = "busy"
    UNKNOWN = "unknown"
    """Healthy, but its source does not say which GPUs are allocated."""


class NodeView(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """A node, its GPUs and their holders."""

    node: FleetNode
    gpus: tuple[FleetGpu, ...]
    total: int
    allocated: int
    """GPUs allocated to pods, whether or not their indices are known."""
    holders: dict[int, tuple[str, ...]]
    allocated_indices: frozenset[int]
    """The GPUs that are certainly allocated: those with a named holder, or all of a full node."""
    usable: int
    """GPUs that count as capacity: healthy, and neither they nor the node cordoned or faulty."""
    usable_allocated: int
    state: NodeState
    fault: str
    """Why the node is faulty; empty if it is not."""

    @property
    def model(self) -> str:
        """The model of its GPUs; that of the node's label if they differ or are not known."""
        return more_exact(single_model(gpu.model for gpu in self.gpus), self.node.gpu_model)

    @property
    def models(self) -> tuple[str, ...]:
        """The models of its GPUs, the first GPU's first."""
        return tuple(dict.fromkeys(gpu.model for gpu in self.gpus if gpu.model)) or tuple(
            filter(None, (self.model,))
        )


class GpuReports(msgspec.Struct, frozen=True, gc=False, kw_only=True):
    """What agent, scheduler and exporters report about the GPUs of one node."""

    devices: NodeDevices | None = None
    """From the agent."""
    discovered: tuple[FleetGpu, ...] = ()
    """From the exporters' readings."""
    lease_holders: Holders = {}
    exporter_holders: Holders = {}


def node_view(node: FleetNode, reports: GpuReports, pods: Iterable[FleetPod]) -> NodeView:
    """Combine what is known about one node. `pods` are those that hold GPUs on it."""
    gpus, total = _gpus(node, reports)
    present = sorted(pods, key=lambda pod: pod.uid)
    holders, unnamed = _holders(present, reports)
    if unnamed and len(present) == 1 and present[0].gpus == total == len(gpus):
        holders, unnamed = {gpu.index: (present[0].uid,) for gpu in gpus}, 0
    named = frozenset(holders)
    allocated = min(total, len(named) + unnamed)
    full = total and allocated == total
    fault = _fault(node, gpus)
    unusable = {g.index for g in gpus if g.health is not Health.HEALTHY or g.cordoned}
    usable = 0 if fault or node.cordoned else max(0, total - len(unusable))
    return NodeView(
        node=node,
        gpus=gpus,
        total=total,
        allocated=allocated,
        holders=holders,
        allocated_indices=frozenset(gpu.index for gpu in gpus) if full else named,
        usable=usable,
        usable_allocated=min(usable, len(named - unusable) + unnamed),
        state=_state(node, fault, allocated, total),
        fault=fault,
    )


def _gpus(node: FleetNode, reports: GpuReports) -> tuple[tuple[FleetGpu, ...], int]:
    if reports.devices is not None:
        known = {gpu.index: gpu for gpu in reports.devices.gpus}
        total = max(reports.devices.total, len(known))
    else:
        known, total = {}, node.gpu_count
        for index in range(node.gpu_count):
            known[index] = FleetGpu(index=index, model=node.gpu_model, vendor=node.vendor)
    # The node label names one model even if the node has several.
    mixed = reports.devices is None and _differ(reports.discovered)
    if total:
        for gpu in reports.discovered:
            known[gpu.index] = _merge(known.get(gpu.index), gpu, prefer_seen_model=mixed)
    if reports.devices is None and len(known) > total:
        # Exporters may not count from 0; theirs are then the true indices.
        seen = {gpu.index for gpu in reports.discovered}
        for index in [i for i in known if i not in seen]:
            if len(known) > total:
                del known[index]
    return tuple(known[index] for index in sorted(known)), max(total, len(known)) if total else 0


def _differ(gpus: Sequence[FleetGpu]) -> bool:
    return any(gpu.model for gpu in gpus) and not single_model(gpu.model for gpu in gpus)


def _merge(known: FleetGpu | None, seen: FleetGpu, *, prefer_seen_model: bool) -> FleetGpu:
    if known is None:
        return seen
    models = (seen.model, known.model) if prefer_seen_model else (known.model, seen.model)
    return msgspec.structs.replace(
        known,
        uuid=known.uuid or seen.uuid,
        model=more_exact(*models),
        vendor=known.vendor or seen.vendor,
        health=seen.health if known.health is Health.HEALTHY else known.health,
        health_reason=known.health_reason or seen.health_reason,
        health_since=known.health_since if known.health_since is not None else seen.health_since,
    )


def _holders(pods: Sequence[FleetPod], reports: GpuReports) -> tuple[dict[int, tuple[str, ...]], int]:
    agent = {gpu.index: gpu.in_use_by for gpu in (reports.devices.gpus if reports.devices else ())}
    holders: dict[int, tuple[str, ...]] = {}
    unnamed = 0.0
    for pod in pods:
        indices = (
            pod.held
            or _named(pod, reports.lease_holders)
            or _named(pod, agent)
            or _named(pod, reports.exporter_holders)
        )
        for index in dict.fromkeys(indices):
            holders[index] = (*holders.get(index, ()), pod.uid)
        unnamed += max(0, pod.gpus - len(indices)) * pod.share
    return dict(sorted(holders.items())), math.ceil(unnamed - 1e-9)


def _named(pod: FleetPod, holders: Holders) -> tuple[int, ...]:
    return tuple(sorted(index for index, uids in holders.items() if pod.uid in uids))[: pod.gpus]


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


def _state(node: FleetNode, fault: str, allocated: int, total: int) -> NodeState:
    if fault:
        return NodeState.FAULTY
    if not node.allocation_known:
        return NodeState.UNKNOWN
    if allocated == 0:
        return NodeState.IDLE
    return NodeState.BUSY if allocated >= total else NodeState.PARTIAL
