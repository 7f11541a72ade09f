"""Start the accounting of every cluster.

One server of a database records periods, snapshots and hours. Every server stores the workloads
that end, and reads those that ended earlier at its start, so that lists and details include them.
"""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Literal

import msgspec

from gpufleet.accounting.loop import AccountedCluster, AccountingLoop
from gpufleet.accounting.recorder import Recorder
from gpufleet.accounting.report import Report, ReportPeriod, grouping_of
from gpufleet.accounting.rollup import RollupPlan
from gpufleet.errors import SettingsError, StoreUnavailable
from gpufleet.fleet.clusters import Cluster
from gpufleet.fleet.state import Fleet
from gpufleet.fleet.workloads.archive import MAX_ARCHIVED, WorkloadRecord
from gpufleet.runtime.alert_routes import AlertRoutes
from gpufleet.runtime.settings import (
    AccountingSettings,
    AlertSettings,
    MetricsSettings,
    ReportSettings,
    Settings,
)
from gpufleet.scheduler.queues.expected_order import rules_of
from gpufleet.server.routes.accounting.report import build_report
from gpufleet.server.scheduled_reports import ScheduledReports
from gpufleet.server.wiring.components import Components
from gpufleet.server.wiring.leader_health import watch_leader
from gpufleet.sources.kubernetes.source import KubernetesSource
from gpufleet.store import Store, lead
from gpufleet.store.prune import RetentionSettings, prune, publish_retention

_STORE_ENDED_EVERY = 5.0
_RECORD_RULES_EVERY = 5.0


async def open_accounting(components: Components) -> None:
    """Start the accounting of all clusters in the background."""
    store, background = components.store, components.background
    accounts = components.accounts = [
        _account(
            cluster,
            components.settings.clusters[cluster.name][AccountingSettings],
            store,
            components.up_to_date[cluster.name],
        )
        for cluster in components.clusters
    ]
    now = await store.database.now()
    for cluster in components.clusters:
        await store.accounted.open(cluster.name, now)
        cluster.fleet.restore_ended(await store.ended.newest(cluster.name, MAX_ARCHIVED))
        background.start("ended_workloads", partial(_store_ended, cluster.fleet, store), cluster=cluster.name)

    for name, source in components.kubernetes_sources.items():
        record = partial(_record_queue_rules, name, source, store)
        background.start("queue_rules", record, cluster=name)

    retention = retention_settings(components.settings)
    await publish_retention(store, retention, now)

    async def prune_expired() -> None:
        try:
            await prune(store, retention)
        except StoreUnavailable:
            components.metrics.store_error("prune")
            raise

    for account in accounts:
        components.metrics.age("snapshots", account.recorder.cluster, partial(_age, account, "snapshot"))
        components.metrics.age("hours", account.recorder.cluster, partial(_age, account, "hours"))
    loop = AccountingLoop(accounts, store, prune_expired)
    background.start("periods", loop.collect)
    background.start("accounting", lambda: lead(lambda: store.leadership("accounting"), loop.run_as_leader))
    watch_leader(components)
    _schedule_reports(components)


def _schedule_reports(components: Components) -> None:
    """Send usage reports from one server of the database, if they are scheduled."""
    settings, store = components.settings, components.store
    if settings[ReportSettings].schedule == "never":
        return
    grouping_of(settings[ReportSettings].group_by)  # report a mistake before anything is sent

    async def build(cluster: str, period: ReportPeriod) -> Report:
        group_by = settings[ReportSettings].group_by
        currency = currency_of(settings, cluster)
        return await build_report(store, cluster, period, group_by, currency)

    reports = ScheduledReports(
        settings[ReportSettings],
        AlertRoutes(settings[AlertSettings]),
        [cluster.name for cluster in components.clusters],
        build,
        store.sent_reports.claim,
    )
    components.background.start("reports", lambda: lead(lambda: store.leadership("reports"), reports.run))


def _age(account: AccountedCluster, kind: Literal["snapshot", "hours"]) -> float | None:
    """Return the seconds since the newest snapshot, or since the end of the last hour rolled up."""
    progress = account.progress
    return time.time() - getattr(progress, kind) if progress is not None else None


def retention_settings(settings: Settings) -> RetentionSettings:
    """Return how long the accounting of each cluster is kept."""
    clusters = {name: own[AccountingSettings] for name, own in settings.clusters.items()}
    training = {name: own[MetricsSettings].training_retention for name, own in settings.clusters.items()}
    return RetentionSettings(settings[AccountingSettings], clusters, training)


def rollup_plan(settings: AccountingSettings) -> RollupPlan:
    """Return what the hourly statistics are broken down by."""
    return RollupPlan(
        label_keys=tuple(dict.fromkeys(settings.label_keys)),
        annotation_keys=tuple(dict.fromkeys(settings.annotation_keys)),
        excluded_namespaces=frozenset(settings.excluded_namespaces),
        prices=settings.prices,
    )


def currency_of(settings: Settings, cluster: str) -> str:
    """Return the unit of a cluster's costs; of a cluster without settings, that of all clusters."""
    return settings.clusters.get(cluster, settings)[AccountingSettings].currency


def snapshot_step(settings: AccountingSettings) -> int:
    """Return the whole seconds between two snapshots."""
    step = round(settings.snapshot_period)
    if 3600 % step:
        raise SettingsError(
            f"setting accounting.snapshot_period: {settings.snapshot_period:g}s must divide an hour evenly; "
            "it takes 1m, 5m, 10m, …"
        )
    return step


def _account(
    cluster: Cluster, settings: AccountingSettings, store: Store, up_to_date: Callable[[], bool]
) -> AccountedCluster:
    recorder = Recorder(cluster.fleet, store, time.time, up_to_date)
    return AccountedCluster(recorder, cluster.metrics, rollup_plan(settings), snapshot_step(settings))


async def _record_queue_rules(cluster: str, source: KubernetesSource, store: Store) -> None:
    """Record what GpuQueues allow, whenever it changes, as soon as the scheduler has written their statuses."""
    await source.gpu_queues.synced()
    recorded = b""
    while True:
        queues = list(source.gpu_queues.cache)
        rules = msgspec.json.encode(rules_of(queues), order="sorted")
        if rules != recorded and all(queue.status.conditions for queue in queues):
            await store.queue_rules.record(cluster, rules, time.time())
            recorded = rules
        await asyncio.sleep(_RECORD_RULES_EVERY)


async def _store_ended(fleet: Fleet, store: Store) -> None:
    unsaved: list[WorkloadRecord] = []
    try:
        while True:
            unsaved += fleet.drain_ended()
            await store.ended.save(fleet.cluster, unsaved)
            unsaved.clear()
            await asyncio.sleep(_STORE_ENDED_EVERY)
    finally:
        fleet.requeue_ended(unsaved)
