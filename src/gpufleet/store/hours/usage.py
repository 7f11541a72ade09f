"""Sum usage over days, for reports and for the list of idle workloads.

Days may begin at any hour: in a time zone, they do not begin at midnight in UTC.
"""

from collections.abc import Sequence
from typing import Any

import asyncpg

from gpufleet.model.hours import HOUR_MS, PPM
from gpufleet.model.namespaces import Namespaces, is_visible
from gpufleet.model.statistics import UsageSum, UsageTotals
from gpufleet.store.accounted_clusters import AccountedClusters
from gpufleet.store.hours.limited_sql import DAY_TOTALS, DAYS_BY_LABEL, NAMESPACE_IDS
from gpufleet.store.hours.usage_rows import usage_rows
from gpufleet.store.postgres.database import Database

_SUM = """
SELECT member, sum(allocated) AS allocated, sum(idle) AS idle, sum(cost) AS cost,
    sum(energy) AS energy, sum(measured) AS measured, sum(used) AS used
FROM {rows} AS u WHERE cluster = $1 AND hour >= $2 AND hour < $3
GROUP BY member
"""
_NAMESPACES = f"""
SELECT name, s.* FROM ({_SUM}) AS s JOIN namespace_name ON id = member
ORDER BY allocated DESC, name
"""  # noqa: S608
_LABELS = f"""
SELECT value AS name, s.* FROM ({_SUM}) AS s JOIN label_name ON id = member
WHERE type = $4 AND key = $5 ORDER BY allocated DESC, value
"""  # noqa: S608
# A workload whose labels changed has several members; merge them.
_WORKLOADS = f"""
SELECT w.name, n.name AS namespace, k.name AS kind, {{uid}}, sum(allocated) AS allocated, sum(idle) AS idle,
    sum(cost) AS cost, sum(energy) AS energy, sum(measured) AS measured, sum(used) AS used
FROM ({_SUM}) AS s
JOIN workload AS w ON w.id = member JOIN namespace_name AS n ON n.id = w.namespace
JOIN kind_name AS k ON k.id = w.kind
WHERE ($4::text[] IS NULL OR n.name = ANY($4)) AND ($5::text IS NULL OR (k.name, w.name) = ($5, $6))
GROUP BY n.name, k.name, w.name
"""  # noqa: S608
_RUNS = _WORKLOADS.replace("{uid}", "uid") + ", uid"
_MERGED = _WORKLOADS.replace(
    "{uid}", "CASE WHEN count(DISTINCT uid) = 1 THEN min(uid) ELSE '' END AS uid, count(DISTINCT uid) AS runs"
)
_RUNS_BY_ALLOCATED = f"{_RUNS} ORDER BY sum(allocated) DESC, n.name, k.name, w.name, uid"
_MERGED_BY_ALLOCATED = f"{_MERGED} ORDER BY sum(allocated) DESC, n.name, k.name, w.name"
_BY_IDLE = f"{_RUNS} HAVING sum(idle) > 0 ORDER BY sum(idle) DESC, n.name, k.name, w.name, uid"
# The capacity of an hour is an integer of GPU-milliseconds, so the sum is exact.
_TOTALS = f"""
SELECT s.*, (SELECT sum(round(capacity * {HOUR_MS})::numeric) FROM cluster_hour
    WHERE cluster = $1 AND hour >= $2 AND hour < $3) AS capacity,
    (SELECT sum(observed) FROM cluster_hour JOIN accounted_hour USING (cluster, hour)
    WHERE cluster = $1 AND hour >= $2 AND hour < $3) AS observed
FROM ({_SUM}) AS s
"""  # noqa: S608


class UsageSums:
    """Sum usage over spans of hour numbers."""

    def __init__(self, database: Database, clusters: AccountedClusters) -> None:
        self._database = database
        self._clusters = clusters

    async def totals(
        self, cluster: str, first: int, after: int, namespaces: Namespaces = None
    ) -> UsageTotals:
        """Return the capacity of a cluster from hour `first` until before hour `after`, and what was used of it.

        With `namespaces`, only their usage counts.
        """
        query = _TOTALS.format(rows=usage_rows("cluster", first, after))
        row = await self._database.fetchrow(query, await self._clusters.id_of(cluster), first, after)
        if row is None:
            return UsageTotals()
        capacity = int(row["capacity"] or 0) * PPM
        hours = int(row["observed"] or 0) / HOUR_MS
        if namespaces is not None:
            used = await self._limited(DAY_TOTALS, "namespace", cluster, first, after, namespaces)
            row = used[0]
        return UsageTotals(hours=hours, capacity=capacity, **_amounts(row))

    async def by_namespace(
        self, cluster: str, first: int, after: int, namespaces: Namespaces = None
    ) -> list[UsageSum]:
        """Return the sums of each namespace, the largest first."""
        sums = await self._sums(_NAMESPACES, "namespace", cluster, first, after)
        return [each for each in sums if is_visible(namespaces, each.name)]

    async def by_label(
        self, cluster: str, first: int, after: int, type_: str, key: str, namespaces: Namespaces = None
    ) -> list[UsageSum]:
        """Return the sums of each value of a label or annotation, the largest first."""
        if namespaces is not None:
            rows = await self._limited(
                DAYS_BY_LABEL, "workload", cluster, first, after, namespaces, type_, key
            )
            return [_sum(row) for row in rows]
        return await self._sums(_LABELS, "label", cluster, first, after, type_, key)

    async def by_workload(
        self,
        cluster: str,
        first: int,
        after: int,
        namespaces: Namespaces = None,
        *,
        merge_runs: bool = False,
        only: tuple[str, str] | None = None,
    ) -> list[UsageSum]:
        """Return the sums of each run of each workload, the largest first.

        With `merge_runs`, the runs with the same kind and name are one. `only` is a kind and a name.
        """
        query = _MERGED_BY_ALLOCATED if merge_runs else _RUNS_BY_ALLOCATED
        kind, name = only or (None, None)
        return await self._sums(query, "workload", cluster, first, after, namespaces, kind, name)

    async def idle_workloads(
        self,
        cluster: str,
        first: int,
        after: int,
        limit: int,
        offset: int,
        namespaces: Namespaces = None,
    ) -> tuple[int, list[UsageSum]]:
        """Return how many workloads held idle GPUs, and one page of them, the most idle first."""
        query = f"SELECT *, count(*) OVER () AS total FROM ({_BY_IDLE}) AS found LIMIT $7 OFFSET $8"  # noqa: S608
        query = query.format(rows=usage_rows("workload", first, after))
        number = await self._clusters.id_of(cluster)
        rows = await self._database.fetch(query, number, first, after, namespaces, None, None, limit, offset)
        if not rows and offset:
            return (await self.idle_workloads(cluster, first, after, 1, 0, namespaces))[0], []
        return (rows[0]["total"] if rows else 0), [_sum(row) for row in rows]

    async def _limited(
        self,
        query: str,
        grouping: str,
        cluster: str,
        first: int,
        after: int,
        namespaces: frozenset[str],
        *params: Any,
    ) -> Sequence[asyncpg.Record]:
        """Run a query over the rows of a grouping whose $4 are the ids of the namespaces."""
        number = await self._clusters.id_of(cluster)
        ids = [row["id"] for row in await self._database.fetch(NAMESPACE_IDS, number, namespaces)]
        query = query.format(rows=usage_rows(grouping, first, after))
        return await self._database.fetch(query, number, first, after, ids, *params)

    async def _sums(
        self, query: str, grouping: str, cluster: str, first: int, after: int, *params: Any
    ) -> list[UsageSum]:
        query = query.format(rows=usage_rows(grouping, first, after))
        rows = await self._database.fetch(query, await self._clusters.id_of(cluster), first, after, *params)
        return [_sum(row) for row in rows]


def _sum(row: asyncpg.Record) -> UsageSum:
    owner = {name: row[name] for name in ("namespace", "kind", "uid", "runs") if name in row}
    return UsageSum(name=row["name"], **owner, **_amounts(row))


def _amounts(row: asyncpg.Record) -> dict[str, Any]:
    measured = row["measured"]
    return {
        "allocated": int(row["allocated"]),
        "idle": int(row["idle"]),
        "cost": row["cost"],
        "energy": None if row["energy"] is None else int(row["energy"]),
        "utilization": round(float(row["used"] / measured), 4) if measured else None,
    }
