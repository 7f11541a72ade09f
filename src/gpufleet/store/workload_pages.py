"""Pages of hourly workload statistics, quick on tens of millions of rows whatever is asked for.

Three steps. The total is a sum of small counts kept per hour for each way of narrowing the rows. Then
the keys of the page are found in an index alone, on the way that reads the fewest entries. Then
only the rows of the page are fetched.

- Ordered by time, every filter has an index that ends in (hour, workload). A namespace without
  a kind is the merge of its kinds, of which there are few.
- Ordered by utilization, there are two ways: walk the index of the order and skip what does not
  match, or collect what matches and sort it. The total says beforehand which of them is shorter.

A row without a reading comes last in either direction. Ties are broken by hour and workload, in the
direction of the order.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import asyncpg
import msgspec

from gpufleet.accounting.statistics import WorkloadHoursWanted, WorkloadStatistics
from gpufleet.store.accounted_clusters import AccountedClusters
from gpufleet.store.partitions import first_hour, month_of
from gpufleet.store.postgres.database import Database
from gpufleet.store.statistics import row_id, usage_fields

_ROWS = """
SELECT h.*, w.name, uid, source, labels, annotations, n.name AS namespace_name, k.name AS kind_name,
    created_at, updated_at
FROM unnest($2::int[], $3::int[]) WITH ORDINALITY AS page (hour, workload, place)
JOIN workload_hour AS h ON h.cluster = $1 AND h.hour = page.hour AND h.workload = page.workload
JOIN workload AS w ON w.id = h.workload
JOIN namespace_name AS n ON n.id = h.namespace
JOIN kind_name AS k ON k.id = h.kind
JOIN accounted_hour AS a ON a.cluster = h.cluster AND a.hour = h.hour
ORDER BY place
"""
_COUNT = """
SELECT coalesce(sum(rows), 0) FROM workload_count
WHERE cluster = $1 AND namespace = $4 AND kind = $5 AND hour BETWEEN $2 AND $3
"""
_IDS = """
SELECT id FROM workload
WHERE cluster = $1 AND name = $2 AND ($3 = 0 OR namespace = $3) AND ($4 = 0 OR kind = $4)
"""
_SPAN = "cluster = $1 AND hour BETWEEN $2 AND $3"
_EARLIEST, _LATEST = first_hour(1970, 1), first_hour(9999, 12) - 1
"""Whoever asks from the year 1, or to 9999, means from the first month, or to the last, that there is."""
_SORT_COST = 2.0
"""Collecting and sorting a row, in steps of walking an index."""


class _Narrowed(NamedTuple):
    """The filters by number; 0 stands for all, None for one that matches nothing."""

    namespace: int | None
    kind: int | None


class WorkloadPages:
    """The part of the store that answers for workloads."""

    def __init__(self, database: Database, clusters: AccountedClusters) -> None:
        self._database = database
        self._clusters = clusters

    async def page(self, wanted: WorkloadHoursWanted) -> tuple[int, list[WorkloadStatistics]]:
        """How many rows there are on all pages, and those of one."""
        number = await self._clusters.number(wanted.cluster)

        async def work(connection: asyncpg.Connection) -> tuple[int, list[WorkloadStatistics]]:
            # A plan made for any values would take a short span or a first page for the average.
            await connection.execute("SET LOCAL plan_cache_mode = force_custom_plan")
            return await _Search(connection).page(number, wanted)

        return await self._database.transaction(work)


class _Search:
    """One question, on one connection."""

    def __init__(self, connection: asyncpg.Connection) -> None:
        self._database = connection

    async def page(self, number: int, wanted: WorkloadHoursWanted) -> tuple[int, list[WorkloadStatistics]]:
        narrowed = await self._narrow(number, wanted)
        if narrowed.namespace is None or narrowed.kind is None:
            return 0, []
        if wanted.name:
            total, keys = await self._of_name(number, wanted, narrowed.namespace, narrowed.kind)
        else:
            total = await self._total(number, wanted.first, wanted.last, narrowed.namespace, narrowed.kind)
            if wanted.offset >= total:
                return total, []
            find = self._by_utilization if wanted.by_utilization else self._by_time
            keys = await find(number, wanted, narrowed.namespace, narrowed.kind, total)
        return total, await self._rows(number, wanted.cluster, keys)

    async def _narrow(self, number: int, wanted: WorkloadHoursWanted) -> _Narrowed:
        namespace: int | None = 0
        kind: int | None = 0
        if wanted.namespace:
            namespace = await self._database.fetchval(
                "SELECT id FROM namespace_name WHERE cluster = $1 AND name = $2", number, wanted.namespace
            )
        if wanted.kind:
            kind = await self._database.fetchval("SELECT id FROM kind_name WHERE name = $1", wanted.kind)
        return _Narrowed(namespace, kind)

    async def _total(self, number: int, first: int, last: int, namespace: int, kind: int) -> int:
        return int(await self._database.fetchval(_COUNT, number, first, last, namespace, kind))

    async def _of_name(
        self, number: int, wanted: WorkloadHoursWanted, namespace: int, kind: int
    ) -> tuple[int, Sequence[asyncpg.Record]]:
        rows = await self._database.fetch(_IDS, number, wanted.name, namespace, kind)
        ids = [row["id"] for row in rows]
        total = await self._database.fetchval(
            f"SELECT count(*) FROM workload_hour WHERE {_SPAN} AND workload = ANY($4::int[])",  # noqa: S608
            *(number, wanted.first, wanted.last, ids),
        )
        order = _order("utilization + 0", wanted)
        keys = await self._database.fetch(
            f"SELECT hour, workload FROM workload_hour WHERE {_SPAN} AND workload = ANY($4::int[])"  # noqa: S608
            f" ORDER BY {order} LIMIT $5 OFFSET $6",
            *(number, wanted.first, wanted.last, ids, wanted.limit, wanted.offset),
        )
        return total, keys

    async def _by_time(
        self, number: int, wanted: WorkloadHoursWanted, namespace: int, kind: int, _total: int
    ) -> Sequence[asyncpg.Record]:
        order = _order("", wanted)
        page = (wanted.limit, wanted.offset)
        span = (number, wanted.first, wanted.last)
        if namespace and not kind:
            query = f"""
            SELECT hour, workload FROM kind_name AS k CROSS JOIN LATERAL (
                SELECT hour, workload FROM workload_hour
                WHERE {_SPAN} AND namespace = $4 AND kind = k.id ORDER BY {order} LIMIT $5::int + $6::int
            ) AS found ORDER BY {order} LIMIT $5 OFFSET $6"""  # noqa: S608
            return await self._keys(query, *span, namespace, *page)
        filters, values = _filters(namespace, kind, first=6)
        query = f"""
        SELECT hour, workload FROM workload_hour WHERE {_SPAN}{filters}
        ORDER BY {order} LIMIT $4 OFFSET $5"""  # noqa: S608
        return await self._keys(query, *span, *page, *values)

    async def _by_utilization(
        self, number: int, wanted: WorkloadHoursWanted, namespace: int, kind: int, total: int
    ) -> Sequence[asyncpg.Record]:
        low, high = month_of(max(wanted.first, _EARLIEST)), month_of(min(wanted.last, _LATEST))
        months = (first_hour(*low), first_hour(high[0], high[1] + 1) - 1)
        everything = await self._total(number, *months, 0, 0)
        walked = (wanted.offset + wanted.limit) * everything / max(1, total)
        filters, values = _filters(namespace, kind, first=6)
        span = (number, wanted.first, wanted.last, wanted.limit, wanted.offset)
        if walked > _SORT_COST * total:
            # "+ 0" keeps the planner from walking the index of the order
            query = f"""
            SELECT hour, workload FROM workload_hour WHERE {_SPAN}{filters}
            ORDER BY {_order("utilization + 0", wanted)} LIMIT $4 OFFSET $5"""  # noqa: S608
        elif not wanted.descending:
            query = f"""
            SELECT hour, workload FROM workload_hour WHERE {_SPAN}{filters}
            ORDER BY {_order("utilization", wanted)} LIMIT $4 OFFSET $5"""  # noqa: S608
        else:
            query = f"""
            SELECT hour, workload FROM (
                (SELECT hour, workload, utilization FROM workload_hour
                 WHERE {_SPAN}{filters} AND utilization IS NOT NULL
                 ORDER BY utilization DESC, hour DESC, workload DESC LIMIT $4::int + $5::int)
                UNION ALL
                (SELECT hour, workload, utilization FROM workload_hour
                 WHERE {_SPAN}{filters} AND utilization IS NULL
                 ORDER BY utilization DESC, hour DESC, workload DESC LIMIT $4::int + $5::int)
            ) AS found ORDER BY {_order("utilization", wanted)} LIMIT $4 OFFSET $5"""  # noqa: S608
        return await self._keys(query, *span, *values)

    async def _keys(self, query: str, *values: int) -> Sequence[asyncpg.Record]:
        found: list[asyncpg.Record] = await self._database.fetch(query, *values)
        return found

    async def _rows(
        self, number: int, cluster: str, keys: Sequence[asyncpg.Record]
    ) -> list[WorkloadStatistics]:
        if not keys:
            return []
        hours, workloads = [row["hour"] for row in keys], [row["workload"] for row in keys]
        rows = await self._database.fetch(_ROWS, number, hours, workloads)
        return [_workload(cluster, row) for row in rows]


def _filters(namespace: int, kind: int, first: int) -> tuple[str, list[int]]:
    """Conditions with parameters from `first` on, and their values."""
    text = ""
    values: list[int] = []
    for column, value in (("namespace", namespace), ("kind", kind)):
        if value:
            text += f" AND {column} = ${first + len(values)}"
            values.append(value)
    return text, values


def _order(utilization: str, wanted: WorkloadHoursWanted) -> str:
    direction = "DESC" if wanted.descending else "ASC"
    by = f"{utilization} {direction} NULLS LAST, " if wanted.by_utilization and utilization else ""
    return f"{by}hour {direction}, workload {direction}"


def _workload(cluster: str, row: asyncpg.Record) -> WorkloadStatistics:
    fields: dict[str, Any] = usage_fields(row)
    return WorkloadStatistics(
        id=row_id(row["hour"], row["workload"]),
        cluster_name=cluster,
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
