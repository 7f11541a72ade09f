"""What `gpufleet get` can list: how rows are fetched, named and shown."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, cast

from gpufleet.client import Client, calls, types
from gpufleet.errors import InvalidRequest
from gpufleet.terminal.columns import Column, age, few, index_ranges, number, percent, short_model, since
from gpufleet.terminal.waiting import START, Waiting, no_queue_off_kubernetes, with_estimates


@dataclass(frozen=True)
class Selection:
    """The filters of the command line; empty means any."""

    namespace: str = ""
    labels: str = ""
    status: str = ""
    model: str = ""


@dataclass(frozen=True)
class Resource:
    """A kind of rows."""

    name: str
    singular: str
    aliases: tuple[str, ...]
    fetch: Callable[[Client, Selection], Iterable[Any]]
    key: Callable[[Any], str]
    """The name that the row is asked for by; several rows may share it."""
    columns: tuple[Column, ...]
    filters: frozenset[str]
    """The fields of the selection that it takes."""
    statuses: tuple[str, ...] = ()
    matches: Callable[[Any, str], bool] | None = None
    """Whether a row is meant by a name; by default if its key equals it."""

    def is_meant(self, row: Any, name: str) -> bool:
        """Return whether `name` on the command line means `row`."""
        return self.matches(row, name) if self.matches else self.key(row) == name

    def check(self, selection: Selection) -> Selection:
        """Reject filters that it does not have; write the status as the server does."""
        flags = {"namespace": "-n", "labels": "-l", "status": "--status", "model": "--model"}
        for field, flag in flags.items():
            if getattr(selection, field) and field not in self.filters:
                raise InvalidRequest(f"{self.name} can't be selected with {flag}")
        if not selection.status:
            return selection
        for status in self.statuses:
            if status.casefold() == selection.status.casefold():
                return replace(selection, status=status)
        raise InvalidRequest(f"--status {selection.status}: {self.name} have {', '.join(self.statuses)}")


NAMESPACE = Column("NAMESPACE", lambda row: row.namespace)


def _nodes(client: Client, selection: Selection) -> Iterable[types.NodeRow]:
    return client.nodes(
        state=cast(Any, selection.status or None),
        model=selection.model or None,
        label_selector=selection.labels or None,
    )


def _gpus(client: Client, selection: Selection) -> Iterable[types.GpuRow]:
    return client.gpus(
        state=cast(Any, selection.status or None),
        model=selection.model or None,
        label_selector=selection.labels or None,
    )


def _workloads(client: Client, selection: Selection) -> Iterable[types.WorkloadRow]:
    return client.workloads(
        namespace=selection.namespace or None,
        status=cast(Any, selection.status or None),
        model=selection.model or None,
        label_selector=selection.labels or None,
    )


def _queue(client: Client, selection: Selection) -> Iterable[Waiting]:
    """Return the workloads that wait for GPUs, the longest wait first."""
    rows = sorted(_workloads(client, replace(selection, status="Pending")), key=lambda row: row.start_at)
    units: list[types.QueuedUnit] = []
    with no_queue_off_kubernetes():
        units = client.get(calls.list_queue()).data
    return with_estimates(rows, units)


def _claims(client: Client, selection: Selection) -> Iterable[types.ClaimRow]:
    return client.claims(
        namespace=selection.namespace or None,
        phase=cast(Any, selection.status or None),
        label_selector=selection.labels or None,
    )


def _leases(client: Client, selection: Selection) -> Iterable[types.LeaseRow]:
    for lease in client.leases():
        if not selection.namespace or any(each.namespace == selection.namespace for each in lease.holders):
            yield lease


def _free(node: types.NodeRow) -> int | None:
    """Return the GPUs that a pod could get; unknown on nodes that take no pods or only some."""
    unknown = node.gpu_allocated is None or node.cordoned or node.state == "faulty"
    return None if unknown or node.gpu_allocated is None else node.gpu_total - node.gpu_allocated


def _node_status(node: types.NodeRow) -> str:
    return f"{node.state},cordoned" if node.cordoned else node.state


def _models(row: types.WorkloadRow) -> str:
    return ",".join(map(short_model, row.gpu_allocation)) or short_model(row.gpu_model_requested)


def _holders(gpu: types.GpuRow) -> list[str]:
    return [f"{each.pod_namespace}/{each.pod_name}" if each.pod_name else "hidden" for each in gpu.holders]


def _run_time(row: types.WorkloadRow) -> float | None:
    return row.end_at - row.start_at if row.end_at and row.start_at else since(row.start_at)


def _gpu_name(gpu: types.GpuRow) -> str:
    return f"{gpu.node}/{gpu.index}"


_NODES = Resource(
    name="nodes",
    singular="node",
    aliases=("node", "no"),
    fetch=_nodes,
    key=lambda node: str(node.name),
    columns=(
        Column("NAME", lambda node: node.name),
        Column("STATUS", _node_status),
        Column("MODEL", lambda node: node.gpu_model, text=short_model),
        Column("GPUS", lambda node: node.gpu_total),
        Column("HELD", lambda node: node.gpu_allocated),
        Column("FREE", _free),
        Column("UTIL", lambda node: node.utilization, live=True, text=percent),
        Column("SOURCE", lambda node: node.source, wide=True),
        Column("READY", lambda node: node.ready, wide=True),
        Column("PROBLEM", lambda node: node.fault, wide=True),
    ),
    filters=frozenset({"labels", "status", "model"}),
    statuses=("faulty", "idle", "partial", "busy", "unknown"),
)

_GPUS = Resource(
    name="gpus",
    singular="gpu",
    aliases=("gpu",),
    fetch=_gpus,
    key=_gpu_name,
    matches=lambda gpu, name: name in (_gpu_name(gpu), gpu.node, gpu.uuid),
    columns=(
        Column("NAME", _gpu_name),
        Column("MODEL", lambda gpu: gpu.model, text=short_model),
        Column("STATUS", lambda gpu: gpu.state),
        Column("UTIL", lambda gpu: gpu.utilization, live=True, text=percent),
        Column("MEM", lambda gpu: gpu.memory_used, live=True, text=lambda gib: f"{gib:.0f}Gi"),
        Column("TEMP", lambda gpu: gpu.temperature, live=True, text=number),
        Column("POWER", lambda gpu: gpu.power, live=True, text=lambda watt: f"{watt:.0f}W"),
        Column("HELD-BY", _holders, text=few),
        Column("ISLAND", lambda gpu: gpu.island, wide=True),
        Column("UUID", lambda gpu: gpu.uuid, wide=True),
        Column("PROBLEM", lambda gpu: gpu.health_reason, wide=True),
    ),
    filters=frozenset({"labels", "status", "model"}),
    statuses=("free", "held", "unhealthy", "cordoned", "unknown", "draining", "perhaps-held"),
)

_WORKLOAD_NAME = Column("NAME", lambda row: row.name)
_WORKLOADS = Resource(
    name="workloads",
    singular="workload",
    aliases=("workload", "wl"),
    fetch=_workloads,
    key=lambda row: str(row.name),
    matches=lambda row, name: name in (row.name, row.uid),
    columns=(
        NAMESPACE,
        _WORKLOAD_NAME,
        Column("KIND", lambda row: row.kind),
        Column("STATUS", lambda row: row.status),
        Column("GPUS", lambda row: row.gpu_allocated or row.gpu_requested),
        Column("TIME", _run_time, live=True, text=age),
        Column("MODEL", _models, wide=True),
        Column("SOURCE", lambda row: row.source, wide=True),
        Column("UID", lambda row: row.uid, wide=True),
    ),
    filters=frozenset({"namespace", "labels", "status", "model"}),
    statuses=("Running", "Completed", "Failed", "Pending", "Unknown"),
)

_QUEUE = Resource(
    name="queue",
    singular="workload",
    aliases=("pending",),
    fetch=_queue,
    key=lambda row: str(row.name),
    matches=lambda row, name: name in (row.name, row.uid),
    columns=(
        NAMESPACE,
        _WORKLOAD_NAME,
        Column("GPUS", lambda row: row.gpu_requested),
        Column("MODEL", lambda row: row.gpu_model_requested, text=short_model),
        Column("WAITS", lambda row: since(row.start_at), live=True, text=age),
        START,
        Column("KIND", lambda row: row.kind, wide=True),
        Column("QUEUE", lambda row: row.queue.queue if row.queue else None, wide=True),
        Column("REASON", lambda row: row.waiting_reason.removeprefix("Pending: ")),
    ),
    filters=frozenset({"namespace", "labels", "model"}),
)

_CLAIMS = Resource(
    name="claims",
    singular="claim",
    aliases=("claim", "gpuclaims", "gpuclaim", "gclaim"),
    fetch=_claims,
    key=lambda claim: str(claim.name),
    columns=(
        NAMESPACE,
        Column("NAME", lambda claim: claim.name),
        Column("COUNT", lambda claim: claim.count),
        Column("PHASE", lambda claim: claim.phase),
        Column("NODE", lambda claim: claim.node_name),
        Column("GPUS", lambda claim: claim.gpu_ids, text=index_ranges),
        Column("AGE", lambda claim: since(claim.created_at), live=True, text=age),
        Column("POLICY", lambda claim: claim.policy, wide=True),
        Column("GANG", lambda claim: claim.gang, wide=True),
        Column("PODS", lambda claim: [each.pod_name for each in claim.allocations], wide=True, text=few),
        Column("MESSAGE", lambda claim: claim.message, wide=True),
    ),
    filters=frozenset({"namespace", "labels", "status"}),
    statuses=("Bound", "Failed", "Pending", "Reserved"),
)

_LEASES = Resource(
    name="leases",
    singular="lease",
    aliases=("lease",),
    fetch=_leases,
    key=lambda lease: str(lease.name),
    columns=(
        Column("NAME", lambda lease: lease.name),
        Column("NODE", lambda lease: lease.node),
        Column("GPU", lambda lease: lease.gpu),
        Column("AGE", lambda lease: since(lease.acquired_at), live=True, text=age),
        Column(
            "HOLDERS",
            lambda lease: [f"{e.namespace}/{e.pod_name or e.pod_uid}" for e in lease.holders],
            text=few,
        ),
        Column("CLAIMS", lambda lease: [each.claim for each in lease.holders], wide=True, text=few),
        Column("FOREIGN", lambda lease: lease.foreign, wide=True),
    ),
    filters=frozenset({"namespace"}),
)

RESOURCES = (_NODES, _GPUS, _WORKLOADS, _CLAIMS, _QUEUE, _LEASES)


def resource_of(word: str) -> Resource:
    """Return the resource of a name or alias."""
    for resource in RESOURCES:
        if word.casefold() in (resource.name, *resource.aliases):
            return resource
    raise InvalidRequest(f"no resource {word!r}; there are {', '.join(each.name for each in RESOURCES)}")
