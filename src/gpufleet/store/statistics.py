"""Read hourly statistics of clusters, namespaces and labels, and the names that occur in them."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import Any, TypeVar

import asyncpg

from gpufleet.accounting.hours import GPU_HOUR
from gpufleet.accounting.statistics import (
    ClusterStatistics,
    HoursWanted,
    LabelStatistics,
    NamespaceStatistics,
)
from gpufleet.store.accounted_clusters import AccountedClusters
from gpufleet.store.postgres.database import Database

_CLUSTER = """
SELECT h.*, created_at, updated_at FROM cluster_hour AS h JOIN accounted_hour USING (cluster, hour)
WHERE cluster = $1 AND hour BETWEEN $2 AND $3
ORDER BY hour {direction} LIMIT $4 OFFSET $5
"""
_NAMESPACE = """
SELECT h.*, name, capacity, created_at, updated_at
FROM namespace_hour AS h
JOIN namespace_name AS n ON n.id = h.namespace
JOIN cluster_hour AS c ON c.cluster = h.cluster AND c.hour = h.hour
JOIN accounted_hour AS a ON a.cluster = h.cluster AND a.hour = h.hour
WHERE h.cluster = $1 AND h.hour BETWEEN $2 AND $3 AND ($6 = '' OR n.name = $6)
ORDER BY h.hour {direction}, n.name {direction} LIMIT $4 OFFSET $5
"""
_NAMESPACE_COUNT = """
SELECT count(*) FROM namespace_hour AS h JOIN namespace_name AS n ON n.id = h.namespace
WHERE h.cluster = $1 AND hour BETWEEN $2 AND $3 AND ($4 = '' OR n.name = $4)
"""
_LABEL = """
SELECT h.*, type, key, value, created_at, updated_at
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
_ROWS_A_STEP = 1000
_DIRECTION = {False: "ASC", True: "DESC"}


class KeptStatistics:
    """The part of the store that answers for clusters, namespaces and labels."""

    def __init__(self, database: Database, clusters: AccountedClusters) -> None:
        self._database = database
        self._clusters = clusters

    async def cluster_hours(self, wanted: HoursWanted) -> list[ClusterStatistics]:
        """Hours of a cluster."""
        number = await self._clusters.number(wanted.cluster)
        query = _CLUSTER.format(direction=_DIRECTION[wanted.descending])
        return await _made(await self._fetch(query, number, wanted), partial(_cluster, wanted.cluster))

    async def count_cluster_hours(self, wanted: HoursWanted) -> int:
        """How many there are on all pages."""
        return int(
            await self._database.fetchval(
                "SELECT count(*) FROM cluster_hour WHERE cluster = $1 AND hour BETWEEN $2 AND $3",
                await self._clusters.number(wanted.cluster),
                wanted.first,
                wanted.last,
            )
        )

    async def namespace_hours(self, wanted: HoursWanted, namespace: str) -> list[NamespaceStatistics]:
        """Hours of a namespace, or of all without a name."""
        number = await self._clusters.number(wanted.cluster)
        query = _NAMESPACE.format(direction=_DIRECTION[wanted.descending])
        rows = await self._fetch(query, number, wanted, namespace)
        return await _made(rows, partial(_namespace, wanted.cluster))

    async def count_namespace_hours(self, wanted: HoursWanted, namespace: str) -> int:
        """How many there are on all pages."""
        number = await self._clusters.number(wanted.cluster)
        return int(
            await self._database.fetchval(_NAMESPACE_COUNT, number, wanted.first, wanted.last, namespace)
        )

    async def label_hours(
        self, wanted: HoursWanted, type_: str, key: str, value: str
    ) -> list[LabelStatistics]:
        """Hours of a value of a label or annotation, or of all values of the key."""
        number = await self._clusters.number(wanted.cluster)
        labels = await self._label_ids(number, type_, key, value)
        query = _LABEL.format(direction=_DIRECTION[wanted.descending])
        rows = await self._fetch(query, number, wanted, labels)
        return await _made(rows, partial(_label, wanted.cluster))

    async def count_label_hours(self, wanted: HoursWanted, type_: str, key: str, value: str) -> int:
        """How many there are on all pages."""
        number = await self._clusters.number(wanted.cluster)
        labels = await self._label_ids(number, type_, key, value)
        return int(
            await self._database.fetchval(
                "SELECT count(*) FROM label_hour"
                " WHERE cluster = $1 AND hour BETWEEN $2 AND $3 AND label = ANY($4::int[])",
                *(number, wanted.first, wanted.last, labels),
            )
        )

    async def namespaces(self, cluster: str, first: int, last: int) -> list[str]:
        """Namespaces with statistics in a span of hours, sorted."""
        number = await self._clusters.number(cluster)
        rows = await self._database.fetch(_NAMESPACES, number, first, last)
        return sorted(row["name"] for row in rows)

    async def dimension_keys(self, cluster: str, first: int, last: int, type_: str) -> list[str]:
        """Keys of labels or annotations with statistics in a span of hours, sorted."""
        number = await self._clusters.number(cluster)
        rows = await self._database.fetch(_LABELS.format(column="key"), *(number, first, last, type_, None))
        return sorted(row["name"] for row in rows)

    async def dimension_values(self, cluster: str, first: int, last: int, type_: str, key: str) -> list[str]:
        """Values of one key with statistics in a span of hours, sorted."""
        number = await self._clusters.number(cluster)
        rows = await self._database.fetch(_LABELS.format(column="value"), *(number, first, last, type_, key))
        return sorted(row["name"] for row in rows)

    async def _label_ids(self, number: int, type_: str, key: str, value: str) -> list[int]:
        return [row["id"] for row in await self._database.fetch(_LABEL_IDS, number, type_, key, value)]

    async def _fetch(
        self, query: str, number: int, wanted: HoursWanted, *more: Any
    ) -> Sequence[asyncpg.Record]:
        return await self._database.fetch(
            query, number, wanted.first, wanted.last, wanted.limit, wanted.offset, *more
        )


async def _made(rows: Sequence[asyncpg.Record], make: Callable[[asyncpg.Record], T]) -> list[T]:
    """Something of each row; of many in steps, between which others are served."""
    made: list[T] = []
    for first in range(0, len(rows), _ROWS_A_STEP):
        if first:
            await asyncio.sleep(0)
        made += map(make, rows[first : first + _ROWS_A_STEP])
    return made


def stat_hour(hour: int) -> datetime:
    """The beginning of hour number `hour`."""
    return datetime.fromtimestamp(hour * 3600, UTC)


def row_id(hour: int, member: int) -> int:
    """A row's id: made of what it is known by, so that computing an hour again does not change it."""
    return hour << 32 | member


def usage_fields(row: asyncpg.Record) -> dict[str, Any]:
    """What rows of every kind have."""
    allocated = row["allocated"] / GPU_HOUR
    return {
        "stat_hour": stat_hour(row["hour"]),
        "allocated_gpu_count": allocated,
        "allocated_gpu_hours": allocated,
        "idle_gpu_hours": row["idle"] / GPU_HOUR,
        "cost": row["cost"],
        "sample_count": row["samples"],
        "avg_utilization": row["utilization"],
        "max_utilization": row["highest"],
        "min_utilization": row["lowest"],
        "p50_utilization": row["p50"],
        "p95_utilization": row["p95"],
        "created_at": row["created_at"],
        "updated_at": row["updated_at"],
    }


def _cluster(name: str, row: asyncpg.Record) -> ClusterStatistics:
    capacity = row["capacity"]
    return ClusterStatistics(
        id=row_id(row["hour"], row["cluster"]),
        cluster_name=name,
        total_gpu_capacity=round(capacity),
        capacity_gpu_hours=capacity,
        allocation_rate=100 * row["allocated"] / (capacity * GPU_HOUR) if capacity else 0.0,
        **usage_fields(row),
    )


def _namespace(name: str, row: asyncpg.Record) -> NamespaceStatistics:
    return NamespaceStatistics(
        id=row_id(row["hour"], row["namespace"]),
        cluster_name=name,
        namespace=row["name"],
        total_gpu_capacity=round(row["capacity"]),
        active_workload_count=row["workloads"],
        **usage_fields(row),
    )


def _label(name: str, row: asyncpg.Record) -> LabelStatistics:
    return LabelStatistics(
        id=row_id(row["hour"], row["label"]),
        cluster_name=name,
        dimension_type=row["type"],
        dimension_key=row["key"],
        dimension_value=row["value"],
        active_workload_count=row["workloads"],
        **usage_fields(row),
    )
