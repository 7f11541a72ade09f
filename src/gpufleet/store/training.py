"""Numbers that training jobs report: a series for each job, metric and rank, and its points.

A job may have `MOST_METRICS` metrics and `MOST_SERIES` series: more is a mistake (a name with a
number in it), and every one of them would stay.
"""

from collections.abc import Sequence

import asyncpg

from gpufleet.errors import InvalidRequest
from gpufleet.model.reading import TrainingPoint
from gpufleet.store.bulk import merge
from gpufleet.store.database import Database

_WHOLE_JOB = -1
MOST_METRICS = 200
MOST_SERIES = 50_000
_SERIES = """
INSERT INTO training_series (workload_uid, metric, rank)
SELECT $1, * FROM unnest($2::text[], $3::int[])
ON CONFLICT (workload_uid, metric, rank) DO NOTHING RETURNING id
"""
_KNOWN = """
SELECT id, metric, rank FROM training_series JOIN unnest($2::text[], $3::int[]) AS asked (metric, rank)
USING (metric, rank) WHERE workload_uid = $1
"""
_SIZE = "SELECT count(DISTINCT metric), count(*) FROM training_series WHERE workload_uid = $1"
_READ = """
SELECT metric, rank, at, value FROM training_series JOIN training_point ON series = id
WHERE workload_uid = $1 AND at BETWEEN $2 AND $3
ORDER BY at, metric, rank
"""


class KeptTraining:
    """The part of the store for training jobs."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def append(self, workload_uid: str, points: Sequence[TrainingPoint]) -> None:
        """Store points; one that is sent again replaces itself. InvalidRequest for too many metrics."""
        newest = {(point.metric, _rank(point), point.time): point.value for point in points}
        series = sorted({(metric, rank) for metric, rank, _ in newest})

        async def work(connection: asyncpg.Connection) -> None:
            names, ranks = [metric for metric, _ in series], [rank for _, rank in series]
            found = await connection.fetch(_KNOWN, workload_uid, names, ranks)
            if len(found) < len(series):
                if await connection.fetch(_SERIES, workload_uid, names, ranks):
                    _refuse_too_many(*await connection.fetchrow(_SIZE, workload_uid))
                found = await connection.fetch(_KNOWN, workload_uid, names, ranks)
            ids = {(row["metric"], row["rank"]): row["id"] for row in found}
            rows = [(ids[metric, rank], time, value) for (metric, rank, time), value in newest.items()]
            await merge(connection, "training_point", ("series", "at", "value"), ("series", "at"), rows)

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

    async def prune(self, before: float) -> None:
        """Forget points older than `before`, and jobs of which nothing is left."""

        async def work(connection: asyncpg.Connection) -> None:
            await connection.execute("DELETE FROM training_point WHERE at < $1", before)
            await connection.execute(
                "DELETE FROM training_series WHERE NOT EXISTS (SELECT FROM training_point WHERE series = id)"
            )

        await self._database.transaction(work)


def _refuse_too_many(metrics: int, series: int) -> None:
    if metrics > MOST_METRICS:
        raise InvalidRequest(f"the workload would have {metrics} metrics; at most {MOST_METRICS} are kept")
    if series > MOST_SERIES:
        raise InvalidRequest(
            f"the workload would have {series} series (metrics × ranks); at most {MOST_SERIES} are kept"
        )


def _rank(point: TrainingPoint) -> int:
    return _WHOLE_JOB if point.rank is None else point.rank
