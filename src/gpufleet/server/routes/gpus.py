"""`/api/v1/gpu/*`: the latest reading of every GPU, and the processes on them.

The answer without filters is encoded once for each refresh and handed to everybody; one with
filters is made for its caller, from the rows of the nodes that are meant alone. Large answers are
made in a thread, so that others are answered meanwhile.
"""

import asyncio
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Annotated

import msgspec
import numpy as np
from msgspec import Meta

from gpufleet.fleet.clusters import Cluster, Clusters
from gpufleet.model.reading import GpuProcess, Quantity, Readings
from gpufleet.server.http.answers import Answer, Prepared
from gpufleet.server.http.routing import Route, get
from gpufleet.server.routes.params import ClusterName

GIB = 1024**3
MIB = 1024**2
FEW_ROWS = 1000
"""Rows up to which an answer is made at once: a few milliseconds."""


class GpuMetrics(msgspec.Struct):
    """One GPU: memory in GiB, utilization in percent, temperature in Celsius; null for what nobody measures."""

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
    """One process on one GPU: GPU memory in MiB, cpu and memory in percent; null for what nobody measures."""

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


class GpusAsked(msgspec.Struct):
    """Which GPUs."""

    cluster: ClusterName = ""
    node: Annotated[str, Meta(max_length=253, description="GPUs of this node only.")] = ""
    namespace: Annotated[str, Meta(max_length=253, description="GPUs held by this namespace only.")] = ""
    workload: Annotated[
        str, Meta(max_length=253, description="GPUs held by the workload of this uid only.")
    ] = ""


class ProcessesAsked(msgspec.Struct):
    """Which processes."""

    cluster: ClusterName = ""
    node: Annotated[str, Meta(max_length=253, description="Processes on this node only.")] = ""


def gpu_routes(clusters: Clusters) -> list[Route]:
    """The routes under `/api/v1/gpu`."""
    kept: dict[str, tuple[Readings, Prepared[list[GpuMetrics]]]] = {}
    making = asyncio.Lock()

    @get("/api/v1/gpu/metrics", example=[_GPU])
    async def gpu_metrics(query: GpusAsked) -> Prepared[list[GpuMetrics]] | Answer[list[GpuMetrics]]:
        """The latest reading of every GPU."""
        cluster = clusters.get(query.cluster)
        readings = cluster.fleet.gpu_columns.readings
        message = _message("GPU metrics retrieved successfully", readings.errors)
        if query.node or query.namespace or query.workload:
            chosen = _chosen(cluster, readings, query)
            if len(chosen) > FEW_ROWS:
                return await asyncio.to_thread(_prepared, readings, message, chosen)
            return Answer(_rows(readings, chosen), message)
        known = kept.get(cluster.name)
        if known is None or known[0] is not readings:
            async with making:
                known = kept.get(cluster.name)
                if known is None or known[0] is not readings:
                    everything = range(len(readings))
                    prepared = await asyncio.to_thread(_prepared, readings, message, everything)
                    known = kept[cluster.name] = (readings, prepared)
        return known[1]

    @get("/api/v1/gpu/processes", example=[_PROCESS])
    async def gpu_processes(query: ProcessesAsked) -> Answer[list[GpuProcessRow]]:
        """The processes on the GPUs."""
        cluster = clusters.get(query.cluster)
        found = await cluster.processes()
        rows = [_process(row) for row in found.rows if query.node in ("", row.gpu.node)]
        rows.sort(key=lambda row: (row.node_name, row.gpu_index, row.pid))
        return Answer(rows, _message("GPU processes retrieved successfully", found.errors))

    return [gpu_metrics, gpu_processes]


def _message(success: str, errors: Mapping[str, str]) -> str:
    if not errors:
        return success
    parts = "; ".join(f"{name}: {why}" for name, why in sorted(errors.items()))
    return f"{success}, but not everything could be read now ({parts})"


def _prepared(readings: Readings, message: str, chosen: Sequence[int]) -> Prepared[list[GpuMetrics]]:
    """Rows, encoded. Readings never change, so that a thread may look at them."""
    return Prepared.of(_rows(readings, chosen), message)


def _chosen(cluster: Cluster, readings: Readings, query: GpusAsked) -> Sequence[int]:
    if not query.namespace and not query.workload:
        return readings.rows_of(query.node)
    return sorted(
        row
        for node, indices in _held(cluster, query).items()
        for row in readings.rows_of(node)
        if readings.gpus[row].ref.index in indices
    )


def _held(cluster: Cluster, query: GpusAsked) -> dict[str, set[int]]:
    """The GPUs of each node that a namespace or a workload holds, on one node if one is named."""
    fleet = cluster.fleet
    everyone = fleet.workloads()
    if query.workload:
        found = everyone.get(query.workload)
        asked = [found] if found is not None else []
    else:
        asked = list(everyone.values())
    held: dict[str, set[int]] = {}
    for workload in asked:
        for pod in workload.counted:
            if query.namespace in ("", pod.namespace) and query.node in ("", pod.node):
                held.setdefault(pod.node, set()).update(fleet.gpus_of(pod))
    return held


def _rows(readings: Readings, chosen: Sequence[int]) -> list[GpuMetrics]:
    wanted = np.asarray(chosen, dtype=np.intp)
    columns = {quantity: values[wanted].tolist() for quantity, values in readings.values.items()}
    times = [values[wanted].tolist() for values in readings.times.values()]
    rows = []
    for row, place in enumerate(chosen):
        gpu = readings.gpus[place]
        sampled = max((column[row] for column in times if column[row] == column[row]), default=None)
        if gpu.ref.partition or sampled is None:
            continue
        used, total = _value(columns, row, Quantity.MEMORY_USED), _value(columns, row, Quantity.MEMORY_TOTAL)
        share = _value(columns, row, Quantity.MEMORY_UTILIZATION)
        if share is None and used is not None and total:
            share = used / total * 100
        rows.append(
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
    return rows


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
    gpu_name="NVIDIA Tesla V100",
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
