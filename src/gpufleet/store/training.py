"""Training metrics that jobs report: one series per job, metric and rank, and its points.

Each series stores the time of its oldest point, so that pruning finds expired points without scanning
all of them. The retention depends on the cluster of the job.

A job may have `MAX_METRICS` metrics and `MAX_SERIES` series. More are a mistake, such as a number in the
metric name, and would accumulate. Each series counts its points, so that `append` can limit those of a job.

A read returns all points if they are at most `MAX_READ_POINTS`. Otherwise it divides the time between the
first and the last point into equal buckets and returns the last point of each bucket and series. Each is
found by one index lookup, so a read takes the same time however many points are stored.
"""

import asyncio
from collections.abc import Mapping, Sequence
from functools import partial

import asyncpg

from gpufleet.errors import InvalidRequest, LimitExceeded
from gpufleet.model.training_point import RankProgress, TrainingPoint
from gpufleet.store.postgres.database import Database
from gpufleet.store.prune_runs import record_run
from gpufleet.store.retention_requests import requested_retention

_WHOLE_JOB = -1
_POINTS_PER_DELETE = 100_000
"""Few enough that one statement stays below the query timeout."""
_STEP_NAMES = ["step", "steps", "global_step", "iteration"]
"""Metrics that count steps; a job reports one of them."""
TRAINING_RETENTION = "metrics.training_retention"
"""The setting, as the key of its values in the database."""
MAX_METRICS = 200
MAX_SERIES = 50_000
MAX_READ_POINTS = 20_000
"""Points that a read returns."""
MAX_WRITES = 2
"""Batches that are stored at a time. Those of one job wait for each other and must not use up the connections."""
_MIN_BUCKETS = 100
"""Buckets of a series that is downsampled; of more series than that allows, the higher ranks are left out."""
_SERIES = """
INSERT INTO training_series (cluster, workload_uid, oldest, metric, rank)
SELECT $1, $2, $3, * FROM unnest($4::text[], $5::int[])
ON CONFLICT (workload_uid, metric, rank) DO NOTHING RETURNING id
"""
# Locked, so that pruning does not delete the series before its new points are stored, and in order, so that
# two batches of one job do not deadlock when they update the series.
_EXISTING = """
SELECT id, metric, rank FROM training_series JOIN unnest($2::text[], $3::int[]) AS wanted (metric, rank)
USING (metric, rank) WHERE workload_uid = $1 ORDER BY id FOR NO KEY UPDATE OF training_series
"""
_PUT_POINTS = """
WITH stored AS (
    INSERT INTO training_point SELECT * FROM unnest($1::bigint[], $2::float8[], $3::float8[])
    ON CONFLICT (series, at) DO UPDATE SET value = excluded.value
    RETURNING series, xmax = 0 AS is_new -- a row that was updated has the xmax of this transaction
)
UPDATE training_series SET points = points + added, oldest = least(oldest, $4), cluster = $5
FROM (SELECT series, count(*) FILTER (WHERE is_new) AS added FROM stored GROUP BY series) AS counted
WHERE id = series AND (added > 0 OR oldest > $4 OR cluster = '')
"""
_SIZE = "SELECT count(DISTINCT metric), count(*) FROM training_series WHERE workload_uid = $1"
_STORED = "SELECT coalesce(sum(points), 0)::bigint FROM training_series WHERE workload_uid = $1"
_OF_JOB = "training_series WHERE workload_uid = $1 AND ($4::int IS NULL OR rank = $4)"
_COUNT = f"""
SELECT count(*) FROM (
    SELECT FROM (SELECT id FROM {_OF_JOB}) AS s
    CROSS JOIN LATERAL (
        SELECT FROM training_point WHERE series = id AND at BETWEEN $2 AND $3
        ORDER BY at LIMIT {MAX_READ_POINTS + 1}
    ) AS point LIMIT {MAX_READ_POINTS + 1}
) AS counted
"""  # noqa: S608
_READ = f"""
SELECT metric, rank, at, value FROM (SELECT * FROM {_OF_JOB}) AS s JOIN training_point ON series = id
WHERE at BETWEEN $2 AND $3
ORDER BY at, metric, rank
"""  # noqa: S608
_DOWNSAMPLE = f"""
WITH chosen AS MATERIALIZED (
    SELECT id, metric, rank, first, last FROM (SELECT * FROM {_OF_JOB}) AS s
    CROSS JOIN LATERAL (
        SELECT min(at) AS first, max(at) AS last FROM training_point WHERE series = id AND at BETWEEN $2 AND $3
    ) AS extent
    WHERE first IS NOT NULL ORDER BY rank, metric LIMIT {MAX_READ_POINTS // _MIN_BUCKETS}
), buckets AS (
    SELECT min(first) AS start, {MAX_READ_POINTS} / count(*) AS number,
        greatest((max(last) - min(first)) / ({MAX_READ_POINTS} / count(*)), 0.001) AS width
    FROM chosen
)
SELECT metric, rank, at, value FROM chosen CROSS JOIN buckets
CROSS JOIN LATERAL generate_series(
    floor((first - start) / width)::bigint, least(number - 1, floor((last - start) / width)::bigint)
) AS bucket
CROSS JOIN LATERAL (
    SELECT at, value FROM training_point
    WHERE series = id AND at >= start + bucket * width AND at <= last
        AND at < start + (bucket + CASE WHEN bucket = number - 1 THEN 2 ELSE 1 END) * width
    ORDER BY series DESC, at DESC LIMIT 1
) AS point
ORDER BY at, metric, rank
"""  # noqa: S608
_PROGRESS = """
SELECT DISTINCT ON (workload_uid, rank) workload_uid, rank, step, at, first_step, first_at, number
FROM (SELECT id, workload_uid, rank FROM training_series WHERE workload_uid = ANY($1) AND metric = ANY($2)) AS s
CROSS JOIN LATERAL (
    SELECT (array_agg(value ORDER BY at DESC))[1] AS step, max(at) AS at,
        (array_agg(value ORDER BY at))[1] AS first_step, min(at) AS first_at, count(*) AS number
    FROM (SELECT at, value FROM training_point WHERE series = id AND at >= $3 ORDER BY at DESC LIMIT 5) AS newest
) AS last
WHERE number > 0 ORDER BY workload_uid, rank, at DESC
"""
_OTHERS = "SELECT DISTINCT cluster FROM training_series WHERE cluster <> ALL($1::text[])"
_EXPIRED = "training_series ON series = id WHERE cluster = $1 AND oldest < $2 AND at < $2"
_COUNT_EXPIRED = f"SELECT count(*), min(at), max(at) FROM training_point JOIN {_EXPIRED}"  # noqa: S608
_DELETE_POINTS = f"""
WITH expired AS (SELECT series, at FROM training_point JOIN {_EXPIRED} LIMIT $3),
deleted AS (
    DELETE FROM training_point AS point USING expired
    WHERE point.series = expired.series AND point.at = expired.at RETURNING point.series, point.at
), counted AS (
    UPDATE training_series SET points = points - number
    FROM (SELECT series, count(*) AS number FROM deleted GROUP BY series) AS lost WHERE id = series
)
SELECT count(*), min(at), max(at) FROM deleted
"""  # noqa: S608
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

    def __init__(self, database: Database, long_reads: Database | None = None) -> None:
        """Use `long_reads` for reads, so that they can't keep writes waiting."""
        self._database = database
        self._long_reads = long_reads or database
        self._writing = asyncio.Semaphore(MAX_WRITES)

    async def append(
        self, cluster: str, workload_uid: str, points: Sequence[TrainingPoint], max_points: int | None = None
    ) -> None:
        """Upsert points.

        Raise InvalidRequest if the job has too many metrics, LimitExceeded for more than `max_points` points.
        """
        newest = {(point.metric, _rank(point), point.time): point.value for point in points}
        series = sorted({(metric, rank) for metric, rank, _ in newest})

        async def work(connection: asyncpg.Connection) -> None:
            if max_points is not None:
                stored = await connection.fetchval(_STORED, workload_uid)
                _refuse_too_many_points(stored, len(newest), max_points)
            oldest = min(time for _, _, time in newest)
            names, ranks = [metric for metric, _ in series], [rank for _, rank in series]
            found = await connection.fetch(_EXISTING, workload_uid, names, ranks)
            if len(found) < len(series):
                if await connection.fetch(_SERIES, cluster, workload_uid, oldest, names, ranks):
                    _refuse_too_many(*await connection.fetchrow(_SIZE, workload_uid))
                found = await connection.fetch(_EXISTING, workload_uid, names, ranks)
            ids = {(row["metric"], row["rank"]): row["id"] for row in found}
            rows = [(ids[metric, rank], time, value) for (metric, rank, time), value in newest.items()]
            await connection.execute(_PUT_POINTS, *map(list, zip(*rows, strict=True)), oldest, cluster)

        if newest:
            async with self._writing:
                await self._database.transaction(work)

    async def read(
        self, workload_uid: str, start: float, end: float, rank: int | None = None
    ) -> list[TrainingPoint]:
        """Return the points of a job, or of one rank, from `start` to `end`, sorted by time.

        More than `MAX_READ_POINTS` are downsampled (see the module).
        """
        span = (workload_uid, start, end, rank)
        few = await self._long_reads.fetchval(_COUNT, *span) <= MAX_READ_POINTS
        return [
            TrainingPoint(
                row["metric"], row["value"], row["at"], None if row["rank"] == _WHOLE_JOB else row["rank"]
            )
            for row in await self._long_reads.fetch(_READ if few else _DOWNSAMPLE, *span)
        ]

    async def progress(self, workloads: Sequence[str], since: float) -> dict[str, list[RankProgress]]:
        """Return the last step of each rank of some jobs, of those that have reported since then."""
        found: dict[str, list[RankProgress]] = {}
        for row in await self._long_reads.fetch(_PROGRESS, list(workloads), _STEP_NAMES, since):
            span, intervals = row["at"] - row["first_at"], row["number"] - 1
            found.setdefault(row["workload_uid"], []).append(
                RankProgress(
                    None if row["rank"] == _WHOLE_JOB else row["rank"],
                    row["step"],
                    row["at"],
                    span / intervals if intervals else 0.0,
                    max(0.0, row["step"] - row["first_step"]) / span if span > 0 else 0.0,
                )
            )
        return found

    async def expired(self, keep: Mapping[str, float], now: float) -> list[tuple[str, int, float, float]]:
        """Return cluster, number, oldest and newest of the points that `prune` would delete."""
        retention = await self._database.transaction(partial(_retention, keep=keep))
        found = []
        for cluster, seconds in retention.items():
            row = await self._database.fetchrow(_COUNT_EXPIRED, cluster, now - seconds)
            if row is not None and row["count"]:
                found.append((cluster, *row))
        return found

    async def prune(self, keep: Mapping[str, float], now: float, cluster: str, most: int) -> None:
        """Delete at most so many points older than the retention of a cluster (`keep` in seconds), and empty series.

        Other clusters use the retention that their servers recorded, or else the longest one.
        """
        retention = await self._database.transaction(partial(_retention, keep=keep))
        before = now - retention[cluster]
        for deleted in range(0, most, _POINTS_PER_DELETE):
            limit = min(_POINTS_PER_DELETE, most - deleted)
            await self._database.transaction(partial(_prune, cluster=cluster, before=before, limit=limit))


async def _retention(connection: asyncpg.Connection, keep: Mapping[str, float]) -> dict[str, float]:
    requested = {**await requested_retention(connection, TRAINING_RETENTION), **keep}
    others = await connection.fetch(_OTHERS, list(requested))
    return requested | {row["cluster"]: max(requested.values()) for row in others if requested}


async def _prune(connection: asyncpg.Connection, cluster: str, before: float, limit: int) -> None:
    count, oldest, newest = await connection.fetchrow(_DELETE_POINTS, cluster, before, limit)
    await record_run(connection, "training_point", cluster, count, oldest, newest)
    await connection.execute(_UPDATE_OLDEST, cluster, before)
    # Lock, then check again: points stored before the lock are visible, and none are stored after it.
    empty = [row["id"] for row in await connection.fetch(_EMPTY, cluster)]
    await connection.execute(_DELETE_SERIES, empty)
    await connection.execute(_RECHECK, empty)  # series that got points in the meantime


def _refuse_too_many_points(stored: int, more: int, limit: int) -> None:
    if stored + more > limit:
        raise LimitExceeded(
            f"the workload has {stored} points and would have {stored + more}; at most {limit} are kept "
            "(training.max_points). Report less often, or from one rank only; old points are deleted after "
            "metrics.training_retention"
        )


def _refuse_too_many(metrics: int, series: int) -> None:
    if metrics > MAX_METRICS:
        raise InvalidRequest(f"the workload would have {metrics} metrics; at most {MAX_METRICS} are kept")
    if series > MAX_SERIES:
        raise InvalidRequest(
            f"the workload would have {series} series (metrics × ranks); at most {MAX_SERIES} are kept"
        )


def _rank(point: TrainingPoint) -> int:
    return _WHOLE_JOB if point.rank is None else point.rank
