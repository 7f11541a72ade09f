"""Training metrics that jobs report: one series per job, metric and rank, and its points.

Each series stores the time of its oldest point, so that pruning finds expired points without scanning
all of them. The retention depends on the cluster of the job.

A job may have `MAX_METRICS` metrics and `MAX_SERIES` series. More are a mistake, such as a number in the
metric name, and would accumulate.
"""

from collections.abc import Mapping, Sequence
from functools import partial

import asyncpg

from gpufleet.errors import InvalidRequest
from gpufleet.model.reading import TrainingPoint
from gpufleet.store.postgres.bulk import bulk_upsert
from gpufleet.store.postgres.database import Database
from gpufleet.store.retention_requests import record_retention, requested_retention

_WHOLE_JOB = -1
_RETENTION = "metrics.training_retention"
MAX_METRICS = 200
MAX_SERIES = 50_000
_SERIES = """
INSERT INTO training_series (cluster, workload_uid, oldest, metric, rank)
SELECT $1, $2, $3, * FROM unnest($4::text[], $5::int[])
ON CONFLICT (workload_uid, metric, rank) DO NOTHING RETURNING id
"""
# locked, so that pruning does not delete the series before its new points are stored
_EXISTING = """
SELECT id, metric, rank FROM training_series JOIN unnest($2::text[], $3::int[]) AS wanted (metric, rank)
USING (metric, rank) WHERE workload_uid = $1 ORDER BY id FOR KEY SHARE OF training_series
"""
_SET_OLDEST = """
UPDATE training_series SET oldest = least(oldest, $2), cluster = $3
WHERE id = ANY($1::bigint[]) AND (oldest > $2 OR cluster = '')
"""
_SIZE = "SELECT count(DISTINCT metric), count(*) FROM training_series WHERE workload_uid = $1"
_READ = """
SELECT metric, rank, at, value FROM training_series JOIN training_point ON series = id
WHERE workload_uid = $1 AND at BETWEEN $2 AND $3
ORDER BY at, metric, rank
"""
_OTHERS = "SELECT DISTINCT cluster FROM training_series WHERE cluster <> ALL($1::text[])"
_DELETE_POINTS = """
DELETE FROM training_point USING training_series
WHERE series = id AND cluster = $1 AND oldest < $2 AND at < $2
"""
_UPDATE_OLDEST = """
UPDATE training_series SET oldest = coalesce((SELECT min(at) FROM training_point WHERE series = id), 'infinity')
WHERE cluster = $1 AND oldest < $2
"""
_EMPTY = "SELECT id FROM training_series WHERE cluster = $1 AND oldest = 'infinity' FOR UPDATE SKIP LOCKED"
_DELETE_SERIES = """
DELETE FROM training_series
WHERE id = ANY($1::bigint[]) AND NOT EXISTS (SELECT FROM training_point WHERE series = id)
"""
_RECHECK = "UPDATE training_series SET oldest = '-infinity' WHERE id = ANY($1::bigint[])"


class TrainingStore:
    """Store the metrics of training jobs."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def append(self, cluster: str, workload_uid: str, points: Sequence[TrainingPoint]) -> None:
        """Upsert points; raise InvalidRequest if the job has too many metrics."""
        newest = {(point.metric, _rank(point), point.time): point.value for point in points}
        series = sorted({(metric, rank) for metric, rank, _ in newest})

        async def work(connection: asyncpg.Connection) -> None:
            oldest = min(time for _, _, time in newest)
            names, ranks = [metric for metric, _ in series], [rank for _, rank in series]
            found = await connection.fetch(_EXISTING, workload_uid, names, ranks)
            if len(found) < len(series):
                if await connection.fetch(_SERIES, cluster, workload_uid, oldest, names, ranks):
                    _refuse_too_many(*await connection.fetchrow(_SIZE, workload_uid))
                found = await connection.fetch(_EXISTING, workload_uid, names, ranks)
            ids = {(row["metric"], row["rank"]): row["id"] for row in found}
            rows = [(ids[metric, rank], time, value) for (metric, rank, time), value in newest.items()]
            await bulk_upsert(connection, "training_point", ("series", "at", "value"), ("series", "at"), rows)
            await connection.execute(_SET_OLDEST, list(ids.values()), oldest, cluster)

        if newest:
            await self._database.transaction(work)

    async def read(self, workload_uid: str, start: float, end: float) -> list[TrainingPoint]:
        """Return the points of a job from `start` to `end`, sorted by time."""
        return [
            TrainingPoint(
                row["metric"], row["value"], row["at"], None if row["rank"] == _WHOLE_JOB else row["rank"]
            )
            for row in await self._database.fetch(_READ, workload_uid, start, end)
        ]

    async def prune(self, keep: Mapping[str, float], now: float) -> None:
        """Delete points older than the retention of their cluster (`keep` in seconds), and empty series.

        Other clusters use the retention that their servers recorded, or else the longest one.
        """

        async def retention(connection: asyncpg.Connection) -> dict[str, float]:
            await record_retention(connection, _RETENTION, keep, now)
            requested = await requested_retention(connection, _RETENTION)
            others = await connection.fetch(_OTHERS, list(requested))
            return requested | {row["cluster"]: max(requested.values()) for row in others}

        for cluster, seconds in (await self._database.transaction(retention)).items():
            await self._database.transaction(partial(_prune, cluster=cluster, before=now - seconds))


async def _prune(connection: asyncpg.Connection, cluster: str, before: float) -> None:
    await connection.execute(_DELETE_POINTS, cluster, before)
    await connection.execute(_UPDATE_OLDEST, cluster, before)
    # Lock, then check again: points stored before the lock are visible, and none are stored after it.
    empty = [row["id"] for row in await connection.fetch(_EMPTY, cluster)]
    await connection.execute(_DELETE_SERIES, empty)
    await connection.execute(_RECHECK, empty)  # series that got points in the meantime


def _refuse_too_many(metrics: int, series: int) -> None:
    if metrics > MAX_METRICS:
        raise InvalidRequest(f"the workload would have {metrics} metrics; at most {MAX_METRICS} are kept")
    if series > MAX_SERIES:
        raise InvalidRequest(
            f"the workload would have {series} series (metrics × ranks); at most {MAX_SERIES} are kept"
        )


def _rank(point: TrainingPoint) -> int:
    return _WHOLE_JOB if point.rank is None else point.rank
