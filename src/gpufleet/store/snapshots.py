"""Snapshots: what was allocated at a moment, and the readings of the GPUs then.

The readings are kept beside the details, so that an hour that the metric source has lost can be
rolled up from its snapshots. They are read only for that.
"""

import math
from collections.abc import Sequence
from datetime import UTC, datetime

import asyncpg
import msgspec

from gpufleet.accounting.statistics import Snapshot
from gpufleet.errors import NotFound
from gpufleet.store.accounted_clusters import AccountedClusters
from gpufleet.store.partitions import ensure_month
from gpufleet.store.postgres.database import Database
from gpufleet.store.postgres.jsonb import storable

_PUT = """
INSERT INTO snapshot (cluster, hour, taken_at, capacity, allocated, utilization, details, readings)
VALUES ($1, $2, $3, $4, $5, $6, $7, $8)
ON CONFLICT (cluster, hour, taken_at) DO UPDATE SET
    capacity = excluded.capacity, allocated = excluded.allocated, utilization = excluded.utilization,
    details = excluded.details, readings = excluded.readings, created_at = now()
WHERE extract(epoch FROM snapshot.created_at) < snapshot.taken_at - 60 -- a clock was ahead
"""
_LATEST = """
SELECT taken_at, capacity, allocated, utilization, details, created_at FROM snapshot
WHERE cluster = $1 AND hour <= $2 AND taken_at <= $3 ORDER BY hour DESC, taken_at DESC LIMIT 1
"""
_FIRST, _LAST = -(2**31), 2**31 - 1
"""What a column of whole seconds takes."""
_NEWEST = """
SELECT taken_at FROM snapshot
WHERE cluster = $1 AND hour <= $2 AND taken_at <= $3 ORDER BY hour DESC, taken_at DESC LIMIT 1
"""
_BETWEEN = (
    "SELECT taken_at, capacity, allocated, utilization, created_at,"
    " CASE WHEN $8 THEN details ELSE '{}'::jsonb END AS details FROM snapshot WHERE cluster = $1 AND hour BETWEEN $2 AND $3 AND taken_at BETWEEN $4 AND $5"
    " ORDER BY hour, taken_at LIMIT $6 OFFSET $7"
)
_COUNT = "SELECT count(*) FROM snapshot WHERE cluster = $1 AND hour BETWEEN $2 AND $3 AND taken_at BETWEEN $4 AND $5"
_READINGS = "SELECT taken_at, readings FROM snapshot WHERE cluster = $1 AND hour = $2 ORDER BY taken_at"


class KeptSnapshots:
    """The part of the store for snapshots."""

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
        """Keep a snapshot; the first of a moment stays, unless it was taken before that moment."""
        number = await self._clusters.number(cluster)
        row = (
            number,
            taken_at // 3600,
            taken_at,
            capacity,
            allocated,
            utilization,
            storable(details.decode()),
            readings,
        )

        async def work(connection: asyncpg.Connection) -> None:
            await ensure_month(connection, taken_at // 3600)
            await connection.execute(_PUT, *row)

        await self._database.transaction(work)

    async def latest(self, cluster: str, now: float) -> Snapshot:
        """The newest snapshot; NotFound if there is none yet.

        One that a clock dated in the future, before it was set right, counts only where there is no other.
        """
        number = await self._clusters.number(cluster)
        for last in (math.floor(now), _LAST):
            row = await self._database.fetchrow(_LATEST, number, last // 3600, last)
            if row is not None:
                break
        else:
            raise NotFound(f"there is no snapshot of cluster {cluster!r} yet; one is taken every few minutes")
        return _snapshot(cluster, number, row)

    async def between(
        self, cluster: str, start: float, end: float, limit: int, offset: int, *, details: bool
    ) -> Sequence[Snapshot]:
        """Snapshots taken from `start` to `end`, both inclusive, in order; without `details` theirs are empty."""
        number = await self._clusters.number(cluster)
        rows = await self._database.fetch(_BETWEEN, number, *_span(start, end), limit, offset, details)
        return [_snapshot(cluster, number, row) for row in rows]

    async def count(self, cluster: str, start: float, end: float) -> int:
        """How many there are from `start` to `end`."""
        number = await self._clusters.number(cluster)
        return int(await self._database.fetchval(_COUNT, number, *_span(start, end)))

    async def readings(self, cluster: str, hour: int) -> list[tuple[int, bytes]]:
        """The readings of each snapshot of an hour, with its time."""
        rows = await self._database.fetch(_READINGS, await self._clusters.number(cluster), hour)
        return [(row["taken_at"], row["readings"]) for row in rows]

    async def newest(self, cluster: str, now: float) -> int | None:
        """When the newest was taken; None if there is none but in the future."""
        number, last = await self._clusters.number(cluster), math.floor(now)
        taken: int | None = await self._database.fetchval(_NEWEST, number, last // 3600, last)
        return taken


def _span(start: float, end: float) -> tuple[int, int, int, int]:
    # whoever asks for the year 230 or 9999 means from the first, or to the last, that there is
    first, last = (max(_FIRST, min(_LAST, moment)) for moment in (math.ceil(start), math.floor(end)))
    return first // 3600, last // 3600, first, last


def _snapshot(cluster: str, number: int, row: asyncpg.Record) -> Snapshot:
    allocated: float = row["allocated"]
    return Snapshot(
        # made of what it is known by, so that it stays the same
        id=row["taken_at"] << 16 | number,
        cluster_name=cluster,
        snapshot_time=datetime.fromtimestamp(row["taken_at"], UTC),
        total_gpu_capacity=row["capacity"],
        allocated_gpu_count=int(allocated) if allocated.is_integer() else allocated,
        utilization=row["utilization"],
        allocation_details=msgspec.Raw(row["details"].encode()),
        created_at=row["created_at"],
    )
