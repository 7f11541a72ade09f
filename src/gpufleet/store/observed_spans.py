"""The spans of time in which a server followed a cluster."""

from gpufleet.store.accounted_clusters import AccountedClusters
from gpufleet.store.postgres.database import Database

# Only one server writes. A span that lies after the current time was written while its clock was ahead.
_ADD = """
WITH ahead AS (DELETE FROM observed_span WHERE cluster = $1 AND started_at > $3),
extended AS (
    UPDATE observed_span SET ended_at = $3
    WHERE cluster = $1 AND started_at <= $2 AND ended_at >= $2 RETURNING 1
)
INSERT INTO observed_span SELECT $1, $2, $3 WHERE NOT EXISTS (SELECT FROM extended)
ON CONFLICT (cluster, started_at) DO UPDATE SET ended_at = excluded.ended_at
"""
_OVERLAPPING = """
SELECT started_at, ended_at FROM observed_span WHERE cluster = $1 AND ended_at > $2 AND started_at < $3
"""


class ObservedSpans:
    """Store when each cluster was observed."""

    def __init__(self, database: Database, clusters: AccountedClusters) -> None:
        self._database = database
        self._clusters = clusters

    async def add(self, cluster: str, start: float, end: float) -> None:
        """Record that the cluster was observed from `start` until now, which is `end`."""
        if start < end:
            await self._database.execute(_ADD, await self._clusters.id_of(cluster), start, end)

    async def overlapping(self, cluster: str, start: float, end: float) -> list[tuple[float, float]]:
        """Return the spans that overlap with `start` to `end`; they may overlap with each other."""
        rows = await self._database.fetch(_OVERLAPPING, await self._clusters.id_of(cluster), start, end)
        return [(row["started_at"], row["ended_at"]) for row in rows]
