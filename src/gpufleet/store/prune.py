"""Forget what is older than its cluster's retention: months that nobody wants are dropped, the rest is deleted.

`find` says what would go without touching it; `apply` does it. What clusters of other servers want is in the
database (`tell` puts it there); clusters of which nobody ever said it want what `settings` says for all.
"""

from collections.abc import Mapping
from typing import NamedTuple

import asyncpg

from gpufleet.runtime.logs import get_logger
from gpufleet.runtime.settings import AccountingSettings
from gpufleet.store import retention
from gpufleet.store.partitions import first_hour, month_of, months_before
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
    "ended_workload": "ended_retention",
}
"""Tables whose rows go by when they ended."""

_SETTINGS = tuple(dict.fromkeys((*_MONTHLY.values(), *_BY_END.values())))
_AT_ONCE = 100_000
_log = get_logger("store")


class Kept(NamedTuple):
    """How long accounting keeps what it has."""

    settings: AccountingSettings
    """For clusters of which nobody has said it."""
    clusters: Mapping[str, AccountingSettings]
    """For the clusters of this server."""


class Old(NamedTuple):
    """Something that is too old."""

    table: str
    part: str
    """The partition that goes, or in which rows are deleted; empty where there are none."""
    cluster: str
    """Whose rows are deleted; empty where a partition goes as a whole."""
    rows: int
    """About how many rows; exact where they are deleted."""


class _Cluster(NamedTuple):
    name: str
    number: int
    seconds: Mapping[str, float]
    """How long it keeps what each setting names."""


async def tell(store: Store, kept: Kept, now: float) -> None:
    """Let all servers of the database know what the clusters of this one want."""

    async def work(connection: asyncpg.Connection) -> None:
        for name in _SETTINGS:
            wanted = {cluster: getattr(settings, name) for cluster, settings in kept.clusters.items()}
            await retention.tell(connection, _key(name), wanted, now)

    await store.database.transaction(work)


async def find(store: Store, kept: Kept, now: float) -> list[Old]:
    """What is too old."""
    return await store.database.transaction(lambda connection: _find(connection, kept, now))


async def apply(store: Store, kept: Kept, now: float) -> list[Old]:
    """Let go what is too old, and say what that was."""
    await tell(store, kept, now)
    found = await find(store, kept, now)

    async def drop(connection: asyncpg.Connection) -> None:
        for old in found:
            if not old.cluster:
                await connection.execute(f"DROP TABLE IF EXISTS {old.part}")

    clusters = await store.database.transaction(lambda connection: _clusters(connection, kept))
    for cluster in clusters:
        first = first_hour(*month_of(_hour(cluster, "workload_retention", now)))
        await store.hours.forget_workloads(cluster.name, first)
    await store.database.transaction(drop)
    for old in found:
        if old.cluster:
            await _delete(store, old, next(each for each in clusters if each.name == old.cluster), now)
        _log.info("old books dropped", table=old.table, part=old.part, cluster=old.cluster, rows=old.rows)
    for cluster in clusters:
        await store.hours.forget_done(cluster.name, _hour(cluster, "hour_retention", now) - 24 * 31)
    return found


async def _find(connection: asyncpg.Connection, kept: Kept, now: float) -> list[Old]:
    clusters = await _clusters(connection, kept)
    found = []
    for table, name in _MONTHLY.items():
        last = min((_hour(cluster, name, now) for cluster in clusters), default=0)
        unwanted = await months_before(connection, table, last)
        found += [Old(table, part, "", await _about(connection, part)) for part in unwanted]
        for cluster in clusters:
            parts = await months_before(connection, table, _hour(cluster, name, now))
            found += [Old(table, part, cluster.name, 0) for part in parts if part not in unwanted]
    found += [Old(table, "", cluster.name, 0) for table in _BY_END for cluster in clusters]
    by_name = {cluster.name: cluster for cluster in clusters}
    counted = [
        old._replace(rows=await _count(connection, old, by_name[old.cluster], now)) if old.cluster else old
        for old in found
    ]
    return [old for old in counted if old.rows or not old.cluster]


async def _clusters(connection: asyncpg.Connection, kept: Kept) -> list[_Cluster]:
    """Every cluster there are books of, and how long it keeps them."""
    wanted = {name: await retention.told(connection, _key(name)) for name in _SETTINGS}

    def seconds(cluster: str, name: str) -> float:
        own = kept.clusters.get(cluster)
        fallback: float = getattr(own or kept.settings, name)
        return fallback if own else wanted[name].get(cluster, fallback)

    return [
        _Cluster(row["name"], row["id"], {name: seconds(row["name"], name) for name in _SETTINGS})
        for row in await connection.fetch("SELECT id, name FROM accounted_cluster ORDER BY id")
    ]


def _key(name: str) -> str:
    return f"accounting.{name}"


def _hour(cluster: _Cluster, name: str, now: float) -> int:
    """The number of the oldest hour that a cluster wants; nothing is from before 1970."""
    return int(max(0.0, now - cluster.seconds[name]) // 3600)


def _rows(old: Old, cluster: _Cluster, now: float) -> tuple[str, list[object]]:
    """Which rows are meant, as a condition with its values."""
    if old.part:
        return f"{old.part} WHERE cluster = $1", [cluster.number]
    whose = cluster.name if old.table == "ended_workload" else cluster.number
    return f"{old.table} WHERE cluster = $1 AND ended_at < $2", [
        whose,
        now - cluster.seconds[_BY_END[old.table]],
    ]


async def _about(connection: asyncpg.Connection, part: str) -> int:
    query = "SELECT greatest(reltuples, 0)::bigint FROM pg_class WHERE oid = $1::text::regclass"
    return int(await connection.fetchval(query, part))


async def _count(connection: asyncpg.Connection, old: Old, cluster: _Cluster, now: float) -> int:
    rows, values = _rows(old, cluster, now)
    return int(await connection.fetchval(f"SELECT count(*) FROM {rows}", *values))  # noqa: S608


async def _delete(store: Store, old: Old, cluster: _Cluster, now: float) -> None:
    """Some at a time, each in time before its query is given up."""
    rows, values = _rows(old, cluster, now)
    some = f"SELECT ctid FROM {rows} LIMIT {_AT_ONCE}"  # noqa: S608
    query = f"DELETE FROM {old.part or old.table} WHERE ctid = ANY (ARRAY({some}))"  # noqa: S608
    for _ in range(0, old.rows, _AT_ONCE):
        await store.database.execute(query, *values)
