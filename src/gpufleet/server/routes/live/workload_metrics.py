"""`/api/workloads/{uid}/metrics` and `…/trainingPerformance`: a workload over time.

There is one series per GPU that the workload holds or held, cut to the time in which it held it:
other points belong to other workloads. A series is named `GPU-0`, or `<node>/GPU-0` for a workload
on several nodes.
"""

import asyncio
from collections.abc import Sequence
from typing import Annotated, cast

import msgspec
import numpy as np
from msgspec import Meta

from gpufleet.errors import InvalidRequest
from gpufleet.fleet.clusters import Cluster, Clusters
from gpufleet.fleet.workloads.lookup import (
    AllocatedGpu,
    allocated_gpus,
    ended_without_gpus,
    find_workload,
    training_names,
)
from gpufleet.fleet.workloads.summary import Workload
from gpufleet.model.metric_source import check_span
from gpufleet.model.namespaces import Namespaces
from gpufleet.model.periods import AllocationPeriod
from gpufleet.model.reading import Column, GpuRef, GpuSeries, Quantity, TrainingPoint
from gpufleet.server.http.routing import Route, get
from gpufleet.server.routes.params import ClusterParams
from gpufleet.store.periods import PeriodStore
from gpufleet.training.mfu import step_means, tflops_and_mfu
from gpufleet.training.reporter_selection import select_reporters

MODEL_SIZE_LOOKBACK = 300
"""Seconds before `start` to look for the size of the model; reporters repeat it more often."""

_POINTS_PER_STEP = 20_000

Seconds = Annotated[int, Meta(ge=0, le=10**11, description="Unix seconds.")]
Milliseconds = Annotated[int, Meta(ge=0, le=10**14, description="Unix milliseconds.")]
Point = tuple[float, int]
"""Value, and Unix milliseconds."""


class MetricsParams(ClusterParams, kw_only=True, rename="camel"):
    """A time range and its resolution."""

    start: Seconds
    end: Seconds
    step: Annotated[int, Meta(ge=1, le=86_400, description="Seconds between two points.")] = 60


class TrainingParams(ClusterParams, kw_only=True, rename="camel"):
    """A time range, and a rank; without one, each metric is one line (see `select_reporters`)."""

    start: Milliseconds
    end: Milliseconds
    rank: Annotated[int, Meta(ge=0, le=10**6, description="Numbers of this rank only.")] | None = None


class Series(msgspec.Struct):
    """One line of a graph."""

    name: str
    points: list[Point]


class GraphConfig(msgspec.Struct, rename="camel"):
    """How to draw a graph."""

    y_axis_unit: str


class Graph(msgspec.Struct):
    """One graph, and its position among the others."""

    serial: int
    series: list[Series]
    config: GraphConfig


class TrainingRow(msgspec.Struct):
    """A number that a training job reported; the time is in Unix milliseconds."""

    metric: str
    value: float
    timestamp: int


def workload_metric_routes(
    clusters: Clusters, allocation_periods: PeriodStore[AllocationPeriod]
) -> list[Route]:
    """Return the routes for the graphs and training numbers of a workload."""

    @get("/api/workloads/{uid:str}/metrics", scope="filtered", example=_GRAPHS)
    async def workload_metrics(uid: str, query: MetricsParams, namespaces: Namespaces) -> dict[str, Graph]:
        """Utilization, memory and power of a workload's GPUs, and its training speed."""
        check_span(query.start, query.end, query.step)
        cluster = clusters.synced(query.cluster)
        workload, tree, models = find_workload(cluster.fleet, uid, namespaces)
        held = await _held(cluster, workload, allocation_periods)
        several = len({pod.node for pod in workload.counted}) > 1
        training = await cluster.metrics.training(
            uid, query.start - MODEL_SIZE_LOOKBACK, query.end, training_names(tree)
        )
        utilization = await held_series(cluster, held, several, Quantity.UTILIZATION, query, 100)
        memory = await held_series(cluster, held, several, Quantity.MEMORY_UTILIZATION, query, 100)
        power = await held_series(cluster, held, several, Quantity.POWER, query, 1)
        speed = _speed(training, models, query)
        graphs = {
            "GPU Utilization": Graph(1, utilization, GraphConfig("%")),
            "GPU Memory Utilization": Graph(2, memory, GraphConfig("%")),
            "GPU Power": Graph(3, power, GraphConfig("W")),
            "TrainingPerformance": Graph(4, speed.get("TFLOPS", []), GraphConfig("TFLOPS")),
        }
        if "MFU" in speed:
            graphs["MFU"] = Graph(5, speed["MFU"], GraphConfig("%"))
        return graphs

    @get(
        "/api/workloads/{uid:str}/trainingPerformance",
        scope="filtered",
        example=[TrainingRow("loss", 0.0125, 1609459200000)],
    )
    async def training_performance(
        uid: str, query: TrainingParams, namespaces: Namespaces
    ) -> list[TrainingRow]:
        """Training numbers of a workload as flat rows: one line per metric, or the numbers of one `rank`."""
        if query.start > query.end:
            raise InvalidRequest("parameter start: must not be after end")
        cluster = clusters.synced(query.cluster)
        tree = find_workload(cluster.fleet, uid, namespaces).tree
        points = await cluster.metrics.training(
            uid, query.start / 1000, query.end / 1000, training_names(tree), query.rank
        )
        points = await asyncio.to_thread(select_reporters, points)
        return [TrainingRow(point.metric, point.value, round(point.time * 1000)) for point in points]

    @get("/api/workloads//{rest:path}", scope="public", hidden=True)
    async def without_uid(rest: str) -> None:
        """Refuse a path whose uid is empty."""
        raise InvalidRequest("workloadUid is required")

    return [workload_metrics, training_performance, without_uid]


async def _held(
    cluster: Cluster, workload: Workload, allocation_periods: PeriodStore[AllocationPeriod]
) -> list[AllocatedGpu]:
    """Return the GPUs of a workload; those that its source no longer reports come from accounting."""
    unknown = [pod.uid for pod in ended_without_gpus(cluster.fleet, workload)]
    if not unknown:
        return allocated_gpus(cluster.fleet, workload)
    stored = {(p.pod_uid, p.start): p for p in await allocation_periods.of_holders(cluster.name, unknown)}
    closed = filter(None, map(cluster.fleet.allocation_periods.last_closed, unknown))
    recent = {(p.pod_uid, p.start): p for p in closed if p.held}  # perhaps not stored yet
    return allocated_gpus(cluster.fleet, workload, {**stored, **recent}.values())


async def held_series(
    cluster: Cluster,
    held: Sequence[AllocatedGpu],
    several: bool,
    quantity: Quantity,
    query: MetricsParams,
    scale: float,
) -> list[Series]:
    """Return one line per GPU with the points of the time in which it was held."""
    periods: dict[GpuRef, list[AllocatedGpu]] = {}
    for period in held:
        periods.setdefault(period.gpu, []).append(period)
    if not periods:
        return []
    found = await cluster.series(quantity, periods.keys(), query.start, query.end, query.step)
    by_gpu = {series.gpu: series for series in found}
    lines = []
    points = 0
    for gpu in sorted(periods):
        name = f"{gpu.node}/GPU-{gpu.index}" if several else f"GPU-{gpu.index}"
        series = by_gpu.get(gpu)
        lines.append(Series(name, _points(series, periods[gpu], scale) if series is not None else []))
        points += len(series.times) if series is not None else 0
        if points >= _POINTS_PER_STEP:  # let other requests run
            points = 0
            await asyncio.sleep(0)
    return lines


def _points(series: GpuSeries, periods: Sequence[AllocatedGpu], scale: float) -> list[Point]:
    """Return the points within the periods."""
    times = series.times
    inside = np.zeros(len(times), dtype=np.bool_)
    for period in periods:
        inside |= (period.start <= times) & (times <= (period.end or np.inf))
    return encode_points(times[inside], series.values[inside], scale)


def encode_points(times: Column, values: Column, scale: float) -> list[Point]:
    """Return the points as JSON: a job of a thousand GPUs has millions, too many for Python objects."""
    scaled = np.round(values / scale, 6).tolist()
    stamps = np.rint(times * 1000).astype(np.int64).tolist()
    return cast(list[Point], msgspec.Raw(msgspec.json.encode(list(zip(scaled, stamps, strict=True)))))


def _speed(
    points: Sequence[TrainingPoint], models: dict[str, int], query: MetricsParams
) -> dict[str, list[Series]]:
    """Return TFLOPS per GPU and model FLOPs utilization (0.0 to 1.0) as means over each step and all ranks."""
    found = [point for point in tflops_and_mfu(points, models) if point.time >= query.start]
    lines: dict[str, list[Series]] = {}
    for metric, name in (("tflops", "TFLOPS"), ("mfu", "MFU")):
        means = step_means([point for point in found if point.metric == metric], query.start, query.step)
        if means:
            line = [(round(value, 6), round(time * 1000)) for value, time in means]
            lines[name] = [Series(name, line)]
    return lines


_GRAPHS = {
    "GPU Utilization": Graph(1, [Series("GPU-0", [(0.85, 1609459200000)])], GraphConfig("%")),
    "GPU Memory Utilization": Graph(2, [Series("GPU-0", [(0.92, 1609459200000)])], GraphConfig("%")),
    "GPU Power": Graph(3, [Series("GPU-0", [(650.5, 1609459200000)])], GraphConfig("W")),
    "TrainingPerformance": Graph(4, [Series("TFLOPS", [(450.5, 1609459200000)])], GraphConfig("TFLOPS")),
    "MFU": Graph(5, [Series("MFU", [(0.39, 1609459200000)])], GraphConfig("%")),
}
