"""Readings without Prometheus: record them in the store and query them there.

The newest refresh is answered from memory. A replica that does not record fetches it from the store,
at most once per refresh for all callers, and answers with what it has if the store takes longer than a
moment. Ranges behave as in Prometheus: at each step the newest
sample of the last five minutes, and nothing after a GPU was seen without a value. Every quarter of an
hour the store is compacted and old readings are pruned.
"""

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Coroutine, Sequence
from typing import Any, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from gpufleet.errors import MetricsUnavailable, StoreUnavailable
from gpufleet.model.metric_source import MetricHealth, SourceHealth, check_span
from gpufleet.model.reading import (
    Column,
    ExtremeBlock,
    GpuRef,
    GpuSeries,
    Processes,
    Quantity,
    RdmaPorts,
    Readings,
    SampleBlock,
    StorageUse,
    TrainingPoint,
)
from gpufleet.runtime.logs import get_logger
from gpufleet.runtime.settings import MetricsSettings
from gpufleet.store.readings.readings import ReadingStore
from gpufleet.store.training import TrainingStore

LOOKBACK = 300.0
"""Seconds for which a sample is valid, as in Prometheus."""

_PATIENCE = 0.5
"""Seconds to wait for the store where memory has an answer."""

_MAX_AHEAD = 60.0
"""Readings from further in the future are ignored: a clock was ahead and has been set back."""

_COMPACT_EVERY = 900.0
_BLOCK = 3600.0
"""Seconds of samples that are held in memory at a time."""

_MAX_CONTROLLERS = 100
"""Controllers of a workload whose training numbers are read, as agents know only a pod's own controller."""

_EMPTY = "no metric source is configured (PROMETHEUS_URL), and no agent has been read yet"
_PROCESSES, _STORAGE, _RDMA = "processes", "storage", "rdma"
_log = get_logger("metrics")
T = TypeVar("T")


class EmbeddedMetrics:
    """A `MetricSource` on the store that also records readings."""

    def __init__(
        self,
        cluster: str,
        readings: ReadingStore,
        training: TrainingStore,
        settings: MetricsSettings,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._cluster = cluster
        self._readings = readings
        self._training = training
        self._settings = settings
        self._clock = clock
        self._latest = Readings(0.0)
        self._fetched_at: dict[str, float] = {}
        self._fetches: dict[str, tuple[asyncio.Task[None], float]] = {}
        """The fetch in progress of each kind, and until when callers wait for it."""
        self._processes = Processes()
        self._storage: StorageUse | None = None
        self._rdma: RdmaPorts | None = None
        self._compacted = 0.0
        self._error = ""
        self._last_error = ""
        self._success: float | None = None

    async def record(self, readings: Readings) -> None:
        """Store one refresh. Raise StoreUnavailable if that fails."""
        # A refresh from the future was taken before the clock was set back.
        if readings.taken_at >= self._latest.taken_at or self._latest.taken_at > self._clock():
            self._latest = readings
        await self._access(self._readings.append(self._cluster, readings))
        quarter = readings.taken_at // _COMPACT_EVERY
        if quarter != self._compacted:
            self._compacted = quarter
            await self._or_none(self.compact())

    async def compact(self) -> None:
        """Compact the stored readings and prune old ones; `record` calls it regularly."""
        work = self._readings.compact_and_prune(self._cluster, self._clock(), self._settings.retention)
        await self._access(work)

    async def record_processes(self, processes: Processes) -> None:
        """Store the processes, replacing the previous ones."""
        self._processes = processes
        await self._put(_PROCESSES, processes)

    async def record_storage(self, use: StorageUse) -> None:
        """Store the usage of the cluster's file systems."""
        self._storage = use
        await self._put(_STORAGE, use)

    async def record_rdma(self, ports: RdmaPorts) -> None:
        """Store the state of the cluster's InfiniBand ports."""
        self._rdma = ports
        await self._put(_RDMA, ports)

    async def record_training(self, workload_uid: str, points: Sequence[TrainingPoint]) -> None:
        """Store the numbers of a training job."""
        await self._access(self._training.append(self._cluster, workload_uid, points))

    async def latest(self) -> Readings:
        """Return the newest readings of all GPUs."""
        if abs(self._clock() - self._latest.taken_at) >= self._settings.refresh:
            await self._fetch("latest", self._fetch_latest)
        if self._error:
            return dataclasses.replace(self._latest, errors={**self._latest.errors, "source": self._error})
        return self._latest

    async def processes(self) -> Processes:
        """Return the processes on the GPUs."""
        await self._fetch(_PROCESSES, self._fetch_processes)
        return self._processes

    async def storage(self) -> StorageUse | None:
        """Return the usage of the cluster's file systems, if recorded."""
        await self._fetch(_STORAGE, self._fetch_storage)
        return self._storage

    async def rdma(self) -> RdmaPorts | None:
        """Return the cluster's InfiniBand ports, if recorded."""
        await self._fetch(_RDMA, self._fetch_rdma)
        return self._rdma

    async def series(
        self, quantity: Quantity, gpus: Collection[GpuRef], start: float, end: float, step: float
    ) -> Sequence[GpuSeries]:
        """Return one quantity of some GPUs at start, start+step, … end."""
        check_span(start, end, step)
        grid = _steps(start, step, 0, int((end - start) / step + 1e-9) + 1)
        found = []
        for series in await self._stored_samples(quantity, start, end, gpus):
            values = at_steps(series, grid)
            present = ~np.isnan(values)
            if present.any():
                found.append(GpuSeries(series.gpu, grid[present], values[present]))
        return found

    async def samples(
        self, quantity: Quantity, start: float, end: float, step: float
    ) -> AsyncIterator[SampleBlock]:
        """Yield one quantity of all GPUs on the grid start, start+step, … before `end`, in blocks of an hour."""
        check_span(start, start + step, step)
        per_block = max(1, int(_BLOCK / step))
        total = max(0, int(np.ceil((end - start) / step - 1e-9)))
        for first in range(0, total, per_block):
            grid = _steps(start, step, first, min(first + per_block, total))
            found = await self._stored_samples(quantity, float(grid[0]), float(grid[-1]), None)
            if found:
                values = np.vstack([at_steps(series, grid) for series in found])
                rows: list[int] = np.flatnonzero(~np.isnan(values).all(axis=1)).tolist()
                yield SampleBlock(tuple(found[row].gpu for row in rows), grid, values[rows])

    async def extremes(
        self, quantity: Quantity, start: float, end: float, step: float
    ) -> AsyncIterator[ExtremeBlock]:
        """Yield the lowest and highest reading of all GPUs in each step before `end`, in blocks of an hour."""
        check_span(start, start + step, step)
        per_block = max(1, int(_BLOCK / step))
        total = max(0, int(np.ceil((end - start) / step - 1e-9)))
        for first in range(0, total, per_block):
            edges = _steps(start, step, first, min(first + per_block, total) + 1)
            found = await self._stored_samples(quantity, float(edges[0]), float(edges[-1]), None)
            if found:
                extremes = np.stack([in_steps(series, edges) for series in found])
                gpus = tuple(series.gpu for series in found)
                yield ExtremeBlock(gpus, edges[:-1], extremes[:, 0], extremes[:, 1])

    async def training(
        self,
        workload_uid: str,
        start: float,
        end: float,
        controllers: Collection[str] = (),
        rank: int | None = None,
    ) -> Sequence[TrainingPoint]:
        """Return the training numbers of a workload, pushed by it or read by agents from the logs of its pods."""
        points: list[TrainingPoint] = []
        try:
            for uid in dict.fromkeys((workload_uid, *list(controllers)[:_MAX_CONTROLLERS])):
                points += await self._access(self._training.read(uid, start, end, rank))
        except StoreUnavailable as error:
            raise MetricsUnavailable(str(error)) from error
        return sorted(points, key=lambda point: point.time)

    def health(self) -> SourceHealth:
        """Return whether the last access to the store succeeded."""
        health = MetricHealth(self._success, self._error)
        return SourceHealth(
            not self._error, self._success, self._last_error, {"readings": health}, ("embedded",), _EMPTY
        )

    async def _stored_samples(
        self, quantity: Quantity, start: float, end: float, gpus: Collection[GpuRef] | None
    ) -> Sequence[GpuSeries]:
        try:
            return await self._access(
                self._readings.samples(self._cluster, quantity, start - LOOKBACK, end, gpus)
            )
        except StoreUnavailable as error:
            raise MetricsUnavailable(str(error)) from error

    async def _put(self, kind: str, state: object) -> None:
        now = self._clock()
        self._fetched_at[kind] = now
        packed = msgspec.msgpack.encode(state)
        await self._access(self._readings.put_state(self._cluster, kind, now, packed))

    async def _fetch(self, kind: str, fetch: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Start `fetch` if it is due, and wait a moment for it; it goes on when the callers no longer wait."""
        loop, now = asyncio.get_running_loop(), self._clock()
        if kind not in self._fetches:
            if not self._due(kind, now):
                return
            self._fetched_at[kind] = now
            task = loop.create_task(fetch())
            task.add_done_callback(lambda _: self._fetches.pop(kind))
            self._fetches[kind] = task, loop.time() + _PATIENCE
        task, deadline = self._fetches[kind]
        done, _ = await asyncio.wait((task,), timeout=max(0.0, deadline - loop.time()))
        for each in done:
            each.result()

    async def _fetch_latest(self) -> None:
        now = self._clock()
        stored = await self._or_none(self._readings.latest(self._cluster, now + _MAX_AHEAD))
        newest = self._latest.taken_at
        if stored is not None and (stored.taken_at > newest or newest > now + _MAX_AHEAD):
            self._latest = stored

    async def _fetch_processes(self) -> None:
        self._processes = await self._state(_PROCESSES, Processes) or self._processes

    async def _fetch_storage(self) -> None:
        self._storage = await self._state(_STORAGE, StorageUse) or self._storage

    async def _fetch_rdma(self) -> None:
        self._rdma = await self._state(_RDMA, RdmaPorts) or self._rdma

    async def _state(self, kind: str, shape: type[T]) -> T | None:
        stored = await self._or_none(self._readings.state(self._cluster, kind))
        return msgspec.msgpack.decode(stored[1], type=shape) if stored else None

    def _due(self, kind: str, now: float) -> bool:
        return not 0 <= now - self._fetched_at.get(kind, -np.inf) < self._settings.refresh

    async def _or_none(self, access: Awaitable[T]) -> T | None:
        try:
            return await self._access(access)
        except StoreUnavailable as error:
            _log.warning("store_unavailable", cluster=self._cluster, error=str(error))
            return None

    async def _access(self, access: Awaitable[T]) -> T:
        try:
            result = await access
        except StoreUnavailable as error:
            self._error = self._last_error = str(error)
            raise
        self._error = ""
        self._success = self._clock()
        return result


def _steps(start: float, step: float, first: int, after: int) -> Column:
    return np.asarray(start + step * np.arange(first, after), np.float64)


def at_steps(series: GpuSeries, grid: Column) -> Column:
    """Return the value at each time of `grid`: the newest sample within `LOOKBACK`, else NaN."""
    places = np.searchsorted(series.times, grid, side="right") - 1
    known = places >= 0
    places[~known] = 0
    fresh = known & (grid - series.times[places] < LOOKBACK)
    return np.where(fresh, series.values[places], np.nan)


def in_steps(series: GpuSeries, edges: Column) -> NDArray[np.float64]:
    """Return the lowest and the highest reading between each two `edges`, the first included; NaN if none."""
    places = np.searchsorted(series.times, edges, side="left")
    found = np.full((2, len(edges) - 1), np.nan)
    present = np.flatnonzero(places[:-1] < places[1:])
    if len(present):
        values = series.values[: places[-1]]
        found[0, present] = np.fmin.reduceat(values, places[:-1][present])
        found[1, present] = np.fmax.reduceat(values, places[:-1][present])
    return found
