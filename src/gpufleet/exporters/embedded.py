"""Readings without a Prometheus: what is recorded here is kept in the store and asked back.

The newest refresh is answered from memory; a server that does not record (one of several
replicas) fetches it from the store, all callers together at most once a refresh. Ranges
answer as Prometheus does: at each step the newest sample of the last five minutes, and
nothing from the moment at which a GPU was seen without one. Every quarter of an hour the
store is told to tidy up, which is also when old readings are forgotten.
"""

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from typing import Protocol, TypeVar

import msgspec
import numpy as np

from gpufleet.errors import MetricsUnavailable, StoreUnavailable
from gpufleet.model.metric_source import MetricHealth, SourceHealth, check_span
from gpufleet.model.reading import (
    Column,
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

LOOKBACK = 300.0
"""Seconds for which a sample stands, as in Prometheus."""

_AHEAD = 60.0
"""Seconds into the future from which readings are not the newest: a clock was ahead and is right again."""

_TIDY_EVERY = 900.0
_BLOCK = 3600.0
"""Seconds of samples that are in memory at once."""

_PROCESSES, _STORAGE, _RDMA = "processes", "storage", "rdma"
_log = get_logger("metrics")
T = TypeVar("T")


class ReadingStore(Protocol):
    """What keeps the readings; the store's part `readings` does."""

    async def append(self, cluster: str, readings: Readings) -> None:
        """Store one refresh."""

    async def latest(self, cluster: str, until: float) -> Readings | None:
        """The newest refresh that was taken until then."""

    async def samples(
        self,
        cluster: str,
        quantity: Quantity,
        start: float,
        end: float,
        gpus: Collection[GpuRef] | None = None,
    ) -> Sequence[GpuSeries]:
        """Samples in order of time; a NaN value says that there is none from then on."""
        ...

    async def put_state(self, cluster: str, kind: str, taken_at: float, state: bytes) -> None:
        """Keep the newest state of a kind."""

    async def state(self, cluster: str, kind: str) -> tuple[float, bytes] | None:
        """The newest state of a kind."""

    async def compact_and_prune(self, cluster: str, now: float, keep: float) -> None:
        """Make what is stored small, and forget what is older than `keep` seconds."""


class TrainingStore(Protocol):
    """What keeps the numbers of training jobs; the store's part `training` does."""

    async def append(self, cluster: str, workload_uid: str, points: Sequence[TrainingPoint]) -> None:
        """Store points."""

    async def read(self, workload_uid: str, start: float, end: float) -> Sequence[TrainingPoint]:
        """Points in order of time."""
        ...


class EmbeddedMetrics:
    """A `MetricSource` on the store, and the way in for readings that nobody else keeps."""

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
        self._asked: dict[str, float] = {}
        self._asking = asyncio.Lock()
        self._processes = Processes()
        self._storage: StorageUse | None = None
        self._rdma: RdmaPorts | None = None
        self._tidied = 0.0
        self._error = ""
        self._last_error = ""
        self._success: float | None = None

    async def record(self, readings: Readings) -> None:
        """Keep one refresh. It is stored when this returns; raises StoreUnavailable if it is not."""
        # What was taken in the future was taken before the clock was set back.
        if readings.taken_at >= self._latest.taken_at or self._latest.taken_at > self._clock():
            self._latest = readings
        await self._at_store(self._readings.append(self._cluster, readings))
        quarter = readings.taken_at // _TIDY_EVERY
        if quarter != self._tidied:
            self._tidied = quarter
            await self._or_none(self.tidy())

    async def tidy(self) -> None:
        """Make what is stored small and forget what is too old; `record` calls it in time."""
        now = self._clock()
        await self._at_store(self._readings.compact_and_prune(self._cluster, now, self._settings.retention))

    async def record_processes(self, processes: Processes) -> None:
        """Keep the processes; only the newest are."""
        self._processes = processes
        await self._put(_PROCESSES, processes)

    async def record_storage(self, use: StorageUse) -> None:
        """Keep how full the cluster's file systems are."""
        self._storage = use
        await self._put(_STORAGE, use)

    async def record_rdma(self, ports: RdmaPorts) -> None:
        """Keep the state of the cluster's InfiniBand ports."""
        self._rdma = ports
        await self._put(_RDMA, ports)

    async def record_training(self, workload_uid: str, points: Sequence[TrainingPoint]) -> None:
        """Keep what a training job reports. Stored when this returns."""
        await self._at_store(self._training.append(self._cluster, workload_uid, points))

    async def latest(self) -> Readings:
        """The newest readings of all GPUs."""
        now = self._clock()
        if abs(now - self._latest.taken_at) >= self._settings.refresh and self._due("latest", now):
            async with self._asking:
                if self._due("latest", now):
                    self._asked["latest"] = now
                    kept = await self._or_none(self._readings.latest(self._cluster, now + _AHEAD))
                    newest = self._latest.taken_at
                    if kept is not None and (kept.taken_at > newest or newest > now + _AHEAD):
                        self._latest = kept
        if self._error:
            return dataclasses.replace(self._latest, errors={**self._latest.errors, "source": self._error})
        return self._latest

    async def processes(self) -> Processes:
        """The processes on the GPUs."""
        self._processes = await self._state(_PROCESSES, Processes) or self._processes
        return self._processes

    async def storage(self) -> StorageUse | None:
        """The cluster's file systems, if somebody recorded them."""
        self._storage = await self._state(_STORAGE, StorageUse) or self._storage
        return self._storage

    async def rdma(self) -> RdmaPorts | None:
        """The cluster's InfiniBand ports, if somebody recorded them."""
        self._rdma = await self._state(_RDMA, RdmaPorts) or self._rdma
        return self._rdma

    async def series(
        self, quantity: Quantity, gpus: Collection[GpuRef], start: float, end: float, step: float
    ) -> Sequence[GpuSeries]:
        """One quantity of the GPUs named at start, start+step, … end."""
        check_span(start, end, step)
        grid = _steps(start, step, 0, int((end - start) / step + 1e-9) + 1)
        kept = await self._past(quantity, start, end, gpus)
        found = []
        for series in kept:
            values = at_steps(series, grid)
            there = ~np.isnan(values)
            if there.any():
                found.append(GpuSeries(series.gpu, grid[there], values[there]))
        return found

    async def samples(
        self, quantity: Quantity, start: float, end: float, step: float
    ) -> AsyncIterator[SampleBlock]:
        """One quantity of all GPUs on the grid start, start+step, … before `end`, an hour at a time."""
        check_span(start, start + step, step)
        at_once = max(1, int(_BLOCK / step))
        total = max(0, int(np.ceil((end - start) / step - 1e-9)))
        for first in range(0, total, at_once):
            grid = _steps(start, step, first, min(first + at_once, total))
            kept = await self._past(quantity, float(grid[0]), float(grid[-1]), None)
            if kept:
                values = np.vstack([at_steps(series, grid) for series in kept])
                rows: list[int] = np.flatnonzero(~np.isnan(values).all(axis=1)).tolist()
                yield SampleBlock(tuple(kept[row].gpu for row in rows), grid, values[rows])

    async def training(
        self, workload_uid: str, start: float, end: float, controllers: Collection[str] = ()
    ) -> Sequence[TrainingPoint]:
        """What a workload reported of its training; what is pushed is kept for the workload itself."""
        try:
            return await self._at_store(self._training.read(workload_uid, start, end))
        except StoreUnavailable as error:
            raise MetricsUnavailable(str(error)) from error

    def health(self) -> SourceHealth:
        """How the store fared when it was last needed for readings."""
        health = MetricHealth(self._success, self._error)
        return SourceHealth(
            not self._error, self._success, self._last_error, {"readings": health}, ("embedded",)
        )

    async def _past(
        self, quantity: Quantity, start: float, end: float, gpus: Collection[GpuRef] | None
    ) -> Sequence[GpuSeries]:
        try:
            return await self._at_store(
                self._readings.samples(self._cluster, quantity, start - LOOKBACK, end, gpus)
            )
        except StoreUnavailable as error:
            raise MetricsUnavailable(str(error)) from error

    async def _put(self, kind: str, state: object) -> None:
        now = self._clock()
        self._asked[kind] = now
        packed = msgspec.msgpack.encode(state)
        await self._at_store(self._readings.put_state(self._cluster, kind, now, packed))

    async def _state(self, kind: str, shape: type[T]) -> T | None:
        now = self._clock()
        if not self._due(kind, now):
            return None
        self._asked[kind] = now
        kept = await self._or_none(self._readings.state(self._cluster, kind))
        return msgspec.msgpack.decode(kept[1], type=shape) if kept else None

    def _due(self, what: str, now: float) -> bool:
        return not 0 <= now - self._asked.get(what, -np.inf) < self._settings.refresh

    async def _or_none(self, answer: Awaitable[T]) -> T | None:
        try:
            return await self._at_store(answer)
        except StoreUnavailable as error:
            _log.warning("readings_not_reachable", reason=str(error))
            return None

    async def _at_store(self, answer: Awaitable[T]) -> T:
        try:
            result = await answer
        except StoreUnavailable as error:
            self._error = self._last_error = str(error)
            raise
        self._error = ""
        self._success = self._clock()
        return result


def _steps(start: float, step: float, first: int, after: int) -> Column:
    return np.asarray(start + step * np.arange(first, after), np.float64)


def at_steps(series: GpuSeries, grid: Column) -> Column:
    """The value at each time of `grid`: the newest sample not older than `LOOKBACK`, else NaN."""
    places = np.searchsorted(series.times, grid, side="right") - 1
    known = places >= 0
    places[~known] = 0
    fresh = known & (grid - series.times[places] < LOOKBACK)
    return np.where(fresh, series.values[places], np.nan)
