"""What `gpufleet db prune` and `gpufleet db backfill` do: forget old books, compute hours again."""

import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime

from gpufleet.accounting.roll_hour import roll_hour
from gpufleet.errors import OperationRefused, SettingsError
from gpufleet.exporters.embedded import EmbeddedMetrics
from gpufleet.exporters.prometheus.source import PrometheusSource
from gpufleet.model.metric_source import MetricSource
from gpufleet.runtime.settings import AccountingSettings, MetricsSettings, Settings, StoreSettings
from gpufleet.server.wiring.accounting import retention_settings, rollup_plan, snapshot_step
from gpufleet.store import Store
from gpufleet.store.postgres.database import open_database
from gpufleet.store.postgres.migrate import check
from gpufleet.store.prune import find_expired, prune_accounting
from gpufleet.store.store import open_server


async def prune(settings: Settings, *, dry_run: bool) -> int:
    """Forget what is older than its retention, or say what that would be."""
    async with _store(settings[StoreSettings]) as store:
        found = await (find_expired if dry_run else prune_accounting)(
            store, retention_settings(settings), time.time()
        )
    verb = "would go" if dry_run else "gone"
    for old in found:
        rows = f"{old.rows:,} rows of {old.partition or old.table}, cluster {old.cluster},"
        what = rows if old.cluster else f"{old.partition} (about {old.rows:,} rows)"
        print(f"{what} {verb}")
    if not found:
        print("nothing is older than its retention")
    return 0


async def backfill(settings: Settings, first: str, last: str, cluster: str) -> int:
    """Compute hours again from the metric source and the holding periods."""
    start, end = _hour(first, "--from"), _hour(last, "--to")
    if start > end:
        raise SettingsError("--from must not be after --to")
    names = [cluster] if cluster else list(settings.clusters)
    if unknown := [name for name in names if name not in settings.clusters]:
        raise SettingsError(
            f"--cluster: no cluster {unknown[0]!r}; there are: {', '.join(settings.clusters)}"
        )
    async with AsyncExitStack() as closing:
        store = await closing.enter_async_context(_store(settings[StoreSettings]))
        for name in names:
            hours = range(start, end + 1)
            await _backfill_one(store, name, settings.clusters[name], hours, closing)
    return 0


async def _backfill_one(
    store: Store, name: str, settings: Settings, hours: range, closing: AsyncExitStack
) -> None:
    accounting, metrics_settings = settings[AccountingSettings], settings[MetricsSettings]
    known_since = time.time() - accounting.holding_retention
    metrics: MetricSource
    if metrics_settings.url:
        metrics = await closing.enter_async_context(PrometheusSource(metrics_settings))
    else:
        metrics = EmbeddedMetrics(name, store.readings, store.training, metrics_settings)
    plan, step = rollup_plan(accounting), snapshot_step(accounting)
    for hour in hours:
        rolled = await roll_hour(name, hour, step, store, metrics, plan, lambda _uid: None, known_since)
        if rolled.kept:
            told = f"kept as it was, {rolled.kept}"
        else:
            told = f"{len(rolled.hour.workloads)} workloads" if rolled.hour else "nobody looked, no rows"
        print(f"{name} {datetime.fromtimestamp(hour * 3600, UTC):%Y-%m-%dT%H:%MZ}: {told}")


@asynccontextmanager
async def _store(settings: StoreSettings) -> AsyncIterator[Store]:
    if not settings.url and not (settings.data / "postgres").exists():
        raise OperationRefused(f"there is no database in {settings.data} yet; gpufleet db upgrade makes it")
    async with open_server(settings, share=True) as dsn:
        if (await check(dsn, settings)).pending:
            raise OperationRefused(
                "the database lacks tables of this version; gpufleet db upgrade makes them"
            )
        async with open_database(dsn, settings) as database:
            yield Store(database, dsn, settings)


def _hour(text: str, flag: str) -> int:
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise SettingsError(
            f"{flag}: {text!r} is wrong; it takes a date or a time such as 2026-10-01 or 2026-10-01T15:00Z"
        ) from None
    moment = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
    hour = int(moment.timestamp() // 3600)
    if (hour + 1) * 3600 > time.time():
        raise SettingsError(f"{flag}: the hour {text} is not over yet")
    return hour
