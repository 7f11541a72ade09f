"""Delete accounting data and training points that are older than the retention of their cluster.

Monthly partitions that expired for every cluster are dropped; in all others, rows are deleted by cluster.
`find_expired` is a dry run of `prune`. The retention of clusters that belong to other servers is in the
database, where `publish_retention` puts it. Clusters without one use the default settings.

A wrong clock or setting must not delete much: see `prune_runs` for the time that counts and when it is not
trusted. A run of the server deletes at most the oldest month of each partitioned table and `MAX_SHARE` of others;
an operator who has seen the dry run may delete everything at once.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import asyncpg

from gpufleet.errors import OperationRefused
from gpufleet.runtime.logs import get_logger
from gpufleet.runtime.settings import AccountingSettings
from gpufleet.store.partitions import first_hour, month_of, months_before, span_of
from gpufleet.store.prune_runs import MAX_SHARE, MIN_ROWS, PruneTime, confirm, prune_time, record_run
from gpufleet.store.retention_requests import record_retention, requested_retention
from gpufleet.store.store import Store
from gpufleet.store.training import TRAINING_RETENTION

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

_TRAINING = "training_point"
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
    training: Mapping[str, float] = {}
    """Seconds for which they keep training points."""


class Expired(NamedTuple):
    """A partition or a set of rows to delete."""

    table: str
    partition: str
    """The partition to drop or to delete rows from; empty for a table without partitions."""
    cluster: str
    """The cluster whose rows to delete; empty for a partition to drop."""
    rows: int
    """The number of rows; an estimate for a partition to drop."""
    oldest: float = 0.0
    newest: float = 0.0
    """The times of the rows: their ends, or the span of the partition."""


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
        await record_retention(connection, TRAINING_RETENTION, retention.training, now)

    await store.database.transaction(work)


async def find_expired(store: Store, retention: RetentionSettings) -> list[Expired]:
    """Return what `prune` would delete if it were confirmed."""
    now = (await time_of(store)).latest
    found = await store.database.transaction(lambda connection: _find(connection, retention, now))
    points = await store.training.expired(retention.training, now)
    return found + [Expired(_TRAINING, "", *each) for each in points]


async def prune(store: Store, retention: RetentionSettings, *, confirmed: bool = False) -> list[Expired]:
    """Delete expired data and return what was deleted.

    Without `confirmed` delete a bounded part, and raise OperationRefused after a gap.
    """
    time = await time_of(store)
    if time.held and not confirmed:
        raise OperationRefused(
            f"nothing is pruned: {time.held}. Correct the clock, or look at gpufleet db prune --dry-run and then "
            "run gpufleet db prune --confirm"
        )
    now = time.latest
    await publish_retention(store, retention, time.now)
    found = await find_expired(store, retention)
    if confirmed:
        await store.database.transaction(confirm)
    else:
        found = await store.database.transaction(lambda connection: _bounded(connection, found))
    clusters = await store.database.transaction(lambda connection: _clusters(connection, retention))
    for cluster in clusters:
        first = first_hour(*month_of(_oldest_hour(cluster, "workload_retention", now)))
        await store.hours.set_workloads_pruned(cluster.name, first)
    await store.database.transaction(partial(_drop_partitions, found=found))
    by_name = {cluster.name: cluster for cluster in clusters}
    for expired in found:
        if expired.table == _TRAINING:
            await store.training.prune(retention.training, now, expired.cluster, expired.rows)
        elif expired.cluster:
            await _delete(store, expired, by_name[expired.cluster], now)
        _log.info("accounting_pruned", **expired._asdict())
    for cluster in clusters:
        before = _oldest_hour(cluster, "hour_retention", now) - 24 * 31
        await store.hours.delete_states(cluster.name, before)
    return found


async def time_of(store: Store) -> PruneTime:
    """Return the time for pruning."""
    return await store.database.transaction(lambda connection: prune_time(connection, store.database.clock))


async def _bounded(connection: asyncpg.Connection, found: Sequence[Expired]) -> list[Expired]:
    """Return what one run of a server may delete of it."""
    bounded: dict[tuple[str, str], Expired] = {}
    for expired in found:
        if expired.partition:
            bounded.setdefault((expired.table, expired.cluster), expired)
            continue
        rows = max(MIN_ROWS, int(MAX_SHARE * await _estimated_rows(connection, expired.table)))
        bounded[expired.table, expired.cluster] = expired._replace(rows=min(expired.rows, rows))
    return list(bounded.values())


async def _drop_partitions(connection: asyncpg.Connection, found: Sequence[Expired]) -> None:
    for expired in found:
        if expired.partition and not expired.cluster:
            await connection.execute(f"DROP TABLE IF EXISTS {expired.partition}")
            await record_run(connection, expired.partition, "", *expired[3:])


async def _find(connection: asyncpg.Connection, retention: RetentionSettings, now: float) -> list[Expired]:
    clusters = await _clusters(connection, retention)
    found = []
    for table, name in _MONTHLY.items():
        oldest = min((_oldest_hour(cluster, name, now) for cluster in clusters), default=0)
        dropped = await months_before(connection, table, oldest)
        for each in dropped:
            rows = await _estimated_rows(connection, each)
            found.append(Expired(table, each, "", rows, *span_of(each)))
        for cluster in clusters:
            partitions = await months_before(connection, table, _oldest_hour(cluster, name, now))
            found += [
                await _count(connection, Expired(table, each, cluster.name, 0), cluster, now)
                for each in partitions
                if each not in dropped
            ]
    for table in _BY_END:
        found += [
            await _count(connection, Expired(table, "", cluster.name, 0), cluster, now)
            for cluster in clusters
        ]
    return [each for each in found if each.rows or not each.cluster]


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


async def _count(connection: asyncpg.Connection, expired: Expired, cluster: _Cluster, now: float) -> Expired:
    rows, params = _from_where(expired, cluster, now)
    extent = "0, 0" if expired.partition else "min(ended_at), max(ended_at)"
    count, *times = await connection.fetchrow(f"SELECT count(*), {extent} FROM {rows}", *params)  # noqa: S608
    oldest, newest = span_of(expired.partition) if expired.partition else times
    return expired._replace(rows=count, oldest=oldest, newest=newest)


async def _delete(store: Store, expired: Expired, cluster: _Cluster, now: float) -> None:
    rows, params = _from_where(expired, cluster, now)
    order = "" if expired.partition else "ORDER BY ended_at"
    origin = expired.partition or expired.table

    async def work(connection: asyncpg.Connection, limit: int) -> None:
        batch = f"SELECT ctid FROM {rows} {order} LIMIT {limit}"  # noqa: S608
        done = await connection.execute(f"DELETE FROM {origin} WHERE ctid = ANY (ARRAY({batch}))", *params)  # noqa: S608
        await record_run(
            connection, origin, cluster.name, int(done.split()[1]), expired.oldest, expired.newest
        )

    for deleted in range(0, expired.rows, _ROWS_PER_DELETE):
        await store.database.transaction(partial(work, limit=min(_ROWS_PER_DELETE, expired.rows - deleted)))
