"""Prometheus as a `MetricSource`: one shared refresh for all callers, ranges on demand.

A background task reads the newest values every `refresh` seconds and, less often, detects the
exporters. Callers get the last readings immediately and never wait for the source. If the source is
slow, down or returns garbage, the last readings stay: their timestamps show their age, `errors` and
`health()` the reason. The refresh never raises. Partial responses are used and flagged; what they lack
stays as it was.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

import numpy as np

from gpufleet.errors import InvalidRequest, MetricsUnavailable
from gpufleet.exporters.detection import DetectedExporter, assumed_exporters, detect_exporters
from gpufleet.exporters.prometheus.client import MAX_ANSWER_BYTES, PrometheusClient
from gpufleet.exporters.prometheus.exporter_reader import ExporterReader
from gpufleet.exporters.prometheus.merge import RowLayout, merge_readings, row_layout
from gpufleet.exporters.prometheus.processes import read_processes
from gpufleet.exporters.prometheus.ranges import Grid, TimeRange, read_span
from gpufleet.exporters.prometheus.shared_queries import QueryCache, SharedQuery
from gpufleet.exporters.prometheus.snapshot import QuerySnapshot
from gpufleet.exporters.prometheus.storage_and_rdma import read_rdma, read_storage
from gpufleet.exporters.prometheus.training import PushedTraining, merged, read_training
from gpufleet.exporters.source_health import SourceHealthTracker
from gpufleet.model.metric_source import SourceHealth, check_span
from gpufleet.model.reading import (
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

MAX_CELLS = 20_000_000
"""Most values of one response, GPUs × points: 160 MB in memory."""

_BLOCK_CELLS = 1_000_000
_NAMES_SPAN = 3600.0
"""Seconds to look back for the metric names of current exporters."""
_NAMES_CACHE_BYTES = 1_000_000
_RANGES_CACHE_BYTES = 64 << 20
"""Memory for series that were requested recently: several pages of graphs of some hundred GPUs."""
DETECT_S = 300.0
"""Seconds between detections of exporters: new ones are installed rarely."""
_LOOKBACK = 300.0
"""Seconds after which a range can no longer change, as in Prometheus."""

_FIRST_WAIT = 2.0
"""Seconds that a caller waits for the first readings after the start."""

T = TypeVar("T")
_log = get_logger("metrics")


class PrometheusSource:
    """Readings from Prometheus, Thanos, Mimir or VictoriaMetrics; `async with` opens and closes it."""

    def __init__(
        self,
        settings: MetricsSettings,
        clock: Callable[[], float] = time.time,
        *,
        pushed: PushedTraining | None = None,
        detect: float = DETECT_S,
        max_answer_bytes: int = MAX_ANSWER_BYTES,
    ) -> None:
        """`pushed` has the numbers that training jobs push to the server instead of Prometheus."""
        self._settings, self._clock, self._pushed = settings, clock, pushed
        self._client = PrometheusClient(settings, max_answer_bytes=max_answer_bytes)
        self._detect_s = detect
        self._health = SourceHealthTracker(clock)
        self._readers: tuple[ExporterReader, ...] = ()
        self._names: frozenset[str] = frozenset()
        self._detected: float | None = None
        self._layout: RowLayout = row_layout(())
        self._readings = Readings(taken_at=0.0, errors={"source": "nothing was read yet"})
        self._refreshed = asyncio.Event()
        self._refreshing = asyncio.Lock()
        self._ranges: QueryCache[tuple[Grid, bool]] = QueryCache(_RANGES_CACHE_BYTES, clock)
        self._past_names: QueryCache[frozenset[str]] = QueryCache(_NAMES_CACHE_BYTES, clock)
        self._processes = self._shared(Processes(), "processes", self._fetch_processes)
        self._storage = self._shared(None, "storage", self._fetch_storage)
        self._rdma = self._shared(None, "rdma", self._fetch_rdma)
        self._on_demand: dict[str, SharedQuery[Any]] = {
            "processes": self._processes,
            "storage": self._storage,
            "rdma": self._rdma,
        }

    async def __aenter__(self) -> Self:
        self._open = AsyncExitStack()
        self._worker = ThreadPoolExecutor(1, "metrics")
        self._open.callback(self._worker.shutdown)
        await self._open.enter_async_context(self._client)
        self._open.push_async_callback(self._ranges.close)
        self._open.push_async_callback(self._past_names.close)
        for shared in self._on_demand.values():
            self._open.push_async_callback(shared.close)
        task = asyncio.create_task(self._keep_refreshing(), name="metrics-refresh")
        self._open.push_async_callback(_stop, task)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._open.aclose()

    async def latest(self) -> Readings:
        """Return the newest readings; only before the first refresh callers wait."""
        await self._wait_for_first()
        return self._readings

    async def processes(self) -> Processes:
        """Return the processes on the GPUs."""
        await self._wait_for_first()
        found = await self._processes.get()
        failed = self._health.error("processes")
        return replace(found, errors={**found.errors, "processes": failed}) if failed else found

    async def series(
        self, quantity: Quantity, gpus: Collection[GpuRef], start: float, end: float, step: float
    ) -> Sequence[GpuSeries]:
        """Return one quantity of some GPUs over time."""
        check_span(start, end, step)
        span = TimeRange(start, step, int((end - start) / step + 1e-9) + 1)
        if span.points * len(gpus) > MAX_CELLS:
            raise InvalidRequest(
                f"{len(gpus)} GPUs × {span.points} points requested, at most {MAX_CELLS} values are returned; "
                "take a larger step, a shorter span or fewer GPUs"
            )
        await self._wait_for_first()
        refs = frozenset(gpus)
        final = end < self._clock() - _LOOKBACK
        grid, _ = await self._ranges.get(
            (quantity, refs, start, end, step),
            lambda found: self._detect_s if final and found[1] else self._settings.refresh,
            lambda: self._read(quantity, refs, span),
            lambda found: 256 + sum(row.nbytes + 200 for row in found[0].values()) + 100 * len(refs),
        )
        times = span.times
        return [
            GpuSeries(gpu, times[present], grid[gpu][present])
            for gpu in sorted(grid)
            if (present := ~np.isnan(grid[gpu])).any()
        ]

    async def samples(
        self, quantity: Quantity, start: float, end: float, step: float
    ) -> AsyncIterator[SampleBlock]:
        """Yield one quantity of all GPUs in blocks of time, before `end`."""
        if not step > 0 or not start <= end:
            raise InvalidRequest(f"invalid span from {start:.15g} to {end:.15g} in steps of {step:g}")
        await self._wait_for_first()
        total = int(np.ceil((end - start) / step - 1e-9))
        per_block = max(1, _BLOCK_CELLS // max(1, len(self._readings)))
        for first in range(0, total, per_block):
            span = TimeRange(start + first * step, step, min(per_block, total - first))
            grid, _ = await self._read(quantity, None, span)
            gpus = tuple(sorted(grid))
            values = np.array([grid[gpu] for gpu in gpus]).reshape(len(gpus), span.points)
            yield SampleBlock(gpus, span.times, values)

    async def extremes(
        self, quantity: Quantity, start: float, end: float, step: float
    ) -> AsyncIterator[ExtremeBlock]:
        """Yield the lowest and highest reading of all GPUs in each step before `end`, in blocks of time."""
        if not step > 0 or not start <= end:
            raise InvalidRequest(f"invalid span from {start:.15g} to {end:.15g} in steps of {step:g}")
        await self._wait_for_first()
        total = int(np.ceil((end - start) / step - 1e-9))
        per_block = max(1, _BLOCK_CELLS // max(1, len(self._readings)))
        for first in range(0, total, per_block):
            points = min(per_block, total - first)
            # A range includes its end, a step does not.
            last = start + (first + 1) * step - 0.001
            (lowest, _), (highest, _) = await asyncio.gather(
                self._read(quantity, None, TimeRange(last, step, points, over="min")),
                self._read(quantity, None, TimeRange(last, step, points, over="max")),
            )
            gpus = tuple(sorted(lowest.keys() & highest.keys()))
            yield ExtremeBlock(
                gpus,
                TimeRange(start + first * step, step, points).times,
                np.array([lowest[gpu] for gpu in gpus]).reshape(len(gpus), points),
                np.array([highest[gpu] for gpu in gpus]).reshape(len(gpus), points),
            )

    async def training(
        self,
        workload_uid: str,
        start: float,
        end: float,
        controllers: Collection[str] = (),
        rank: int | None = None,
    ) -> Sequence[TrainingPoint]:
        """Return the training numbers of a workload or of one rank, pushed or scraped."""
        pushed = await self._pushed.read(workload_uid, start, end, rank) if self._pushed is not None else ()
        try:
            scraped = await self._scraped_training((workload_uid, *controllers), start, end)
            if rank is not None:
                scraped = [point for point in scraped if point.rank == rank]
        except MetricsUnavailable as error:
            if not pushed:
                raise
            _log.warning("scraped_training_unavailable", workload=workload_uid, error=str(error))
            return pushed
        return merged(pushed, scraped)

    async def _scraped_training(
        self, uids: Collection[str], start: float, end: float
    ) -> Sequence[TrainingPoint]:
        measured = {name for reader in self._readers for name in reader.exporter.names}
        return (await self._query("training", lambda now: read_training(now, uids, start, end, measured)))[0]

    async def storage(self) -> StorageUse | None:
        """Return the usage of the cluster's storage."""
        await self._wait_for_first()
        return await self._storage.get()

    async def rdma(self) -> RdmaPorts | None:
        """Return the cluster's InfiniBand ports."""
        await self._wait_for_first()
        return await self._rdma.get()

    def health(self) -> SourceHealth:
        """Return the health of the source."""
        exporters = tuple(dict.fromkeys(reader.exporter.definition.name for reader in self._readers))
        empty = "no known GPU exporter was found in the metric source"
        return replace(
            self._health.health(exporters),
            empty_reason=f"{', '.join(exporters)}: no GPU is reported" if exporters else empty,
        )

    def cache_counts(self) -> dict[str, dict[str, int]]:
        """Return the sizes of the caches of past readings."""
        return {"ranges": self._ranges.counts, "past_names": self._past_names.counts}

    async def _wait_for_first(self) -> None:
        """Wait for the first refresh, but not for a source that hangs."""
        try:
            await asyncio.wait_for(self._refreshed.wait(), _FIRST_WAIT)
        except TimeoutError:
            pass

    async def refresh(self) -> Readings:
        """Refresh now, in addition to the background refresh."""
        async with self._refreshing:
            snapshot = self._snapshot()
            await self._detect(snapshot)
            errors = await self._refresh_readers(snapshot)
            if not self._layout.fits(self._readers):
                self._layout = await snapshot.work(row_layout, self._readers)
            self._readings = await snapshot.work(
                merge_readings, self._layout, self._readers, errors, snapshot.at
            )
        self._refreshed.set()
        for name, shared in self._on_demand.items():
            if self._health.error(name):
                await shared.get()  # without another caller, health would stay degraded
        return self._readings

    async def _keep_refreshing(self) -> None:
        while True:
            started = time.monotonic()
            try:
                await self.refresh()
            except Exception as error:  # noqa: BLE001  (a fault must not stop the refresh)
                self._health.failed("source", f"the refresh failed: {error!r}")
                _log.exception("refresh_failed")
            await asyncio.sleep(max(0.05, self._settings.refresh - (time.monotonic() - started)))

    async def _detect(self, snapshot: QuerySnapshot) -> None:
        due = self._detected is None or not 0 <= snapshot.at - self._detected < self._detect_s
        if not due and self._readers:
            return
        only = self._settings.vocabularies
        try:
            names = await snapshot.names(snapshot.at - _NAMES_SPAN, snapshot.at)
        except MetricsUnavailable as error:
            self._health.failed("names", str(error))
            found = assumed_exporters(only) if only and not self._readers else None
        else:
            self._health.succeeded("names")
            known = self._names if snapshot.warnings else ()
            self._names, self._detected = frozenset([*names, *known]), snapshot.at
            found = await snapshot.work(detect_exporters, self._names, only)
        if found is not None:
            self._readers = tuple(self._reader(exporter) for exporter in found)

    def _reader(self, exporter: DetectedExporter) -> ExporterReader:
        """Return the existing reader of this exporter, updated, or a new one."""
        for reader in self._readers:
            before = reader.exporter
            if (before.definition.name, before.prefix) == (exporter.definition.name, exporter.prefix):
                reader.update(exporter)
                return reader
        return ExporterReader(exporter)

    async def _refresh_readers(self, snapshot: QuerySnapshot) -> dict[str, str]:
        results = await asyncio.gather(*(reader.refresh(snapshot) for reader in self._readers))
        errors: dict[str, str] = {}
        if failed := self._health.error("names"):
            errors["names"] = failed
        names = {str(quantity) for reader in self._readers for quantity in reader.exporter.quantities}
        names |= {"gpus", "holders", "faults"} if self._readers else set()
        self._health.keep_only({"names", *self._on_demand, *names})
        read: set[str] = set()
        for reader, result in zip(self._readers, results, strict=True):
            errors |= {
                name: f"{reader.exporter.definition.name}: {reason}" for name, reason in result.items()
            }
            if "gpus" not in result:
                read |= {*map(str, reader.exporter.quantities), "gpus", "holders", "faults"}
        for name in read - errors.keys():
            self._health.succeeded(name)
        if partial := self._health.partial("readings", snapshot.warnings):
            errors["partial"] = partial
        for name, reason in errors.items():
            self._health.failed(name, reason)
        return errors

    async def _read(
        self, quantity: Quantity, gpus: Collection[GpuRef] | None, span: TimeRange
    ) -> tuple[Grid, bool]:
        """Return one quantity over the span, and whether the responses were complete."""
        readers = await self._readers_for(span)
        if not readers and (failed := self._health.error("names")):
            raise MetricsUnavailable(failed)
        layout = self._layout if self._layout.fits(readers) else row_layout(readers)
        grid, partial_reason = await self._query(
            "ranges", lambda now: read_span(now, readers, layout.native, quantity, gpus, span)
        )
        return grid, not partial_reason

    async def _readers_for(self, span: TimeRange) -> tuple[ExporterReader, ...]:
        """Return the readers for a span: the current ones, unless other exporters ran then."""
        now = self._readers
        if span.start >= self._clock() - _NAMES_SPAN:
            return now
        first, last = span.start // 3600 * 3600, span.end // 3600 * 3600 + 3600
        only = self._settings.vocabularies
        try:
            names = await self._past_names.get(
                (first, last),
                lambda _: self._detect_s,
                partial(self._names_of, first, last),
                lambda found: 256 + 150 * len(found),
            )
        except MetricsUnavailable:
            if now:
                return now
            raise
        current = {name for reader in now for name in reader.exporter.names}
        if names <= current:
            return now
        exporters, then = detect_exporters(names | current, only), replace(self._snapshot(), at=span.end)
        return tuple(await asyncio.gather(*(self._past_reader(exporter, then) for exporter in exporters)))

    async def _names_of(self, first: float, last: float) -> frozenset[str]:
        """Return the names of the GPU metrics of a past span."""
        names, _ = await self._query("past_names", lambda now: now.names(first, last))
        found = await self._snapshot().work(detect_exporters, names, self._settings.vocabularies)
        return frozenset(name for exporter in found for name in exporter.names)

    async def _past_reader(self, exporter: DetectedExporter, then: QuerySnapshot) -> ExporterReader:
        reader = ExporterReader(exporter)
        known = next((r for r in self._readers if r.exporter.names >= exporter.names), None)
        if known is not None:
            reader.index, reader.percent = known.index, known.percent
        else:
            await reader.read_gpus(then)
        return reader

    async def _fetch_processes(self) -> Processes:
        readers = self._readers
        layout = self._layout if self._layout.fits(readers) else row_layout(readers)
        found, partial_reason = await self._query(
            "processes", lambda now: read_processes(now, readers, layout.native)
        )
        return replace(found, errors={**found.errors, "partial": partial_reason}) if partial_reason else found

    async def _fetch_storage(self) -> StorageUse | None:
        return (await self._query("storage", lambda now: read_storage(now, self._names)))[0]

    async def _fetch_rdma(self) -> RdmaPorts | None:
        return (await self._query("rdma", lambda now: read_rdma(now, self._names)))[0]

    async def _query(self, name: str, read: Callable[[QuerySnapshot], Awaitable[T]]) -> tuple[T, str]:
        """Return the result of `read`, and the reason if it may be partial."""
        snapshot = self._snapshot()
        found = await read(snapshot)
        return found, self._health.partial(name, snapshot.warnings)

    def _snapshot(self) -> QuerySnapshot:
        return QuerySnapshot(self._client, self._worker, self._clock())

    def _shared(self, initial: T, name: str, fetch: Callable[[], Awaitable[T]]) -> SharedQuery[T]:
        async def tracked() -> T:
            try:
                found = await fetch()
            except MetricsUnavailable as error:
                self._health.failed(name, str(error))
                raise
            except Exception as error:  # noqa: BLE001  (report it as an unavailable source)
                self._health.failed(name, f"reading it failed: {error!r}")
                _log.exception("read_failed", read=name)
                raise MetricsUnavailable(f"{name} can't be read: {error!r}") from None
            self._health.succeeded(name)
            return found

        return SharedQuery(initial, tracked, self._settings.refresh, self._clock)


async def _stop(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
