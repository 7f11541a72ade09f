"""Prometheus as a `MetricSource`: one shared refresh for everybody, ranges on demand.

A background task fetches the newest readings every `refresh` seconds and, less often, looks
which exporters there are. Callers get the last picture at once and never wait for the source.
When the source is slow, down or talks nonsense, the picture stays, its timestamps tell its
age, `errors` and `health()` tell why; nothing raises out of the refresh. Answers that are not
whole are taken, and what they lack stays as it was; that they are not whole is told.
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
from gpufleet.exporters.prometheus.client import PrometheusClient
from gpufleet.exporters.prometheus.exporter_reader import ExporterReader
from gpufleet.exporters.prometheus.merge import RowLayout, merge_readings, row_layout
from gpufleet.exporters.prometheus.processes import read_processes
from gpufleet.exporters.prometheus.ranges import Grid, TimeRange, read_span
from gpufleet.exporters.prometheus.shared_queries import Cache, SharedQueries
from gpufleet.exporters.prometheus.snapshot import QuerySnapshot
from gpufleet.exporters.prometheus.storage_and_rdma import read_rdma, read_storage
from gpufleet.exporters.pushed_training import PushedTraining, merged, read_training
from gpufleet.exporters.source_health import SourceHealthLog
from gpufleet.model.metric_source import SourceHealth, check_span
from gpufleet.model.reading import (
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
"""Most values of one answer, GPUs × points: 160 MB while it is put together."""

_BLOCK_CELLS = 1_000_000
_NAMES_SPAN = 3600.0
"""Seconds that one looks back for the exporters of now."""
_NAMES_CACHED = 1_000_000
"""Bytes for the names of past spans."""
_SETTLED = 300.0
"""Seconds after which Prometheus' look back no longer changes what a range says."""

_PATIENCE = 2.0
"""Seconds that a caller waits for the first picture after the start."""

T = TypeVar("T")
log = get_logger("metrics")


class PrometheusSource:
    """Readings from Prometheus, Thanos, Mimir or VictoriaMetrics; `async with` opens and closes it."""

    def __init__(
        self,
        settings: MetricsSettings,
        clock: Callable[[], float] = time.time,
        *,
        pushed: PushedTraining | None = None,
    ) -> None:
        """`pushed` has the numbers of training jobs that report to us and not to Prometheus."""
        self._settings, self._clock, self._pushed = settings, clock, pushed
        self._client = PrometheusClient(settings)
        self._journal = SourceHealthLog(clock)
        self._readers: tuple[ExporterReader, ...] = ()
        self._names: frozenset[str] = frozenset()
        self._detected: float | None = None
        self._layout: RowLayout = row_layout(())
        self._picture = Readings(taken_at=0.0, errors={"source": "nothing was read yet"})
        self._first = asyncio.Event()
        self._turn = asyncio.Lock()
        self._ranges: Cache[tuple[Grid, bool]] = Cache(settings.cache_bytes, clock)
        self._past_names: Cache[frozenset[str]] = Cache(_NAMES_CACHED, clock)
        self._processes = self._shared(Processes(), "processes", self._fetch_processes)
        self._storage = self._shared(None, "storage", self._fetch_storage)
        self._rdma = self._shared(None, "rdma", self._fetch_rdma)
        self._on_demand: dict[str, SharedQueries[Any]] = {
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
        """The newest picture; only before the first there is something to wait for."""
        await self._opened()
        return self._picture

    async def processes(self) -> Processes:
        """The processes on the GPUs."""
        await self._opened()
        found = await self._processes.get()
        failed = self._journal.error("processes")
        return replace(found, errors={**found.errors, "processes": failed}) if failed else found

    async def series(
        self, quantity: Quantity, gpus: Collection[GpuRef], start: float, end: float, step: float
    ) -> Sequence[GpuSeries]:
        """One quantity of some GPUs over time."""
        check_span(start, end, step)
        span = TimeRange(start, step, int((end - start) / step + 1e-9) + 1)
        if span.points * len(gpus) > MAX_CELLS:
            raise InvalidRequest(
                f"{len(gpus)} GPUs × {span.points} points asked for, at most {MAX_CELLS} values are answered; "
                "take a larger step, a shorter span or fewer GPUs"
            )
        await self._opened()
        wanted = frozenset(gpus)
        settled = end < self._clock() - _SETTLED
        grid, _ = await self._ranges.get(
            (quantity, wanted, start, end, step),
            lambda found: self._settings.detect if settled and found[1] else self._settings.refresh,
            lambda: self._read(quantity, wanted, span),
            lambda found: 256 + sum(row.nbytes + 200 for row in found[0].values()) + 100 * len(wanted),
        )
        times = span.times
        return [
            GpuSeries(gpu, times[here], grid[gpu][here])
            for gpu in sorted(grid)
            if (here := ~np.isnan(grid[gpu])).any()
        ]

    async def samples(
        self, quantity: Quantity, start: float, end: float, step: float
    ) -> AsyncIterator[SampleBlock]:
        """One quantity of all GPUs in blocks of time, the grid's last time before `end`."""
        if not step > 0 or not start <= end:
            raise InvalidRequest(f"no span from {start:.15g} to {end:.15g} in steps of {step:g}")
        await self._opened()
        left = int(np.ceil((end - start) / step - 1e-9))
        at_once = max(1, _BLOCK_CELLS // max(1, len(self._picture)))
        for first in range(0, left, at_once):
            span = TimeRange(start + first * step, step, min(at_once, left - first))
            grid, _ = await self._read(quantity, None, span)
            gpus = tuple(sorted(grid))
            values = np.array([grid[gpu] for gpu in gpus]).reshape(len(gpus), span.points)
            yield SampleBlock(gpus, span.times, values)

    async def training(
        self, workload_uid: str, start: float, end: float, controllers: Collection[str] = ()
    ) -> Sequence[TrainingPoint]:
        """What a workload reported of its training, here or to Prometheus."""
        pushed = await self._pushed.read(workload_uid, start, end) if self._pushed is not None else ()
        try:
            scraped = await self._scraped_training((workload_uid, *controllers), start, end)
        except MetricsUnavailable as error:
            if not pushed:
                raise
            log.warning("training_only_as_pushed", workload=workload_uid, reason=str(error))
            return pushed
        return merged(pushed, scraped)

    async def _scraped_training(
        self, uids: Collection[str], start: float, end: float
    ) -> Sequence[TrainingPoint]:
        measured = {name for reader in self._readers for name in reader.dialect.names}
        return (await self._asked("training", lambda now: read_training(now, uids, start, end, measured)))[0]

    async def storage(self) -> StorageUse | None:
        """The cluster's file systems."""
        await self._opened()
        return await self._storage.get()

    async def rdma(self) -> RdmaPorts | None:
        """The cluster's InfiniBand ports."""
        await self._opened()
        return await self._rdma.get()

    def health(self) -> SourceHealth:
        """How the source fares."""
        spoken = tuple(dict.fromkeys(reader.dialect.vocabulary.name for reader in self._readers))
        return self._journal.health(spoken)

    async def _opened(self) -> None:
        """Wait for the first picture, but not for a source that hangs."""
        try:
            await asyncio.wait_for(self._first.wait(), _PATIENCE)
        except TimeoutError:
            pass

    async def refresh(self) -> Readings:
        """Fetch the newest picture now, beside the background refresh."""
        async with self._turn:
            moment = self._now()
            await self._detect(moment)
            errors = await self._refresh_readers(moment)
            if not self._layout.fits(self._readers):
                self._layout = await moment.work(row_layout, self._readers)
            self._picture = await moment.work(merge_readings, self._layout, self._readers, errors, moment.at)
        self._first.set()
        for name, shared in self._on_demand.items():
            if self._journal.error(name):
                await shared.get()  # nobody may ever ask for it again, and health would stay degraded
        return self._picture

    async def _keep_refreshing(self) -> None:
        while True:
            started = time.monotonic()
            try:
                await self.refresh()
            except Exception as error:
                self._journal.failed("source", f"the refresh broke: {error!r}")
                log.exception("refresh broke")
            await asyncio.sleep(max(0.05, self._settings.refresh - (time.monotonic() - started)))

    async def _detect(self, moment: QuerySnapshot) -> None:
        due = self._detected is None or not 0 <= moment.at - self._detected < self._settings.detect
        if not due and self._readers:
            return
        only = self._settings.vocabularies
        try:
            names = await moment.names(moment.at - _NAMES_SPAN, moment.at)
        except MetricsUnavailable as error:
            self._journal.failed("names", str(error))
            found = assumed_exporters(only) if only and not self._readers else None
        else:
            self._journal.succeeded("names")
            known = self._names if moment.shortfalls else ()
            self._names, self._detected = frozenset([*names, *known]), moment.at
            found = await moment.work(detect_exporters, self._names, only)
        if found is not None:
            self._readers = tuple(self._reader(dialect) for dialect in found)

    def _reader(self, dialect: DetectedExporter) -> ExporterReader:
        """The reader that has this dialect already, so that it keeps what it knows, or a new one."""
        for reader in self._readers:
            before = reader.dialect
            if (before.vocabulary.name, before.prefix) == (dialect.vocabulary.name, dialect.prefix):
                reader.speak(dialect)
                return reader
        return ExporterReader(dialect)

    async def _refresh_readers(self, moment: QuerySnapshot) -> dict[str, str]:
        results = await asyncio.gather(*(reader.refresh(moment) for reader in self._readers))
        errors: dict[str, str] = {}
        if failed := self._journal.error("names"):
            errors["names"] = failed
        asked = {str(quantity) for reader in self._readers for quantity in reader.dialect.quantities}
        asked |= {"gpus", "holders", "faults"} if self._readers else set()
        self._journal.only({"names", *self._on_demand, *asked})
        read: set[str] = set()
        for reader, result in zip(self._readers, results, strict=True):
            errors |= {name: f"{reader.dialect.vocabulary.name}: {why}" for name, why in result.items()}
            if "gpus" not in result:
                read |= {*map(str, reader.dialect.quantities), "gpus", "holders", "faults"}
        for name in read - errors.keys():
            self._journal.succeeded(name)
        if partial := self._journal.partial("readings", moment.shortfalls):
            errors["partial"] = partial
        for name, reason in errors.items():
            self._journal.failed(name, reason)
        return errors

    async def _read(
        self, quantity: Quantity, gpus: Collection[GpuRef] | None, span: TimeRange
    ) -> tuple[Grid, bool]:
        """One quantity over the span, and whether the answers were whole."""
        readers = await self._speakers(span)
        if not readers and (failed := self._journal.error("names")):
            raise MetricsUnavailable(failed)
        layout = self._layout if self._layout.fits(readers) else row_layout(readers)
        grid, lacks = await self._asked(
            "ranges", lambda now: read_span(now, readers, layout.native, quantity, gpus, span)
        )
        return grid, not lacks

    async def _speakers(self, span: TimeRange) -> tuple[ExporterReader, ...]:
        """The readers for a span: those of now, unless other exporters ran then."""
        now = self._readers
        if span.start >= self._clock() - _NAMES_SPAN:
            return now
        first, last = span.start // 3600 * 3600, span.end // 3600 * 3600 + 3600
        only = self._settings.vocabularies
        try:
            names = await self._past_names.get(
                (first, last),
                lambda _: self._settings.detect,
                partial(self._names_of, first, last),
                lambda found: 256 + 150 * len(found),
            )
        except MetricsUnavailable:
            if now:
                return now
            raise
        spoken = {name for reader in now for name in reader.dialect.names}
        if names <= spoken:
            return now
        both, then = detect_exporters(names | spoken, only), replace(self._now(), at=span.end)
        return tuple(await asyncio.gather(*(self._past_reader(dialect, then) for dialect in both)))

    async def _names_of(self, first: float, last: float) -> frozenset[str]:
        """The metrics of GPUs that there were."""
        names, _ = await self._asked("past names", lambda now: now.names(first, last))
        found = await self._now().work(detect_exporters, names, self._settings.vocabularies)
        return frozenset(name for dialect in found for name in dialect.names)

    async def _past_reader(self, dialect: DetectedExporter, then: QuerySnapshot) -> ExporterReader:
        reader = ExporterReader(dialect)
        known = next((r for r in self._readers if r.dialect.names >= dialect.names), None)
        if known is not None:
            reader.roster, reader.percent = known.roster, known.percent
        else:
            await reader.read_gpus(then)
        return reader

    async def _fetch_processes(self) -> Processes:
        readers = self._readers
        layout = self._layout if self._layout.fits(readers) else row_layout(readers)
        found, lacks = await self._asked("processes", lambda now: read_processes(now, readers, layout.native))
        return replace(found, errors={**found.errors, "partial": lacks}) if lacks else found

    async def _fetch_storage(self) -> StorageUse | None:
        return (await self._asked("storage", lambda now: read_storage(now, self._names)))[0]

    async def _fetch_rdma(self) -> RdmaPorts | None:
        return (await self._asked("rdma", lambda now: read_rdma(now, self._names)))[0]

    async def _asked(self, what: str, read: Callable[[QuerySnapshot], Awaitable[T]]) -> tuple[T, str]:
        """What `read` finds now, and what is said if it may not be all."""
        moment = self._now()
        found = await read(moment)
        return found, self._journal.partial(what, moment.shortfalls)

    def _now(self) -> QuerySnapshot:
        return QuerySnapshot(self._client, self._worker, self._clock())

    def _shared(self, initial: T, name: str, fetch: Callable[[], Awaitable[T]]) -> SharedQueries[T]:
        async def told() -> T:
            try:
                found = await fetch()
            except MetricsUnavailable as error:
                self._journal.failed(name, str(error))
                raise
            except Exception as error:
                self._journal.failed(name, f"reading it broke: {error!r}")
                log.exception("reading broke", what=name)
                raise MetricsUnavailable(f"{name} can't be read: {error!r}") from None
            self._journal.succeeded(name)
            return found

        return SharedQueries(initial, told, self._settings.refresh, self._clock)


async def _stop(task: "asyncio.Task[None]") -> None:
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
