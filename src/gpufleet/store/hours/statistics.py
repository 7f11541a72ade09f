"""Read hourly statistics of clusters, namespaces and labels, and the names that occur in them."""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

import asyncpg
import msgspec

from gpufleet.model.hours import GPU_HOUR, HOUR_MS, KILOWATT_HOUR
from gpufleet.model.namespaces import Namespaces
from gpufleet.model.statistics import (
    ClusterStatistics,
    HoursQuery,
    LabelStatistics,
    NamespaceStatistics,
)
from gpufleet.store.accounted_clusters import AccountedClusters
from gpufleet.store.hours.limited_sql import (
    CLUSTER_HOURS,
    LABEL_COUNT,
    LABEL_HOURS,
    LABEL_VALUES,
    NAMESPACE_IDS,
)
from gpufleet.store.postgres.database import Database

_CLUSTER = """
SELECT h.*, created_at, updated_at, observed FROM cluster_hour AS h JOIN accounted_hour USING (cluster, hour)
WHERE cluster = $1 AND hour BETWEEN $2 AND $3
ORDER BY hour {direction} LIMIT $4 OFFSET $5
"""
_NAMESPACE = """
SELECT h.*, name, capacity, gpus, created_at, updated_at, observed
FROM namespace_hour AS h
JOIN namespace_name AS n ON n.id = h.namespace
JOIN cluster_hour AS c ON c.cluster = h.cluster AND c.hour = h.hour
JOIN accounted_hour AS a ON a.cluster = h.cluster AND a.hour = h.hour
WHERE h.cluster = $1 AND h.hour BETWEEN $2 AND $3 AND ($6 = '' OR n.name = $6)
    AND ($7::text[] IS NULL OR n.name = ANY($7))
ORDER BY h.hour {direction}, n.name {direction} LIMIT $4 OFFSET $5
"""
_NAMESPACE_COUNT = """
SELECT count(*) FROM namespace_hour AS h JOIN namespace_name AS n ON n.id = h.namespace
WHERE h.cluster = $1 AND hour BETWEEN $2 AND $3 AND ($4 = '' OR n.name = $4)
    AND ($5::text[] IS NULL OR n.name = ANY($5))
"""
_LABEL = """
SELECT h.*, type, key, value, created_at, updated_at, observed
FROM label_hour AS h
JOIN label_name AS n ON n.id = h.label
JOIN accounted_hour AS a ON a.cluster = h.cluster AND a.hour = h.hour
WHERE h.cluster = $1 AND h.hour BETWEEN $2 AND $3 AND h.label = ANY($6::int[])
ORDER BY h.hour {direction}, value {direction} LIMIT $4 OFFSET $5
"""
_LABEL_IDS = """
SELECT id FROM label_name WHERE cluster = $1 AND type = $2 AND key = $3 AND ($4 = '' OR value = $4)
"""
_NAMESPACES = """
SELECT name FROM namespace_name AS n WHERE cluster = $1 AND EXISTS (
    SELECT FROM namespace_hour AS h
    WHERE h.cluster = $1 AND namespace = n.id AND hour BETWEEN $2 AND $3
)
"""
_LABELS = """
SELECT DISTINCT {column} AS name FROM label_name AS n
WHERE cluster = $1 AND type = $4 AND ($5::text IS NULL OR key = $5) AND EXISTS (
    SELECT FROM label_hour AS h WHERE h.cluster = $1 AND label = n.id AND hour BETWEEN $2 AND $3
)
"""
T = TypeVar("T")
Row = Mapping[str, Any]
"""The columns of a row by name."""
_ROWS_PER_BATCH = 1000
_DIRECTION = {False: "ASC", True: "DESC"}


class StatisticsStore:
    """Read hourly statistics of clusters, namespaces and labels."""

    def __init__(self, database: Database, clusters: AccountedClusters) -> None:
        self._database = database
        self._clusters = clusters

    async def cluster_hours(self, query: HoursQuery) -> list[ClusterStatistics]:
        """Return one page of the hours of a cluster."""
        cluster_id = await self._clusters.id_of(query.cluster)
        sql, members = _CLUSTER, []
        if query.namespaces is not None:
            sql, members = CLUSTER_HOURS, [await self._namespace_ids(cluster_id, query.namespaces)]
        sql = sql.format(direction=_DIRECTION[query.descending])
        rows = await self._fetch(sql, cluster_id, query, *members)
        return await _convert(rows, partial(cluster_row, query))

    async def count_cluster_hours(self, query: HoursQuery) -> int:
        """Count the rows of all pages."""
        return int(
            await self._database.fetchval(
                "SELECT count(*) FROM cluster_hour WHERE cluster = $1 AND hour BETWEEN $2 AND $3",
                await self._clusters.id_of(query.cluster),
                query.first,
                query.last,
            )
        )

    async def namespace_hours(self, query: HoursQuery, namespace: str) -> list[NamespaceStatistics]:
        """Return one page of the hours of a namespace, or of all with an empty name."""
        cluster_id = await self._clusters.id_of(query.cluster)
        sql = _NAMESPACE.format(direction=_DIRECTION[query.descending])
        rows = await self._fetch(sql, cluster_id, query, namespace, query.namespaces)
        return await _convert(rows, partial(namespace_row, query))

    async def count_namespace_hours(self, query: HoursQuery, namespace: str) -> int:
        """Count the rows of all pages."""
        cluster_id = await self._clusters.id_of(query.cluster)
        span = (cluster_id, query.first, query.last)
        return int(await self._database.fetchval(_NAMESPACE_COUNT, *span, namespace, query.namespaces))

    async def label_hours(self, query: HoursQuery, type_: str, key: str, value: str) -> list[LabelStatistics]:
        """Return one page of the hours of a label or annotation value, or of all values of the key."""
        cluster_id = await self._clusters.id_of(query.cluster)
        direction = _DIRECTION[query.descending]
        if query.namespaces is not None:
            members = await self._namespace_ids(cluster_id, query.namespaces)
            params = (cluster_id, query.first, query.last, members, type_, key, value)
            sql = LABEL_HOURS.format(direction=direction)
            found = await self._database.fetch(sql, *params, query.limit, query.offset)
            return await _convert(found, partial(label_row, query))
        labels = await self._label_ids(cluster_id, type_, key, value)
        rows = await self._fetch(_LABEL.format(direction=direction), cluster_id, query, labels)
        return await _convert(rows, partial(label_row, query))

    async def count_label_hours(self, query: HoursQuery, type_: str, key: str, value: str) -> int:
        """Count the rows of all pages."""
        cluster_id = await self._clusters.id_of(query.cluster)
        if query.namespaces is not None:
            members = await self._namespace_ids(cluster_id, query.namespaces)
            params = (cluster_id, query.first, query.last, members, type_, key, value)
            return int(await self._database.fetchval(LABEL_COUNT, *params))
        labels = await self._label_ids(cluster_id, type_, key, value)
        return int(
            await self._database.fetchval(
                "SELECT count(*) FROM label_hour"
                " WHERE cluster = $1 AND hour BETWEEN $2 AND $3 AND label = ANY($4::int[])",
                *(cluster_id, query.first, query.last, labels),
            )
        )

    async def namespaces(self, cluster: str, first: int, last: int) -> list[str]:
        """Return the namespaces with statistics in a span of hours, sorted."""
        cluster_id = await self._clusters.id_of(cluster)
        rows = await self._database.fetch(_NAMESPACES, cluster_id, first, last)
        return sorted(row["name"] for row in rows)

    async def dimension_keys(self, cluster: str, first: int, last: int, type_: str) -> list[str]:
        """Return the label or annotation keys with statistics in a span of hours, sorted."""
        cluster_id = await self._clusters.id_of(cluster)
        rows = await self._database.fetch(
            _LABELS.format(column="key"), *(cluster_id, first, last, type_, None)
        )
        return sorted(row["name"] for row in rows)

    async def dimension_values(
        self, cluster: str, first: int, last: int, type_: str, key: str, namespaces: Namespaces = None
    ) -> list[str]:
        """Return the values of a key with statistics in a span of hours, sorted."""
        cluster_id = await self._clusters.id_of(cluster)
        if namespaces is not None:
            members = await self._namespace_ids(cluster_id, namespaces)
            rows = await self._database.fetch(LABEL_VALUES, cluster_id, first, last, members, type_, key)
            return sorted(row["name"] for row in rows)
        rows = await self._database.fetch(
            _LABELS.format(column="value"), *(cluster_id, first, last, type_, key)
        )
        return sorted(row["name"] for row in rows)

    async def _label_ids(self, cluster_id: int, type_: str, key: str, value: str) -> list[int]:
        return [row["id"] for row in await self._database.fetch(_LABEL_IDS, cluster_id, type_, key, value)]

    async def _namespace_ids(self, cluster_id: int, namespaces: frozenset[str]) -> list[int]:
        rows = await self._database.fetch(NAMESPACE_IDS, cluster_id, namespaces)
        return [row["id"] for row in rows]

    async def _fetch(
        self, sql: str, cluster_id: int, query: HoursQuery, *params: Any
    ) -> Sequence[asyncpg.Record]:
        return await self._database.fetch(
            sql, cluster_id, query.first, query.last, query.limit, query.offset, *params
        )


async def _convert(rows: Sequence[asyncpg.Record], convert: Callable[[asyncpg.Record], T]) -> list[T]:
    """Convert all rows, and yield to the event loop after each batch."""
    converted: list[T] = []
    for first in range(0, len(rows), _ROWS_PER_BATCH):
        if first:
            await asyncio.sleep(0)
        converted += map(convert, rows[first : first + _ROWS_PER_BATCH])
    return converted


def row_id(hour: int, member: int) -> int:
    """Derive the id of a row from its key, so that rolling up the hour again does not change it."""
    return hour << 32 | member


def usage_fields(query: HoursQuery, row: Row) -> dict[str, Any]:
    """Return the fields that rows of all kinds share."""
    return {
        "stat_hour": datetime.fromtimestamp(row["hour"] * 3600, UTC),
        "allocated_gpu_count": row["allocated"] / GPU_HOUR,  # the mean over the hour
        "allocated_gpu_hours": row["allocated"] / GPU_HOUR,
        "observed_share": row["observed"] / HOUR_MS,
        "idle_gpu_hours": row["idle"] / GPU_HOUR,
        "cost": row["cost"],
        "currency": query.currency or msgspec.UNSET,
        "energy_kwh": None if row["energy"] is None else row["energy"] / KILOWATT_HOUR,
        "sample_count": row["samples"],
        "avg_utilization": row["utilization"],
        "max_utilization": row["highest"],
        "min_utilization": row["lowest"],
        "p50_utilization": row["p50"],
        "p95_utilization": row["p95"],
        "created_at": row["created_at"],
        "updated_at": row["updated_at"],
    }


def _size(row: Row) -> int:
    return round(row["capacity"]) if row["gpus"] is None else int(row["gpus"])


def cluster_row(query: HoursQuery, row: Row) -> ClusterStatistics:
    """Return the hour of a cluster from its columns."""
    capacity = row["capacity"]
    return ClusterStatistics(
        id=row_id(row["hour"], row["cluster"]),
        cluster_name=query.cluster,
        total_gpu_capacity=_size(row),
        capacity_gpu_hours=capacity,
        allocation_rate=100 * row["allocated"] / (capacity * GPU_HOUR) if capacity else 0.0,
        **usage_fields(query, row),
    )


def namespace_row(query: HoursQuery, row: Row) -> NamespaceStatistics:
    """Return the hour of a namespace from its columns."""
    return NamespaceStatistics(
        id=row_id(row["hour"], row["namespace"]),
        cluster_name=query.cluster,
        namespace=row["name"],
        total_gpu_capacity=_size(row),
        active_workload_count=row["workloads"],
        **usage_fields(query, row),
    )


def label_row(query: HoursQuery, row: Row) -> LabelStatistics:
    """Return the hour of a label or annotation value from its columns."""
    return LabelStatistics(
        id=row_id(row["hour"], row["label"]),
        cluster_name=query.cluster,
        dimension_type=row["type"],
        dimension_key=row["key"],
        dimension_value=row["value"],
        active_workload_count=row["workloads"],
        **usage_fields(query, row),
    )
