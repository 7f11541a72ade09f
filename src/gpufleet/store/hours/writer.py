"""Store the statistics of an hour: its rows, the row counts for paging, and the sums of its day.

One transaction replaces the whole hour, so a second run leaves exactly what it computed, and then sums
the hours of the day again. Once the workload rows of that day were pruned, this would lose them: then a
stored hour stays as it is, and a missing hour is added to the sums.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import asyncpg

from gpufleet.model.hours import Hour, Usage, WorkloadHour
from gpufleet.store.accounted_clusters import AccountedClusters
from gpufleet.store.hours.name_ids import NameIds
from gpufleet.store.partitions import ensure_month
from gpufleet.store.postgres.database import Database
from gpufleet.store.postgres.locks import advisory_lock

_USAGE = (
    "allocated",
    "idle",
    "cost",
    "energy",
    "samples",
    "utilization",
    "highest",
    "lowest",
    "p50",
    "p95",
)
_WORKLOAD = (
    "workload",
    "namespace",
    "kind",
    *_USAGE,
    "requested",
    "mean_replicas",
    "most_replicas",
    "fewest_replicas",
    "mean_memory",
    "most_memory",
    "total_memory",
    "status",
    "place",
)
_TABLES = ("cluster_hour", "namespace_hour", "label_hour", "workload_hour", "workload_count")
_SET_ROLLED_UP = """
INSERT INTO accounted_hour (cluster, hour, measured, observed) VALUES ($1, $2, $3, $4)
ON CONFLICT (cluster, hour) DO UPDATE SET
    measured = excluded.measured, observed = excluded.observed, stale = false, updated_at = now()
"""
_DAY = """
INSERT INTO usage_day (cluster, hour, grouping, member, allocated, idle, cost, energy, measured, used)
SELECT cluster, $2, '{grouping}', {member}, sum(allocated), sum(idle), sum(cost::numeric), sum(energy),
    coalesce(sum(allocated) FILTER (WHERE utilization IS NOT NULL), 0),
    coalesce(sum(allocated * utilization::numeric), 0)
FROM {table} WHERE cluster = $1 AND hour >= $3 AND hour < $4 GROUP BY cluster, {member}
ON CONFLICT (cluster, grouping, hour, member) DO UPDATE SET
    allocated = usage_day.allocated + excluded.allocated, idle = usage_day.idle + excluded.idle,
    cost = usage_day.cost + excluded.cost,
    energy = coalesce(usage_day.energy + excluded.energy, usage_day.energy, excluded.energy),
    measured = usage_day.measured + excluded.measured,
    used = usage_day.used + excluded.used
"""
_WORKLOADS_PRUNED = "SELECT workloads_from > $2 FROM accounted_cluster WHERE id = $1"
_SET_WORKLOADS_PRUNED = (
    "UPDATE accounted_cluster SET workloads_from = $2 WHERE id = $1 AND workloads_from < $2"
)
_HOUR_EXISTS = "SELECT EXISTS (SELECT FROM cluster_hour WHERE cluster = $1 AND hour = $2)"
_CLEAR_STALE = "UPDATE accounted_hour SET stale = false WHERE cluster = $1 AND hour = $2"
_GROUPINGS = (
    ("cluster", "cluster_hour", "cluster"),
    ("namespace", "namespace_hour", "namespace"),
    ("label", "label_hour", "label"),
    ("workload", "workload_hour", "workload"),
)


class HourState(NamedTuple):
    """The state of an hour that was rolled up."""

    measured: bool
    """Whether the metric source answered."""
    stale: bool
    """Whether its data changed since."""


class HourStore:
    """Write hourly statistics."""

    def __init__(self, database: Database, clusters: AccountedClusters) -> None:
        self._database = database
        self._clusters = clusters
        self._names: dict[str, NameIds] = {}
        """By cluster, because clusters must not use ids of each other's uncommitted transactions."""

    async def states(self, cluster: str, since: int) -> dict[int, HourState]:
        """Return the state of each hour from `since` on that was rolled up."""
        rows = await self._database.fetch(
            "SELECT hour, measured, stale FROM accounted_hour WHERE cluster = $1 AND hour >= $2",
            await self._clusters.id_of(cluster),
            since,
        )
        return {row["hour"]: HourState(row["measured"], row["stale"]) for row in rows}

    async def has_samples(self, cluster: str, hour: int) -> bool:
        """Return whether the stored hour has any utilization samples."""
        found = await self._database.fetchval(
            "SELECT samples FROM cluster_hour WHERE cluster = $1 AND hour = $2",
            await self._clusters.id_of(cluster),
            hour,
        )
        return bool(found)

    async def statuses(self, cluster: str, hour: int) -> dict[str, str]:
        """Return the workload statuses of a stored hour, by uid."""
        rows = await self._database.fetch(
            "SELECT uid, status FROM workload_hour AS h JOIN workload AS w ON w.id = h.workload"
            " WHERE h.cluster = $1 AND hour = $2",
            await self._clusters.id_of(cluster),
            hour,
        )
        return {row["uid"]: row["status"] for row in rows}

    async def clear_stale(self, cluster: str, hour: int) -> None:
        """Keep the stored hour as it is, although its data changed."""
        await self._database.execute(_CLEAR_STALE, await self._clusters.id_of(cluster), hour)

    async def mark_stale(self, cluster: str, since: int) -> None:
        """Mark the hours from `since` on as stale, for example because they were rolled up before their end."""
        await self._database.execute(
            "UPDATE accounted_hour SET stale = true WHERE cluster = $1 AND hour >= $2",
            await self._clusters.id_of(cluster),
            since,
        )

    async def save(
        self,
        cluster: str,
        hour: int,
        rolled: Hour | None,
        *,
        measured: bool,
        status: Callable[[WorkloadHour], str],
    ) -> bool:
        """Replace an hour (None: without data). Return False if the stored hour must stay instead."""
        cluster_id = await self._clusters.id_of(cluster)
        names = self._names.setdefault(cluster, NameIds())
        # After a rollback the cached ids may not exist, so clear the cache before a retry.
        retries = iter((False,))

        async def work(connection: asyncpg.Connection) -> bool:
            if next(retries, True):
                names.clear()
            await _lock_hours(connection, cluster)
            day = hour - hour % 24
            pruned = await connection.fetchval(_WORKLOADS_PRUNED, cluster_id, day)
            if pruned and await connection.fetchval(_HOUR_EXISTS, cluster_id, hour):
                await connection.execute(_CLEAR_STALE, cluster_id, hour)
                return False
            await ensure_month(connection, hour)
            await ensure_month(connection, day)
            for table in _TABLES:
                await connection.execute(
                    f"DELETE FROM {table} WHERE cluster = $1 AND hour = $2",  # noqa: S608
                    *(cluster_id, hour),
                )
            if rolled is not None:
                await _write(connection, names, cluster_id, hour, rolled, status)
            if pruned:
                await _add_to_day(connection, cluster_id, day, range(hour, hour + 1))
            else:
                await connection.execute(
                    "DELETE FROM usage_day WHERE cluster = $1 AND hour = $2", cluster_id, day
                )
                await _add_to_day(connection, cluster_id, day, range(day, day + 24))
            observed = rolled.cluster.observed if rolled is not None else 0
            await connection.execute(_SET_ROLLED_UP, cluster_id, hour, measured, observed)
            return True

        try:
            return await self._database.transaction(work)
        except BaseException:
            names.clear()
            raise

    async def set_workloads_pruned(self, cluster: str, before: int) -> None:
        """Record that workload rows may be missing in hours before `before`."""
        cluster_id = await self._clusters.id_of(cluster)

        async def work(connection: asyncpg.Connection) -> None:
            await _lock_hours(connection, cluster)  # let a running `save` finish with complete hours
            await connection.execute(_SET_WORKLOADS_PRUNED, cluster_id, before)

        if not await self._database.fetchval(_WORKLOADS_PRUNED, cluster_id, before - 1):
            await self._database.transaction(work)

    async def delete_states(self, cluster: str, before: int) -> None:
        """Delete the states of hours whose rows were pruned."""
        await self._database.execute(
            "DELETE FROM accounted_hour WHERE cluster = $1 AND hour < $2",
            await self._clusters.id_of(cluster),
            before,
        )


async def _lock_hours(connection: asyncpg.Connection, cluster: str) -> None:
    """Lock the hours of the cluster until the transaction ends."""
    await connection.execute("SELECT pg_advisory_xact_lock($1, $2)", *advisory_lock(f"hours of {cluster}"))


async def _write(
    connection: asyncpg.Connection,
    names: NameIds,
    cluster_id: int,
    hour: int,
    rolled: Hour,
    status: Callable[[WorkloadHour], str],
) -> None:
    namespaces = await names.namespaces(
        connection,
        cluster_id,
        sorted({row.namespace for row in rolled.namespaces} | {row.namespace for row in rolled.workloads}),
    )
    kinds = await names.kinds(connection, sorted({row.kind for row in rolled.workloads}))
    labels = await names.labels(connection, cluster_id, rolled.labels)
    groups = [(namespaces[row.namespace], kinds[row.kind]) for row in rolled.workloads]
    workloads = await names.workloads(connection, cluster_id, rolled.workloads, groups)
    total = rolled.cluster
    key = (cluster_id, hour)
    await _copy(
        connection,
        "cluster_hour",
        ("capacity", "gpus", *_USAGE, "workloads"),
        [(*key, total.capacity_gpu_hours, total.gpus, *_amounts(total.usage), total.usage.workloads)],
    )
    await _copy(
        connection,
        "namespace_hour",
        ("namespace", *_USAGE, "workloads"),
        [
            (*key, namespaces[row.namespace], *_amounts(row.usage), row.usage.workloads)
            for row in rolled.namespaces
        ],
    )
    await _copy(
        connection,
        "label_hour",
        ("label", *_USAGE, "workloads"),
        [
            (*key, labels[index], *_amounts(row.usage), row.usage.workloads)
            for index, row in enumerate(rolled.labels)
        ],
    )
    await _copy(
        connection,
        "workload_hour",
        _WORKLOAD,
        [
            (*key, workloads[place], *groups[place], *_workload(row), status(row), place)
            for place, row in enumerate(rolled.workloads)
        ],
    )
    await _copy(
        connection,
        "workload_count",
        ("namespace", "kind", "rows"),
        [(*key, *group, count) for group, count in _row_counts(groups).items()],
    )


async def _copy(
    connection: asyncpg.Connection, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]
) -> None:
    await connection.copy_records_to_table(table, records=rows, columns=("cluster", "hour", *columns))


async def _add_to_day(connection: asyncpg.Connection, cluster_id: int, day: int, hours: range) -> None:
    for grouping, table, member in _GROUPINGS:
        query = _DAY.format(grouping=grouping, table=table, member=member)
        await connection.execute(query, cluster_id, day, hours.start, hours.stop)


def _row_counts(groups: Sequence[tuple[int, int]]) -> Mapping[tuple[int, int], int]:
    """Count rows by namespace and kind; id 0 stands for all."""
    counts: Counter[tuple[int, int]] = Counter()
    for namespace, kind in groups:
        counts.update(((namespace, kind), (namespace, 0), (0, kind), (0, 0)))
    return counts


def usage_columns(usage: Usage) -> dict[str, Any]:
    """Return what is stored of the usage of a group, by column."""
    return {**dict(zip(_USAGE, _amounts(usage), strict=True)), "workloads": usage.workloads}


def workload_columns(row: WorkloadHour) -> dict[str, Any]:
    """Return what is stored of the hour of a workload, by column, without its names and its status."""
    return dict(zip(_WORKLOAD[3:-2], _workload(row), strict=True))


def _amounts(usage: Usage) -> tuple[Any, ...]:
    utilization = usage.utilization
    return (
        usage.allocated,
        usage.idle,
        usage.cost,
        usage.energy,
        utilization.samples,
        utilization.mean,
        utilization.highest,
        utilization.lowest,
        utilization.p50,
        utilization.p95,
    )


def _workload(row: WorkloadHour) -> tuple[Any, ...]:
    return (
        *_amounts(row.usage),
        row.requested_gpus,
        row.mean_replicas,
        row.most_replicas,
        row.fewest_replicas,
        row.mean_memory_used,
        row.most_memory_used,
        row.mean_memory_total,
    )
