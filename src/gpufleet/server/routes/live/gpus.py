"""`/api/v1/gpu/*`: the latest reading of every GPU, and the processes on them.

The answer without filters is encoded once per refresh for all callers. An answer with filters is
made per request, from the rows of the matching nodes. Large answers are encoded in a thread, so
that the event loop stays free.
"""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from gpufleet.fleet.clusters import Cluster, Clusters
from gpufleet.fleet.visibility import visible_processes, visible_rows
from gpufleet.model.namespaces import Namespaces, is_visible
from gpufleet.model.reading import GpuProcess, Quantity, Readings
from gpufleet.server.http.answers import Answer, Prepared
from gpufleet.server.http.routing import Route, get
from gpufleet.server.routes.params import ClusterName

GIB = 1024**3
MIB = 1024**2
MAX_LIMITED = 2
"""Answers to keep for callers who are limited to namespaces: one of 100,000 GPUs takes 25 MB."""
FEW_ROWS = 1000
"""Rows up to which an answer is encoded in the event loop: a few milliseconds."""


class GpuMetrics(msgspec.Struct):
    """One GPU: memory in GiB, utilization in percent, temperature in Celsius; null if not measured."""

    node_name: str
    gpu_index: int
    gpu_name: str
    utilization: float | None
    memory_used: float | None
    memory_total: float | None
    memory_free: float | None
    memory_utilization: float | None
    temperature: float | None
    timestamp: datetime
    power: float | None
    uuid: str


class GpuProcessRow(msgspec.Struct):
    """One process on one GPU: GPU memory in MiB, cpu and memory in percent; null if not measured."""

    node_name: str
    gpu_index: int
    pid: int
    process_name: str
    user: str
    command: str
    gpu_memory: float | None
    cpu: float | None
    memory: float | None
    timestamp: datetime


class GpuParams(msgspec.Struct):
    """Filters for GPUs."""

    cluster: ClusterName = ""
    node: Annotated[str, Meta(max_length=253, description="GPUs of this node only.")] = ""
    namespace: Annotated[str, Meta(max_length=253, description="GPUs held by this namespace only.")] = ""
    workload: Annotated[
        str, Meta(max_length=253, description="GPUs held by the workload of this uid only.")
    ] = ""


class ProcessParams(msgspec.Struct):
    """Filters for processes."""

    cluster: ClusterName = ""
    node: Annotated[str, Meta(max_length=253, description="Processes on this node only.")] = ""


PreparedMetrics = dict[str, tuple[Readings, Prepared[list[GpuMetrics]]]]
"""The answer without filters by cluster, and the readings that it shows."""


def gpu_routes(clusters: Clusters, prepared_answers: PreparedMetrics | None = None) -> list[Route]:
    """Return the routes under `/api/v1/gpu`; answers for all callers are kept in `prepared_answers`."""
    cache: PreparedMetrics = prepared_answers if prepared_answers is not None else {}
    limited: dict[
        tuple[str, frozenset[str]], tuple[Readings, frozenset[int], Prepared[list[GpuMetrics]]]
    ] = {}
    """The answers without filters of callers who are limited to namespaces, the oldest first."""
    encoding, encoding_limited = asyncio.Lock(), asyncio.Lock()

    @get("/api/v1/gpu/metrics", scope="filtered", example=[_GPU])
    async def gpu_metrics(
        query: GpuParams, namespaces: Namespaces
    ) -> Prepared[list[GpuMetrics]] | Answer[list[GpuMetrics]]:
        """The latest reading of every GPU.

        A caller who is limited to namespaces gets the readings of the GPUs that pods in them hold, and null for
        the others.
        """
        cluster = clusters.synced(query.cluster)
        readings = cluster.fleet.gpu_columns.readings
        success = "GPU metrics retrieved successfully"
        if not readings.gpus:
            reason = f": {cluster.metrics.health().empty_reason}" if namespaces is None else ""
            success = f"No GPU metrics{reason}"
        message = _message(success, readings.errors, namespaces)
        if query.node or query.namespace or query.workload:
            rows = _matching_rows(cluster, readings, query, namespaces)
            visible = None if namespaces is None else visible_rows(cluster.fleet, readings, namespaces)
            if len(rows) > FEW_ROWS:
                return await asyncio.to_thread(_prepared, readings, message, rows, visible)
            return Answer(_metrics(readings, rows, visible), message)
        if namespaces is not None:
            return await limited_metrics(cluster, readings, message, namespaces)
        cached = cache.get(cluster.name)
        if cached is None or cached[0] is not readings:
            async with encoding:
                cached = cache.get(cluster.name)
                if cached is None or cached[0] is not readings:
                    all_rows = range(len(readings))
                    prepared = await asyncio.to_thread(_prepared, readings, message, all_rows)
                    cached = cache[cluster.name] = (readings, prepared)
        return cached[1]

    async def limited_metrics(
        cluster: Cluster, readings: Readings, message: str, namespaces: frozenset[str]
    ) -> Prepared[list[GpuMetrics]]:
        key = (cluster.name, namespaces)
        async with encoding_limited:
            visible = visible_rows(cluster.fleet, readings, namespaces)
            kept = limited.get(key)
            if kept is not None and kept[0] is readings and kept[1] == visible:
                return kept[2]
            prepared = await asyncio.to_thread(_prepared, readings, message, range(len(readings)), visible)
            limited.pop(key, None)
            limited[key] = (readings, visible, prepared)
            if len(limited) > MAX_LIMITED:
                del limited[next(iter(limited))]
            return prepared

    @get("/api/v1/gpu/processes", scope="filtered", example=[_PROCESS])
    async def gpu_processes(query: ProcessParams, namespaces: Namespaces) -> Answer[list[GpuProcessRow]]:
        """Processes on the GPUs."""
        cluster = clusters.synced(query.cluster)
        found = await cluster.processes()
        visible = visible_processes(cluster.fleet, found.rows, namespaces)
        rows = [_process(row) for row in visible if query.node in ("", row.gpu.node)]
        rows.sort(key=lambda row: (row.node_name, row.gpu_index, row.pid))
        return Answer(rows, _message("GPU processes retrieved successfully", found.errors, namespaces))

    return [gpu_metrics, gpu_processes]


def _message(success: str, errors: Mapping[str, str], namespaces: Namespaces) -> str:
    if not errors:
        return success
    if namespaces is not None:  # an error of the metric source may name series of other namespaces
        return f"{success}, but not everything could be read now ({', '.join(sorted(errors))})"
    details = "; ".join(f"{name}: {error}" for name, error in sorted(errors.items()))
    return f"{success}, but not everything could be read now ({details})"


def _prepared(
    readings: Readings, message: str, rows: Sequence[int], visible: frozenset[int] | None = None
) -> Prepared[list[GpuMetrics]]:
    """Encode rows. Safe in a thread, since readings are immutable."""
    return Prepared.of(_metrics(readings, rows, visible), message)


def _matching_rows(
    cluster: Cluster, readings: Readings, query: GpuParams, namespaces: Namespaces
) -> Sequence[int]:
    if not query.namespace and not query.workload:
        return readings.rows_of(query.node)
    return sorted(
        row
        for node, indices in _held(cluster, query, namespaces).items()
        for row in readings.rows_of(node)
        if readings.gpus[row].ref.index in indices
    )


def _held(cluster: Cluster, query: GpuParams, namespaces: Namespaces) -> dict[str, set[int]]:
    """Return the GPU indices by node that the namespace or workload of the query holds."""
    fleet = cluster.fleet
    workloads = fleet.workloads()
    if query.workload:
        workload = workloads.get(query.workload)
        workloads = {} if workload is None else {workload.uid: workload}
    held: dict[str, set[int]] = {}
    for workload in workloads.values():
        for pod in workload.counted:
            if not is_visible(namespaces, pod.namespace):
                continue
            if query.namespace in ("", pod.namespace) and query.node in ("", pod.node):
                held.setdefault(pod.node, set()).update(fleet.gpus_of(pod))
    return held


def _metrics(
    readings: Readings, rows: Sequence[int], visible: frozenset[int] | None = None
) -> list[GpuMetrics]:
    """Return the rows; only the size of the memory of those that are not `visible`."""
    selected = np.asarray(rows, dtype=np.intp)
    columns = {quantity: values[selected].tolist() for quantity, values in readings.values.items()}
    times = [values[selected].tolist() for values in readings.times.values()]
    metrics = []
    for row, gpu in enumerate(readings.gpus[index] for index in rows):
        sampled = max((column[row] for column in times if column[row] == column[row]), default=None)
        if gpu.ref.partition or sampled is None:
            continue
        used, total = _value(columns, row, Quantity.MEMORY_USED), _value(columns, row, Quantity.MEMORY_TOTAL)
        share = _value(columns, row, Quantity.MEMORY_UTILIZATION)
        if share is None and used is not None and total:
            share = used / total * 100
        metrics.append(
            GpuMetrics(
                node_name=gpu.ref.node,
                gpu_index=gpu.ref.index,
                gpu_name=gpu.model,
                utilization=_rounded(_value(columns, row, Quantity.UTILIZATION)),
                memory_used=_rounded(used, GIB),
                memory_total=_rounded(total, GIB),
                memory_free=_rounded(_value(columns, row, Quantity.MEMORY_FREE), GIB),
                memory_utilization=_rounded(share),
                temperature=_rounded(_value(columns, row, Quantity.TEMPERATURE)),
                timestamp=datetime.fromtimestamp(sampled, UTC),
                power=_rounded(_value(columns, row, Quantity.POWER)),
                uuid=gpu.uuid,
            )
        )
        if visible is not None and rows[row] not in visible:
            metrics[-1] = _without_readings(metrics[-1])
    return metrics


def _without_readings(gpu: GpuMetrics) -> GpuMetrics:
    return msgspec.structs.replace(
        gpu,
        utilization=None,
        memory_used=None,
        memory_free=None,
        memory_utilization=None,
        temperature=None,
        power=None,
    )


def _value(columns: Mapping[Quantity, list[float]], row: int, quantity: Quantity) -> float | None:
    column = columns.get(quantity)
    if column is None:
        return None
    value = column[row]
    return value if value == value else None


def _rounded(value: float | None, unit: float = 1.0) -> float | None:
    return None if value is None else round(value / unit, 4)


def _process(row: GpuProcess) -> GpuProcessRow:
    return GpuProcessRow(
        node_name=row.gpu.node,
        gpu_index=row.gpu.index,
        pid=row.pid,
        process_name=row.name,
        user=row.user,
        command=row.command,
        gpu_memory=_rounded(row.gpu_memory_bytes, MIB),
        cpu=_rounded(row.cpu_percent),
        memory=_rounded(row.memory_percent),
        timestamp=datetime.fromtimestamp(row.time, UTC),
    )


_AT = datetime(2024, 1, 1, 12, tzinfo=UTC)
_GPU = GpuMetrics(
    node_name="gpu-node-1",
    gpu_index=0,
    gpu_name="NVIDIA_Tesla_V100",
    utilization=75.5,
    memory_used=8.0,
    memory_total=16.0,
    memory_free=8.0,
    memory_utilization=50.5,
    temperature=65.0,
    timestamp=_AT,
    power=210.0,
    uuid="GPU-5f2c1b1e",
)
_PROCESS = GpuProcessRow("gpu-node-1", 0, 1234, "python", "alice", "python train.py", 1024.0, 8.5, 15.2, _AT)
