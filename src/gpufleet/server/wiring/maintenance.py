"""Prune and backfill accounting data outside of a server, for `gpufleet db`."""

from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NamedTuple

from gpufleet.accounting.roll_hour import RolledHour, roll_hour
from gpufleet.errors import OperationRefused
from gpufleet.exporters.embedded import EmbeddedMetrics
from gpufleet.exporters.prometheus.source import PrometheusSource
from gpufleet.model.metric_source import MetricSource
from gpufleet.runtime.settings import AccountingSettings, MetricsSettings, Settings, StoreSettings
from gpufleet.server.wiring.accounting import retention_settings, rollup_plan, snapshot_step
from gpufleet.store import Store
from gpufleet.store.postgres.database import open_database
from gpufleet.store.postgres.migrate import check
from gpufleet.store.prune import Expired, find_expired, time_of
from gpufleet.store.prune import prune as prune_store
from gpufleet.store.prune_runs import PruneRun, PruneTime, last_runs
from gpufleet.store.store import open_server
from gpufleet.store.suspicious_owners import SuspiciousOwner, find_suspicious_owners

_SHOWN_RUNS = 5


class BackfilledHour(NamedTuple):
    """The result for one hour of one cluster."""

    cluster: str
    hour: int
    result: RolledHour


class Pruning(NamedTuple):
    """What was or would be deleted."""

    expired: Sequence[Expired]
    time: PruneTime
    runs: Sequence[PruneRun]
    """The last deletions."""


async def prune(settings: Settings, *, confirmed: bool) -> Pruning:
    """Return what is older than its retention; with `confirmed` delete it."""
    retention = retention_settings(settings)
    async with _open_existing_store(settings[StoreSettings]) as store:
        time = await time_of(store)
        runs = await store.database.transaction(lambda connection: last_runs(connection, _SHOWN_RUNS))
        if confirmed:
            expired = await prune_store(store, retention, confirmed=True)
        else:
            expired = await find_expired(store, retention)
    return Pruning(expired, time, runs)


async def suspicious_owners(settings: Settings) -> Sequence[SuspiciousOwner]:
    """Return the workloads whose stored rows are in several namespaces."""
    async with _open_existing_store(settings[StoreSettings]) as store:
        return await find_suspicious_owners(store.database)


async def backfill(
    settings: Settings, clusters: Sequence[str], hours: range
) -> AsyncIterator[BackfilledHour]:
    """Compute hours again from the metric source and the allocation periods."""
    async with AsyncExitStack() as closing:
        store = await closing.enter_async_context(_open_existing_store(settings[StoreSettings]))
        for name in clusters:
            own = settings.clusters[name]
            accounting = own[AccountingSettings]
            metrics = await _open_metrics(name, own[MetricsSettings], store, closing)
            plan, step = rollup_plan(accounting), snapshot_step(accounting)
            known_since = await store.database.now() - accounting.holding_retention
            for hour in hours:
                result = await roll_hour(
                    name, hour, step, store, metrics, plan, lambda _uid: None, known_since
                )
                yield BackfilledHour(name, hour, result)


async def _open_metrics(
    cluster: str, settings: MetricsSettings, store: Store, closing: AsyncExitStack
) -> MetricSource:
    if settings.url:
        return await closing.enter_async_context(PrometheusSource(settings))
    return EmbeddedMetrics(cluster, store.readings, store.training, settings)


@asynccontextmanager
async def _open_existing_store(settings: StoreSettings) -> AsyncIterator[Store]:
    if not settings.url and not (settings.data / "postgres").exists():
        raise OperationRefused(
            f"there is no database in {settings.data} yet; create it with gpufleet db upgrade"
        )
    async with open_server(settings, share=True) as dsn:
        if (await check(dsn, settings)).pending:
            raise OperationRefused(
                "the database lacks tables of this version; create them with gpufleet db upgrade"
            )
        async with open_database(dsn, settings) as database:
            yield Store(database, dsn, settings)
