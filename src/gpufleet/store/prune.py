"""Delete accounting data that is older than the retention of its cluster.

Monthly partitions that expired for every cluster are dropped; in all others, rows are deleted by cluster.
`find_expired` is a dry run of `prune_accounting`. The retention of clusters that belong to other servers
is in the database, where `publish_retention` puts it. Clusters without one use the default settings.
"""

from collections.abc import Mapping
from typing import NamedTuple

import asyncpg

from gpufleet.runtime.logs import get_logger
from gpufleet.runtime.settings import AccountingSettings
from gpufleet.store.partitions import first_hour, month_of, months_before
from gpufleet.store.retention_requests import record_retention, requested_retention
from gpufleet.store.store import Store

_MONTHLY = {
    "snapshot": "snapshot_retention",
    "workload_hour": "workload_retention",
    "workload_count": "workload_retention",
    "cluster_hour": "hour_retention",
    "namespace_hour": "hour_retention",
    "label_hour": "hour_retention",
    "usage_day": "hour_retention",
}
_BY_END = {
    "holding": "holding_retention",
    "capacity": "holding_retention",
    "observed_span": "holding_retention",
    "queue_rules": "holding_retention",
    "ended_workload": "ended_retention",
}
"""Tables whose rows expire by their end."""

_SETTINGS = tuple(dict.fromkeys((*_MONTHLY.values(), *_BY_END.values())))
_ROWS_PER_DELETE = 100_000
"""Few enough that one statement stays below the query timeout."""
_log = get_logger("store")


class RetentionSettings(NamedTuple):
    """How long to keep accounting data."""

    default: AccountingSettings
    """For clusters without a published retention."""
    clusters: Mapping[str, AccountingSettings]
    """For the clusters of this server."""


class Expired(NamedTuple):
    """A partition or a set of rows to delete."""

    table: str
    partition: str
    """The partition to drop or to delete rows from; empty for a table without partitions."""
    cluster: str
    """The cluster whose rows to delete; empty for a partition to drop."""
    rows: int
    """The number of rows; an estimate for a partition to drop."""


class _Cluster(NamedTuple):
    name: str
    id: int
    seconds: Mapping[str, float]
    """Retention by name of the setting."""


async def publish_retention(store: Store, retention: RetentionSettings, now: float) -> None:
    """Record the retention of this server's clusters for all servers of the database."""

    async def work(connection: asyncpg.Connection) -> None:
        for name in _SETTINGS:
            seconds = {cluster: getattr(settings, name) for cluster, settings in retention.clusters.items()}
            await record_retention(connection, _key(name), seconds, now)

    await store.database.transaction(work)


async def find_expired(store: Store, retention: RetentionSettings, now: float) -> list[Expired]:
    """Return what `prune_accounting` would delete."""
    return await store.database.transaction(lambda connection: _find(connection, retention, now))


async def prune_accounting(store: Store, retention: RetentionSettings, now: float) -> list[Expired]:
    """Delete expired data and return what was deleted."""
    await publish_retention(store, retention, now)
    found = await find_expired(store, retention, now)

    async def drop_partitions(connection: asyncpg.Connection) -> None:
        for expired in found:
            if not expired.cluster:
                await connection.execute(f"DROP TABLE IF EXISTS {expired.partition}")

    clusters = await store.database.transaction(lambda connection: _clusters(connection, retention))
    for cluster in clusters:
        first = first_hour(*month_of(_oldest_hour(cluster, "workload_retention", now)))
        await store.hours.set_workloads_pruned(cluster.name, first)
    await store.database.transaction(drop_partitions)
    by_name = {cluster.name: cluster for cluster in clusters}
    for expired in found:
        if expired.cluster:
            await _delete(store, expired, by_name[expired.cluster], now)
        _log.info("accounting_pruned", **expired._asdict())
    for cluster in clusters:
        before = _oldest_hour(cluster, "hour_retention", now) - 24 * 31
        await store.hours.delete_states(cluster.name, before)
    return found


async def _find(connection: asyncpg.Connection, retention: RetentionSettings, now: float) -> list[Expired]:
    clusters = await _clusters(connection, retention)
    found = []
    for table, name in _MONTHLY.items():
        oldest = min((_oldest_hour(cluster, name, now) for cluster in clusters), default=0)
        dropped = await months_before(connection, table, oldest)
        found += [
            Expired(table, partition, "", await _estimated_rows(connection, partition))
            for partition in dropped
        ]
        for cluster in clusters:
            partitions = await months_before(connection, table, _oldest_hour(cluster, name, now))
            found += [Expired(table, each, cluster.name, 0) for each in partitions if each not in dropped]
    found += [Expired(table, "", cluster.name, 0) for table in _BY_END for cluster in clusters]
    by_name = {cluster.name: cluster for cluster in clusters}
    counted = [
        each._replace(rows=await _count(connection, each, by_name[each.cluster], now))
        if each.cluster
        else each
        for each in found
    ]
    return [each for each in counted if each.rows or not each.cluster]


async def _clusters(connection: asyncpg.Connection, retention: RetentionSettings) -> list[_Cluster]:
    """Return all clusters with accounting data and their retention."""
    requested = {name: await requested_retention(connection, _key(name)) for name in _SETTINGS}

    def seconds(cluster: str, name: str) -> float:
        own = retention.clusters.get(cluster)
        fallback: float = getattr(own or retention.default, name)
        return fallback if own else requested[name].get(cluster, fallback)

    return [
        _Cluster(row["name"], row["id"], {name: seconds(row["name"], name) for name in _SETTINGS})
        for row in await connection.fetch("SELECT id, name FROM accounted_cluster ORDER BY id")
    ]


def _key(name: str) -> str:
    return f"accounting.{name}"


def _oldest_hour(cluster: _Cluster, name: str, now: float) -> int:
    """Return the oldest hour that a cluster keeps."""
    return int(max(0.0, now - cluster.seconds[name]) // 3600)


def _from_where(expired: Expired, cluster: _Cluster, now: float) -> tuple[str, list[object]]:
    """Return the table with the condition that selects the rows, and the parameters of the condition."""
    if expired.partition:
        return f"{expired.partition} WHERE cluster = $1", [cluster.id]
    key = cluster.name if expired.table == "ended_workload" else cluster.id
    before = now - cluster.seconds[_BY_END[expired.table]]
    return f"{expired.table} WHERE cluster = $1 AND ended_at < $2", [key, before]


async def _estimated_rows(connection: asyncpg.Connection, partition: str) -> int:
    query = "SELECT greatest(reltuples, 0)::bigint FROM pg_class WHERE oid = $1::text::regclass"
    return int(await connection.fetchval(query, partition))


async def _count(connection: asyncpg.Connection, expired: Expired, cluster: _Cluster, now: float) -> int:
    rows, params = _from_where(expired, cluster, now)
    return int(await connection.fetchval(f"SELECT count(*) FROM {rows}", *params))  # noqa: S608


async def _delete(store: Store, expired: Expired, cluster: _Cluster, now: float) -> None:
    rows, params = _from_where(expired, cluster, now)
    batch = f"SELECT ctid FROM {rows} LIMIT {_ROWS_PER_DELETE}"  # noqa: S608
    query = f"DELETE FROM {expired.partition or expired.table} WHERE ctid = ANY (ARRAY({batch}))"  # noqa: S608
    for _ in range(0, expired.rows, _ROWS_PER_DELETE):
        await store.database.execute(query, *params)
