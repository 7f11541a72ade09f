"""Store the statistics of an hour: all of its rows, the counts of pages, and the sums of its day.

An hour is replaced as a whole in one transaction, so that a second run leaves exactly what it
computed. The sums of the day are made anew from the day's hours. Where the hours of its workloads are
forgotten by now that would lose them: there an hour that is stored stays, and a missing one is added.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import asyncpg

from gpufleet.accounting.hours import Hour, Usage, WorkloadHour
from gpufleet.store.accounted_clusters import AccountedClusters
from gpufleet.store.name_ids import Names
from gpufleet.store.partitions import ensure_month
from gpufleet.store.postgres.database import Database
from gpufleet.store.postgres.leadership import lock_of

_USAGE = (
    "allocated",
    "idle",
    "cost",
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
)
_TABLES = ("cluster_hour", "namespace_hour", "label_hour", "workload_hour", "workload_count")
_DONE = """
INSERT INTO accounted_hour (cluster, hour, measured) VALUES ($1, $2, $3)
ON CONFLICT (cluster, hour) DO UPDATE SET measured = excluded.measured, stale = false, updated_at = now()
"""
_DAY = """
INSERT INTO usage_day (cluster, hour, grouping, member, allocated, idle, cost, measured, used)
SELECT cluster, $2, '{grouping}', {member}, sum(allocated), sum(idle), sum(cost::numeric),
    coalesce(sum(allocated) FILTER (WHERE utilization IS NOT NULL), 0),
    coalesce(sum(allocated * utilization::numeric), 0)
FROM {table} WHERE cluster = $1 AND hour >= $3 AND hour < $4 GROUP BY cluster, {member}
ON CONFLICT (cluster, grouping, hour, member) DO UPDATE SET
    allocated = usage_day.allocated + excluded.allocated, idle = usage_day.idle + excluded.idle,
    cost = usage_day.cost + excluded.cost, measured = usage_day.measured + excluded.measured,
    used = usage_day.used + excluded.used
"""
_FORGOTTEN = "SELECT workloads_from > $2 FROM accounted_cluster WHERE id = $1"
_FORGET = "UPDATE accounted_cluster SET workloads_from = $2 WHERE id = $1 AND workloads_from < $2"
_STORED = "SELECT EXISTS (SELECT FROM cluster_hour WHERE cluster = $1 AND hour = $2)"
_SETTLE = "UPDATE accounted_hour SET stale = false WHERE cluster = $1 AND hour = $2"
_GROUPINGS = (
    ("cluster", "cluster_hour", "cluster"),
    ("namespace", "namespace_hour", "namespace"),
    ("label", "label_hour", "label"),
    ("workload", "workload_hour", "workload"),
)


class Done(NamedTuple):
    """How an hour was rolled up."""

    measured: bool
    """Whether the metric source answered."""
    stale: bool
    """Whether something was learned of it since."""


class KeptHours:
    """The part of the store that hours are written to."""

    def __init__(self, database: Database, clusters: AccountedClusters) -> None:
        self._database = database
        self._clusters = clusters
        self._names: dict[str, Names] = {}
        """By cluster: what one is about to store, the others must not refer to yet."""

    async def done(self, cluster: str, since: int) -> dict[int, Done]:
        """The hours that were rolled up, from hour number `since` on."""
        rows = await self._database.fetch(
            "SELECT hour, measured, stale FROM accounted_hour WHERE cluster = $1 AND hour >= $2",
            await self._clusters.number(cluster),
            since,
        )
        return {row["hour"]: Done(row["measured"], row["stale"]) for row in rows}

    async def has_samples(self, cluster: str, hour: int) -> bool:
        """Whether the stored hour was measured at all."""
        found = await self._database.fetchval(
            "SELECT samples FROM cluster_hour WHERE cluster = $1 AND hour = $2",
            await self._clusters.number(cluster),
            hour,
        )
        return bool(found)

    async def statuses(self, cluster: str, hour: int) -> dict[str, str]:
        """What the stored hour says of its workloads, by uid."""
        rows = await self._database.fetch(
            "SELECT uid, status FROM workload_hour AS h JOIN workload AS w ON w.id = h.workload"
            " WHERE h.cluster = $1 AND hour = $2",
            await self._clusters.number(cluster),
            hour,
        )
        return {row["uid"]: row["status"] for row in rows}

    async def settle(self, cluster: str, hour: int) -> None:
        """The stored hour stays as it is, although something was learned of it."""
        await self._database.execute(_SETTLE, await self._clusters.number(cluster), hour)

    async def doubt(self, cluster: str, since: int) -> None:
        """Hours from number `since` on were done before they were over."""
        await self._database.execute(
            "UPDATE accounted_hour SET stale = true WHERE cluster = $1 AND hour >= $2",
            await self._clusters.number(cluster),
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
        """Replace hour number `hour`; None for one of which nothing is known. False if what is stored must stay."""
        number = await self._clusters.number(cluster)
        names = self._names.setdefault(cluster, Names())
        # Known numbers may come from a transaction that was rolled back; a repeat asks again.
        tries = iter((False,))

        async def work(connection: asyncpg.Connection) -> bool:
            if next(tries, True):
                names.forget()
            await _alone(connection, cluster)
            day = hour - hour % 24
            forgotten = await connection.fetchval(_FORGOTTEN, number, day)
            if forgotten and await connection.fetchval(_STORED, number, hour):
                await connection.execute(_SETTLE, number, hour)
                return False
            await ensure_month(connection, hour)
            await ensure_month(connection, day)
            for table in _TABLES:
                await connection.execute(
                    f"DELETE FROM {table} WHERE cluster = $1 AND hour = $2",  # noqa: S608
                    *(number, hour),
                )
            if rolled is not None:
                await _write(connection, names, number, hour, rolled, status)
            if forgotten:
                await _add(connection, number, day, range(hour, hour + 1))
            else:
                await connection.execute(
                    "DELETE FROM usage_day WHERE cluster = $1 AND hour = $2", number, day
                )
                await _add(connection, number, day, range(day, day + 24))
            await connection.execute(_DONE, number, hour, measured)
            return True

        try:
            return await self._database.transaction(work)
        except BaseException:
            names.forget()
            raise

    async def forget_workloads(self, cluster: str, before: int) -> None:
        """From now on the rows of workloads may be missing in hours before hour number `before`."""
        number = await self._clusters.number(cluster)

        async def work(connection: asyncpg.Connection) -> None:
            await _alone(connection, cluster)  # who sums a day up right now does it of whole hours
            await connection.execute(_FORGET, number, before)

        if not await self._database.fetchval(_FORGOTTEN, number, before - 1):
            await self._database.transaction(work)

    async def forget_done(self, cluster: str, before: int) -> None:
        """Forget that hours were done whose rows are gone."""
        await self._database.execute(
            "DELETE FROM accounted_hour WHERE cluster = $1 AND hour < $2",
            await self._clusters.number(cluster),
            before,
        )


async def _alone(connection: asyncpg.Connection, cluster: str) -> None:
    """Let nobody else change the hours of the cluster until the transaction ends."""
    await connection.execute("SELECT pg_advisory_xact_lock($1, $2)", *lock_of(f"hours of {cluster}"))


async def _write(
    connection: asyncpg.Connection,
    names: Names,
    number: int,
    hour: int,
    rolled: Hour,
    status: Callable[[WorkloadHour], str],
) -> None:
    spaces = await names.namespaces(
        connection,
        number,
        sorted({row.namespace for row in rolled.namespaces} | {row.namespace for row in rolled.workloads}),
    )
    kinds = await names.kinds(connection, sorted({row.kind for row in rolled.workloads}))
    labels = await names.labels(connection, number, rolled.labels)
    places = [(spaces[row.namespace], kinds[row.kind]) for row in rolled.workloads]
    workloads = await names.workloads(connection, number, rolled.workloads, places)
    whole = rolled.cluster
    key = (number, hour)
    await _copy(
        connection,
        "cluster_hour",
        ("capacity", *_USAGE, "workloads"),
        [(*key, whole.capacity_gpu_hours, *_amounts(whole.usage), whole.usage.workloads)],
    )
    await _copy(
        connection,
        "namespace_hour",
        ("namespace", *_USAGE, "workloads"),
        [
            (*key, spaces[row.namespace], *_amounts(row.usage), row.usage.workloads)
            for row in rolled.namespaces
        ],
    )
    await _copy(
        connection,
        "label_hour",
        ("label", *_USAGE, "workloads"),
        [
            (*key, labels[place], *_amounts(row.usage), row.usage.workloads)
            for place, row in enumerate(rolled.labels)
        ],
    )
    await _copy(
        connection,
        "workload_hour",
        _WORKLOAD,
        [
            (*key, workloads[n], *places[n], *_workload(row), status(row))
            for n, row in enumerate(rolled.workloads)
        ],
    )
    await _copy(
        connection,
        "workload_count",
        ("namespace", "kind", "rows"),
        [(*key, *place, count) for place, count in _counts(places).items()],
    )


async def _copy(
    connection: asyncpg.Connection, table: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]
) -> None:
    await connection.copy_records_to_table(table, records=rows, columns=("cluster", "hour", *columns))


async def _add(connection: asyncpg.Connection, cluster: int, day: int, hours: range) -> None:
    """Add hours to the sums of their day."""
    for grouping, table, member in _GROUPINGS:
        query = _DAY.format(grouping=grouping, table=table, member=member)
        await connection.execute(query, cluster, day, hours.start, hours.stop)


def _counts(places: Sequence[tuple[int, int]]) -> Mapping[tuple[int, int], int]:
    counts: Counter[tuple[int, int]] = Counter()
    for namespace, kind in places:
        counts.update(((namespace, kind), (namespace, 0), (0, kind), (0, 0)))
    return counts


def _amounts(usage: Usage) -> tuple[Any, ...]:
    spread = usage.utilization
    return (
        usage.allocated,
        usage.idle,
        usage.cost,
        spread.samples,
        spread.mean,
        spread.highest,
        spread.lowest,
        spread.p50,
        spread.p95,
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
