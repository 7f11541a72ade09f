"""Page through hourly workload statistics, fast even with tens of millions of rows.

A page takes three steps. The total is a sum of row counts that are stored per hour for each combination
of filters. Then an index-only query finds the keys of the page, in the way that reads the fewest index
entries. Finally only the rows of the page are fetched.

- Sorted by time, every filter has an index that ends in (hour, place, workload). A namespace without a kind is
  a merge over its kinds, of which there are few.
- Sorted by utilization, there are two ways: walk the index on utilization and skip rows that do not
  match, or collect the matching rows and sort them. The total tells which one is cheaper.

A filter by name or label first finds the ids of the workloads, of which there are far fewer than rows.
Rows without utilization come last in both directions. Ties are sorted by hour, then by namespace, kind,
name and uid: `place` is the position of a row in its hour in that order.
"""

from collections.abc import Sequence
from typing import Any

import asyncpg
import msgspec

from gpufleet.model.statistics import HoursQuery, WorkloadHoursQuery, WorkloadStatistics
from gpufleet.store.accounted_clusters import AccountedClusters
from gpufleet.store.hours.limited_sql import NAMESPACE_IDS
from gpufleet.store.hours.statistics import Row, row_id, usage_fields
from gpufleet.store.partitions import first_hour, month_of
from gpufleet.store.postgres.database import Database
from gpufleet.store.postgres.jsonb import jsonb

_ROWS = """
SELECT h.*, w.name, uid, source, labels, annotations, n.name AS namespace_name, k.name AS kind_name,
    created_at, updated_at, observed
FROM unnest($2::int[], $3::int[]) WITH ORDINALITY AS page (hour, workload, number)
JOIN workload_hour AS h ON h.cluster = $1 AND h.hour = page.hour AND h.workload = page.workload
JOIN workload AS w ON w.id = h.workload
JOIN namespace_name AS n ON n.id = h.namespace
JOIN kind_name AS k ON k.id = h.kind
JOIN accounted_hour AS a ON a.cluster = h.cluster AND a.hour = h.hour
ORDER BY page.number
"""
_COUNT = """
SELECT coalesce(sum(rows), 0) FROM workload_count
WHERE cluster = $1 AND namespace = $4 AND kind = $5 AND hour BETWEEN $2 AND $3
"""
_IDS = """
SELECT id FROM workload
WHERE cluster = $1 AND ($2 = '' OR name = $2) AND ($3 = 0 OR namespace = $3) AND ($4 = 0 OR kind = $4)
    AND ($5::text IS NULL OR {labels} ? $5) AND ($6::jsonb IS NULL OR {labels} @> $6)
    AND ($7::int[] IS NULL OR namespace = ANY($7))
"""
_SPAN = "cluster = $1 AND hour BETWEEN $2 AND $3"
_EARLIEST, _LATEST = first_hour(1970, 1), first_hour(9999, 12) - 1
"""Bounds for queries that start in the year 1 or end in 9999."""
_SORT_COST = 2.0
"""Cost to collect and sort a row, relative to a step in an index."""


class WorkloadPages:
    """Read pages of hourly workload statistics."""

    def __init__(self, database: Database, clusters: AccountedClusters) -> None:
        self._database = database
        self._clusters = clusters

    async def page(self, query: WorkloadHoursQuery) -> tuple[int, list[WorkloadStatistics]]:
        """Return the total number of rows and the rows of one page."""
        cluster_id = await self._clusters.id_of(query.cluster)

        async def work(connection: asyncpg.Connection) -> tuple[int, list[WorkloadStatistics]]:
            # A generic plan would treat a short span or a first page like the average.
            await connection.execute("SET LOCAL plan_cache_mode = force_custom_plan")
            return await _PageQuery(connection, cluster_id, query).page()

        return await self._database.transaction(work)


class _PageQuery:
    """One query on one connection. Namespace and kind are ids; 0 means all."""

    def __init__(self, connection: asyncpg.Connection, cluster_id: int, query: WorkloadHoursQuery) -> None:
        self._connection = connection
        self._cluster_id = cluster_id
        self._query = query
        self._span = (cluster_id, query.first, query.last)
        self._slice = (query.limit, query.offset)

    async def page(self) -> tuple[int, list[WorkloadStatistics]]:
        query = self._query
        namespace = await self._namespace_id() if query.namespace else 0
        kind = await self._kind_id() if query.kind else 0
        visible = await self._visible_ids()
        if visible is not None and namespace not in (0, *visible):
            namespace = None  # like one that does not exist
        if namespace is None or kind is None or visible == []:
            return 0, []
        if visible is not None and len(visible) == 1:
            namespace, visible = visible[0], None
        if query.name or query.dimension_key:
            total, keys = await self._of_workloads(namespace, kind, visible)
        elif visible and not namespace:
            total, keys = await self._of_namespaces(visible, kind)
        else:
            total = await self._count(query.first, query.last, namespace, kind)
            if query.offset >= total:
                return total, []
            if query.by_utilization:
                keys = await self._by_utilization(namespace, kind, total)
            else:
                keys = await self._by_time(namespace, kind)
        return total, await self._rows(keys)

    async def _namespace_id(self) -> int | None:
        sql = "SELECT id FROM namespace_name WHERE cluster = $1 AND name = $2"
        found: int | None = await self._connection.fetchval(sql, self._cluster_id, self._query.namespace)
        return found

    async def _visible_ids(self) -> list[int] | None:
        """Return the namespaces that the caller may see; None for all."""
        if self._query.namespaces is None:
            return None
        rows = await self._connection.fetch(NAMESPACE_IDS, self._cluster_id, self._query.namespaces)
        return [row["id"] for row in rows]

    async def _kind_id(self) -> int | None:
        sql = "SELECT id FROM kind_name WHERE name = $1"
        found: int | None = await self._connection.fetchval(sql, self._query.kind)
        return found

    async def _count(self, first: int, last: int, namespace: int, kind: int) -> int:
        return int(await self._connection.fetchval(_COUNT, self._cluster_id, first, last, namespace, kind))

    async def _of_namespaces(self, namespaces: list[int], kind: int) -> tuple[int, Sequence[asyncpg.Record]]:
        """Return the rows of several namespaces."""
        span = (self._query.first, self._query.last)
        total = sum([await self._count(*span, namespace, kind) for namespace in namespaces])
        keys = await self._connection.fetch(
            f"SELECT hour, workload FROM workload_hour WHERE {_SPAN} AND namespace = ANY($6::int[])"  # noqa: S608
            f" AND ($7 = 0 OR kind = $7) ORDER BY {_order('utilization + 0', self._query)} LIMIT $4 OFFSET $5",
            *(*self._span, *self._slice, namespaces, kind),
        )
        return total, keys

    async def _of_workloads(
        self, namespace: int, kind: int, visible: list[int] | None
    ) -> tuple[int, Sequence[asyncpg.Record]]:
        """Find the workloads by name and label first, then their hours."""
        query = self._query
        key, value = query.dimension_key, query.dimension_value
        rows = await self._connection.fetch(
            _IDS.format(labels="labels" if query.dimension_type == "label" else "annotations"),
            *(self._cluster_id, query.name, namespace, kind),
            *(key or None, jsonb({key: value}) if value else None, visible),
        )
        ids = [row["id"] for row in rows]
        total = await self._connection.fetchval(
            f"SELECT count(*) FROM workload_hour WHERE {_SPAN} AND workload = ANY($4::int[])",  # noqa: S608
            *(*self._span, ids),
        )
        order = _order("utilization + 0", self._query)
        keys = await self._connection.fetch(
            f"SELECT hour, workload FROM workload_hour WHERE {_SPAN} AND workload = ANY($4::int[])"  # noqa: S608
            f" ORDER BY {order} LIMIT $5 OFFSET $6",
            *(*self._span, ids, *self._slice),
        )
        return total, keys

    async def _by_time(self, namespace: int, kind: int) -> Sequence[asyncpg.Record]:
        order = _order("", self._query)
        if namespace and not kind:
            sql = f"""
            SELECT hour, workload FROM kind_name AS k CROSS JOIN LATERAL (
                SELECT hour, place, workload FROM workload_hour
                WHERE {_SPAN} AND namespace = $6 AND kind = k.id ORDER BY {order} LIMIT $4::int + $5::int
            ) AS found ORDER BY {order} LIMIT $4 OFFSET $5"""  # noqa: S608
            return await self._keys(sql, namespace)
        filters, values = _filters(namespace, kind, first=6)
        sql = f"""
        SELECT hour, workload FROM workload_hour WHERE {_SPAN}{filters}
        ORDER BY {order} LIMIT $4 OFFSET $5"""  # noqa: S608
        return await self._keys(sql, *values)

    async def _by_utilization(self, namespace: int, kind: int, total: int) -> Sequence[asyncpg.Record]:
        query = self._query
        low, high = month_of(max(query.first, _EARLIEST)), month_of(min(query.last, _LATEST))
        in_months = await self._count(first_hour(*low), first_hour(high[0], high[1] + 1) - 1, 0, 0)
        walked = (query.offset + query.limit) * in_months / max(1, total)
        filters, values = _filters(namespace, kind, first=6)
        if walked > _SORT_COST * total:
            # "+ 0" keeps the planner from using the index on utilization
            sql = f"""
            SELECT hour, workload FROM workload_hour WHERE {_SPAN}{filters}
            ORDER BY {_order("utilization + 0", query)} LIMIT $4 OFFSET $5"""  # noqa: S608
        elif not query.descending:
            sql = f"""
            SELECT hour, workload FROM workload_hour WHERE {_SPAN}{filters}
            ORDER BY {_order("utilization", query)} LIMIT $4 OFFSET $5"""  # noqa: S608
        else:
            sql = f"""
            SELECT hour, workload FROM (
                (SELECT hour, place, workload, utilization FROM workload_hour
                 WHERE {_SPAN}{filters} AND utilization IS NOT NULL
                 ORDER BY utilization DESC, hour DESC, place DESC, workload DESC LIMIT $4::int + $5::int)
                UNION ALL
                (SELECT hour, place, workload, utilization FROM workload_hour
                 WHERE {_SPAN}{filters} AND utilization IS NULL
                 ORDER BY utilization DESC, hour DESC, place DESC, workload DESC LIMIT $4::int + $5::int)
            ) AS found ORDER BY {_order("utilization", query)} LIMIT $4 OFFSET $5"""  # noqa: S608
        return await self._keys(sql, *values)

    async def _keys(self, sql: str, *values: int) -> Sequence[asyncpg.Record]:
        """Run `sql` with the span as $1 to $3, limit and offset as $4 and $5, and `values` from $6 on."""
        found: list[asyncpg.Record] = await self._connection.fetch(sql, *self._span, *self._slice, *values)
        return found

    async def _rows(self, keys: Sequence[asyncpg.Record]) -> list[WorkloadStatistics]:
        if not keys:
            return []
        hours, workloads = [row["hour"] for row in keys], [row["workload"] for row in keys]
        rows = await self._connection.fetch(_ROWS, self._cluster_id, hours, workloads)
        return [workload_row(self._query, row) for row in rows]


def _filters(namespace: int, kind: int, first: int) -> tuple[str, list[int]]:
    """Return SQL conditions with parameters from `first` on, and the parameter values."""
    text = ""
    values: list[int] = []
    for column, value in (("namespace", namespace), ("kind", kind)):
        if value:
            text += f" AND {column} = ${first + len(values)}"
            values.append(value)
    return text, values


def _order(utilization: str, query: WorkloadHoursQuery) -> str:
    direction = "DESC" if query.descending else "ASC"
    by = f"{utilization} {direction} NULLS LAST, " if query.by_utilization and utilization else ""
    return f"{by}hour {direction}, place {direction}, workload {direction}"


def workload_row(query: HoursQuery, row: Row) -> WorkloadStatistics:
    """Return the hour of a workload from its columns."""
    fields: dict[str, Any] = usage_fields(query, row)
    return WorkloadStatistics(
        id=row_id(row["hour"], row["workload"]),
        cluster_name=query.cluster,
        namespace=row["namespace_name"],
        workload_name=row["name"],
        workload_type=row["kind_name"],
        requested_gpu_count=row["requested"],
        avg_gpu_memory_used=row["mean_memory"],
        max_gpu_memory_used=row["most_memory"],
        avg_gpu_memory_total=row["total_memory"],
        avg_replica_count=row["mean_replicas"],
        max_replica_count=row["most_replicas"],
        min_replica_count=row["fewest_replicas"],
        workload_status=row["status"],
        owner_uid=row["uid"],
        owner_name=row["name"],
        labels=msgspec.json.decode(row["labels"]),
        annotations=msgspec.json.decode(row["annotations"]),
        source=row["source"],
        **fields,
    )
