"""Numbers that training jobs report: a series for each job, metric and rank, and its points.

Each series knows from when its oldest point is, so that what is too old is found without a look at all points:
they are stored by series, and most are new. What is kept how long is up to the job's cluster.

A job may have `MOST_METRICS` metrics and `MOST_SERIES` series: more is a mistake (a name with a
number in it), and every one of them would stay.
"""

from collections.abc import Mapping, Sequence
from functools import partial

import asyncpg

from gpufleet.errors import InvalidRequest
from gpufleet.model.reading import TrainingPoint
from gpufleet.store.postgres.bulk import merge
from gpufleet.store.postgres.database import Database
from gpufleet.store.retention import tell, told

_WHOLE_JOB = -1
_RETENTION = "metrics.training_retention"
MOST_METRICS = 200
MOST_SERIES = 50_000
_SERIES = """
INSERT INTO training_series (cluster, workload_uid, oldest, metric, rank)
SELECT $1, $2, $3, * FROM unnest($4::text[], $5::int[])
ON CONFLICT (workload_uid, metric, rank) DO NOTHING RETURNING id
"""
# locked, so that nobody forgets the series before its new points are stored
_KNOWN = """
SELECT id, metric, rank FROM training_series JOIN unnest($2::text[], $3::int[]) AS asked (metric, rank)
USING (metric, rank) WHERE workload_uid = $1 ORDER BY id FOR KEY SHARE OF training_series
"""
_OLDER = """
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
_FORGET_POINTS = """
DELETE FROM training_point USING training_series
WHERE series = id AND cluster = $1 AND oldest < $2 AND at < $2
"""
_LOOK_AGAIN = """
UPDATE training_series SET oldest = coalesce((SELECT min(at) FROM training_point WHERE series = id), 'infinity')
WHERE cluster = $1 AND oldest < $2
"""
_EMPTY = "SELECT id FROM training_series WHERE cluster = $1 AND oldest = 'infinity' FOR UPDATE SKIP LOCKED"
_FORGET_SERIES = """
DELETE FROM training_series
WHERE id = ANY($1::bigint[]) AND NOT EXISTS (SELECT FROM training_point WHERE series = id)
"""
_DOUBT = "UPDATE training_series SET oldest = '-infinity' WHERE id = ANY($1::bigint[])"


class KeptTraining:
    """The part of the store for training jobs."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def append(self, cluster: str, workload_uid: str, points: Sequence[TrainingPoint]) -> None:
        """Store points; one that is sent again replaces itself. InvalidRequest for too many metrics."""
        newest = {(point.metric, _rank(point), point.time): point.value for point in points}
        series = sorted({(metric, rank) for metric, rank, _ in newest})

        async def work(connection: asyncpg.Connection) -> None:
            oldest = min(time for _, _, time in newest)
            names, ranks = [metric for metric, _ in series], [rank for _, rank in series]
            found = await connection.fetch(_KNOWN, workload_uid, names, ranks)
            if len(found) < len(series):
                if await connection.fetch(_SERIES, cluster, workload_uid, oldest, names, ranks):
                    _refuse_too_many(*await connection.fetchrow(_SIZE, workload_uid))
                found = await connection.fetch(_KNOWN, workload_uid, names, ranks)
            ids = {(row["metric"], row["rank"]): row["id"] for row in found}
            rows = [(ids[metric, rank], time, value) for (metric, rank, time), value in newest.items()]
            await merge(connection, "training_point", ("series", "at", "value"), ("series", "at"), rows)
            await connection.execute(_OLDER, list(ids.values()), oldest, cluster)

        if newest:
            await self._database.transaction(work)

    async def read(self, workload_uid: str, start: float, end: float) -> list[TrainingPoint]:
        """The points of a job from `start` to `end`, in order of time."""
        return [
            TrainingPoint(
                row["metric"], row["value"], row["at"], None if row["rank"] == _WHOLE_JOB else row["rank"]
            )
            for row in await self._database.fetch(_READ, workload_uid, start, end)
        ]

    async def prune(self, keep: Mapping[str, float], now: float) -> None:
        """Forget points that are too old, after these seconds for each cluster, and jobs of which nothing is left.

        Clusters that are not named keep theirs as their own servers said, else as long as the longest.
        """

        async def wanted(connection: asyncpg.Connection) -> dict[str, float]:
            await tell(connection, _RETENTION, keep, now)
            kept = await told(connection, _RETENTION)
            rest = await connection.fetch(_OTHERS, list(kept))
            return kept | {row["cluster"]: max(kept.values()) for row in rest}

        for cluster, seconds in (await self._database.transaction(wanted)).items():
            await self._database.transaction(partial(_forget, cluster=cluster, before=now - seconds))


async def _forget(connection: asyncpg.Connection, cluster: str, before: float) -> None:
    await connection.execute(_FORGET_POINTS, cluster, before)
    await connection.execute(_LOOK_AGAIN, cluster, before)
    # Locked first and then looked at: what was stored until the lock is seen, and nothing is stored after it.
    empty = [row["id"] for row in await connection.fetch(_EMPTY, cluster)]
    await connection.execute(_FORGET_SERIES, empty)
    await connection.execute(_DOUBT, empty)  # those that got points meanwhile


def _refuse_too_many(metrics: int, series: int) -> None:
    if metrics > MOST_METRICS:
        raise InvalidRequest(f"the workload would have {metrics} metrics; at most {MOST_METRICS} are kept")
    if series > MOST_SERIES:
        raise InvalidRequest(
            f"the workload would have {series} series (metrics × ranks); at most {MOST_SERIES} are kept"
        )


def _rank(point: TrainingPoint) -> int:
    return _WHOLE_JOB if point.rank is None else point.rank
