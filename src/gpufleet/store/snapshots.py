"""Snapshots: the allocations at one moment, and the GPU readings at that moment.

The readings are stored separately from the details. They are only read to roll up an hour for which the
metric source has no data.
"""

import math
from collections.abc import Sequence
from datetime import UTC, datetime

import asyncpg
import msgspec

from gpufleet.errors import NotFound
from gpufleet.model.namespaces import Namespaces
from gpufleet.model.statistics import Snapshot
from gpufleet.store.accounted_clusters import AccountedClusters
from gpufleet.store.partitions import ensure_month
from gpufleet.store.postgres.database import Database
from gpufleet.store.postgres.jsonb import replace_nuls

_PUT = """
INSERT INTO snapshot (cluster, hour, taken_at, capacity, allocated, utilization, details, readings)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
ON CONFLICT (cluster, hour, taken_at) DO UPDATE SET
    capacity = excluded.capacity, allocated = excluded.allocated, utilization = excluded.utilization,
    details = excluded.details, readings = excluded.readings, created_at = now()
WHERE extract(epoch FROM snapshot.created_at) < snapshot.taken_at - 60 -- the writer's clock was ahead
"""
_LATEST = """
SELECT taken_at, capacity, allocated, utilization, details, created_at FROM snapshot
WHERE cluster = $1 AND hour <= $2 AND taken_at <= $3 ORDER BY hour DESC, taken_at DESC LIMIT 1
"""
# What is in the namespaces that the caller may see. Labels and annotations count all namespaces: they are left out.
_LIMITED = """
SELECT taken_at, capacity, created_at, used.* FROM ({rows}) AS found CROSS JOIN LATERAL (
    SELECT coalesce(sum(gpus), 0) AS allocated,
        round((sum(gpus * utilization)
            / nullif(sum(gpus) FILTER (WHERE utilization IS NOT NULL), 0))::numeric, 4)::float8 AS utilization,
        jsonb_build_object(
            'namespaces', coalesce(jsonb_object_agg(key, value) FILTER (WHERE {details}), '{{}}'),
            'labels', '{{}}'::jsonb, 'annotations', '{{}}'::jsonb
        ) AS details
    FROM (
        SELECT key, value, (value ->> 'allocated_gpu')::float8 AS gpus, (value ->> 'utilization')::float8 AS utilization
        FROM jsonb_each(found.details -> 'namespaces')
    ) AS namespace WHERE key = ANY({namespaces}::text[])
) AS used ORDER BY taken_at
"""
_FIRST, _LAST = -(2**31), 2**31 - 1
"""The range of an integer column."""
_NEWEST = """
SELECT taken_at FROM snapshot
WHERE cluster = $1 AND hour <= $2 AND taken_at <= $3 ORDER BY hour DESC, taken_at DESC LIMIT 1
"""
_BETWEEN = (
    "SELECT taken_at, capacity, allocated, utilization, created_at,"
    " CASE WHEN $8 THEN details ELSE '{}'::jsonb END AS details FROM snapshot WHERE cluster = $1 AND hour BETWEEN $2 AND $3 AND taken_at BETWEEN $4 AND $5"
    " ORDER BY hour, taken_at LIMIT $6 OFFSET $7"
)
_NONE = msgspec.Raw(b"{}")
_COUNT = "SELECT count(*) FROM snapshot WHERE cluster = $1 AND hour BETWEEN $2 AND $3 AND taken_at BETWEEN $4 AND $5"
_READINGS = "SELECT taken_at, readings FROM snapshot WHERE cluster = $1 AND hour = $2 ORDER BY taken_at"


class SnapshotStore:
    """Store snapshots."""

    def __init__(self, database: Database, clusters: AccountedClusters) -> None:
        self._database = database
        self._clusters = clusters

    async def save(
        self,
        cluster: str,
        taken_at: int,
        capacity: int,
        allocated: float,
        utilization: float | None,
        details: bytes,
        readings: bytes,
    ) -> None:
        """Store a snapshot unless its moment has one that was not written ahead of time."""
        cluster_id = await self._clusters.id_of(cluster)
        row = (
            cluster_id,
            taken_at // 3600,
            taken_at,
            capacity,
            allocated,
            utilization,
            replace_nuls(details.decode()),
            readings,
        )

        async def work(connection: asyncpg.Connection) -> None:
            await ensure_month(connection, taken_at // 3600)
            await connection.execute(_PUT, *row)

        await self._database.transaction(work)

    async def latest(self, cluster: str, now: float, namespaces: Namespaces = None) -> Snapshot:
        """Return the newest snapshot; raise NotFound if there is none.

        A snapshot with a time in the future, written while the clock was ahead, is only a last resort.
        """
        cluster_id = await self._clusters.id_of(cluster)
        sql, limit = _LATEST, []
        if namespaces is not None:
            sql, limit = _LIMITED.format(rows=_LATEST, namespaces="$4", details="true"), [namespaces]
        for last in (math.floor(now), _LAST):
            row = await self._database.fetchrow(sql, cluster_id, last // 3600, last, *limit)
            if row is not None:
                break
        else:
            raise NotFound(f"cluster {cluster!r} has no snapshot yet; one is taken every few minutes")
        return _snapshot(cluster, cluster_id, row)

    async def between(
        self,
        cluster: str,
        start: float,
        end: float,
        limit: int,
        offset: int,
        *,
        details: bool,
        namespaces: Namespaces = None,
    ) -> Sequence[Snapshot]:
        """Return the snapshots from `start` to `end`, both inclusive; details are empty without `details`."""
        cluster_id = await self._clusters.id_of(cluster)
        params = (cluster_id, *_span(start, end), limit, offset)
        if namespaces is None:
            rows = await self._database.fetch(_BETWEEN, *params, details)
            return [_snapshot(cluster, cluster_id, row) for row in rows]
        sql = _LIMITED.format(rows=_BETWEEN, namespaces="$9", details="$10::bool")
        rows = await self._database.fetch(sql, *params, True, namespaces, details)
        found = [_snapshot(cluster, cluster_id, row) for row in rows]
        return (
            found if details else [msgspec.structs.replace(each, allocation_details=_NONE) for each in found]
        )

    async def count(self, cluster: str, start: float, end: float) -> int:
        """Count the snapshots from `start` to `end`."""
        cluster_id = await self._clusters.id_of(cluster)
        return int(await self._database.fetchval(_COUNT, cluster_id, *_span(start, end)))

    async def readings(self, cluster: str, hour: int) -> list[tuple[int, bytes]]:
        """Return the time and the readings of each snapshot of an hour."""
        rows = await self._database.fetch(_READINGS, await self._clusters.id_of(cluster), hour)
        return [(row["taken_at"], row["readings"]) for row in rows]

    async def newest(self, cluster: str, now: float) -> int | None:
        """Return the time of the newest snapshot that is not in the future; None if there is none."""
        cluster_id, last = await self._clusters.id_of(cluster), math.floor(now)
        taken: int | None = await self._database.fetchval(_NEWEST, cluster_id, last // 3600, last)
        return taken


def _span(start: float, end: float) -> tuple[int, int, int, int]:
    # clamp: a query may start in the year 230 or end in 9999
    first, last = (max(_FIRST, min(_LAST, moment)) for moment in (math.ceil(start), math.floor(end)))
    return first // 3600, last // 3600, first, last


def _snapshot(cluster: str, cluster_id: int, row: asyncpg.Record) -> Snapshot:
    allocated: float = row["allocated"]
    return Snapshot(
        # derived from the key, so that it never changes
        id=row["taken_at"] << 16 | cluster_id,
        cluster_name=cluster,
        snapshot_time=datetime.fromtimestamp(row["taken_at"], UTC),
        total_gpu_capacity=row["capacity"],
        allocated_gpu_count=int(allocated) if allocated.is_integer() else allocated,
        utilization=row["utilization"],
        allocation_details=msgspec.Raw(row["details"].encode()),
        created_at=row["created_at"],
    )
