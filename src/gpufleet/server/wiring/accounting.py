"""Wire accounting into the server: books over each cluster's picture, kept by one server of all.

Workloads that end are stored by every server; those that ended before are given back to the picture
at the start, so that lists and details of them still answer.
"""

import asyncio
import time
from collections.abc import Callable
from functools import partial
from typing import Literal

from gpufleet.accounting.loop import AccountedCluster, AccountingLoop
from gpufleet.accounting.ports import Shelf
from gpufleet.accounting.recorder import Recorder, Subject
from gpufleet.accounting.rollup import RollupPlan
from gpufleet.errors import SettingsError
from gpufleet.fleet.archive import KEPT_ENDED, WorkloadRecord
from gpufleet.fleet.clusters import Cluster
from gpufleet.fleet.state import Fleet
from gpufleet.runtime.settings import AccountingSettings, Settings
from gpufleet.server.routes.aggregation import aggregation_routes
from gpufleet.server.routes.aggregation_ports import Books
from gpufleet.server.routes.report import report_routes
from gpufleet.server.wiring.components import Components
from gpufleet.store import Store, lead
from gpufleet.store.prune import RetentionSettings, prune_accounting, publish_retention

_STORE_ENDED_EVERY = 5.0


async def open_accounting(parts: Components) -> None:
    """Keep the books, and answer from them."""
    store, shelf = parts.store, shelf_of(parts.store)
    accounts = [
        _account(
            cluster,
            parts.settings.clusters[cluster.name][AccountingSettings],
            shelf,
            parts.visible[cluster.name],
        )
        for cluster in parts.clusters
    ]
    for cluster in parts.clusters:
        await store.accounted.open(cluster.name, time.time())
        cluster.fleet.restore_ended(await store.ended.newest(cluster.name, KEPT_ENDED))
        parts.background.start(
            f"ended workloads of {cluster.name}", partial(_store_ended, cluster.fleet, store)
        )

    kept = kept_of(parts.settings)
    await publish_retention(store, kept, time.time())

    async def prune() -> None:
        await prune_accounting(store, kept, time.time())

    for account in accounts:
        parts.metrics.age("snapshots", account.book.cluster, partial(_age, account, "snapshot"))
        parts.metrics.age("hours", account.book.cluster, partial(_age, account, "hours"))
    clock = AccountingLoop(accounts, shelf, prune)
    parts.background.start("periods", clock.collect)
    parts.background.start("books", lambda: lead(lambda: store.leadership("accounting"), clock.keep))
    books = books_of(store, parts.clusters.default.name)
    parts.routes += [*aggregation_routes(books), *report_routes(books)]


def _age(account: AccountedCluster, what: Literal["snapshot", "hours"]) -> float | None:
    """Seconds since the newest snapshot, or since the end of the hours that are rolled up."""
    found = account.progress
    return time.time() - getattr(found, what) if found is not None else None


def shelf_of(store: Store) -> Shelf:
    """Where the books are kept."""
    return Shelf(
        store.accounted,
        store.allocation_periods,
        store.capacity_periods,
        store.snapshots,
        store.hours,
        store.ended,
    )


def books_of(store: Store, default: str) -> Books:
    """What the routes read."""
    return Books(
        default=default,
        names=store.accounted.names,
        statistics=store.statistics,
        workloads=store.workload_pages,
        snapshots=store.snapshots,
        usage=store.usage,
        series=store.usage_series,
    )


def kept_of(settings: Settings) -> RetentionSettings:
    """How long each cluster's books are kept."""
    clusters = {name: own[AccountingSettings] for name, own in settings.clusters.items()}
    return RetentionSettings(settings[AccountingSettings], clusters)


def plan_of(settings: AccountingSettings) -> RollupPlan:
    """What the bills are broken down by."""
    return RollupPlan(
        label_keys=tuple(dict.fromkeys(settings.label_keys)),
        annotation_keys=tuple(dict.fromkeys(settings.annotation_keys)),
        excluded_namespaces=frozenset(settings.excluded_namespaces),
        missing_value=settings.missing_value,
        prices={model.replace(" ", "_"): price for model, price in settings.prices.items()},
    )


def step_of(settings: AccountingSettings) -> int:
    """Whole seconds between snapshots."""
    step = round(settings.snapshot_period)
    if 3600 % step:
        raise SettingsError(
            f"setting accounting.snapshot_period: {settings.snapshot_period:g}s does not fit into an hour "
            "a whole number of times; it takes 1m, 5m, 10m, …"
        )
    return step


def _account(
    cluster: Cluster, settings: AccountingSettings, shelf: Shelf, visible: Callable[[], bool]
) -> AccountedCluster:
    fleet = cluster.fleet
    subject = Subject(
        cluster=cluster.name,
        holdings=fleet.allocation_periods,
        capacities=fleet.capacity_periods,
        billing=lambda: fleet.accounting_started,
        visible=visible,
        readings=lambda: fleet.gpu_columns.readings,
        status=_status_of(fleet),
    )
    return AccountedCluster(
        Recorder(subject, shelf, time.time), cluster.metrics, plan_of(settings), step_of(settings)
    )


def _status_of(fleet: Fleet) -> Callable[[str], str | None]:
    def status(uid: str) -> str | None:
        workload = fleet.workloads().get(uid)
        if workload is None:
            ended = fleet.ended().get(uid)
            workload = ended.workload if ended else None
        return workload.status.value if workload is not None and workload.status.ended else None

    return status


async def _store_ended(fleet: Fleet, store: Store) -> None:
    waiting: list[WorkloadRecord] = []
    try:
        while True:
            waiting += fleet.drain_ended()
            await store.ended.save(fleet.cluster, waiting)
            waiting.clear()
            await asyncio.sleep(_STORE_ENDED_EVERY)
    finally:
        fleet.requeue_ended(waiting)
