"""What the GpuQueues of a cluster allowed and when, as JSON documents that follow each other."""

import asyncpg

from gpufleet.store.accounted_clusters import AccountedClusters
from gpufleet.store.postgres.database import Database
from gpufleet.store.postgres.locks import advisory_lock

_SAME = "SELECT 1 FROM queue_rules WHERE cluster = $1 AND ended_at = 'infinity' AND rules = $2::jsonb"
_END = "UPDATE queue_rules SET ended_at = $2 WHERE cluster = $1 AND ended_at = 'infinity'"
_BEGIN = """
INSERT INTO queue_rules (cluster, started_at, ended_at, rules) VALUES ($1, $2, 'infinity', $3)
ON CONFLICT (cluster, started_at) DO UPDATE SET ended_at = excluded.ended_at, rules = excluded.rules
"""
_OVERLAPPING = """
SELECT started_at, rules FROM queue_rules WHERE cluster = $1 AND ended_at > $2 AND started_at < $3
ORDER BY started_at
"""


class QueueRulesStore:
    """Store the rules of GpuQueues; several servers may record the same ones."""

    def __init__(self, database: Database, clusters: AccountedClusters) -> None:
        self._database = database
        self._clusters = clusters

    async def record(self, cluster: str, rules: bytes, at: float) -> None:
        """Store that these rules apply from `at` on, if others did before."""
        number, text = await self._clusters.id_of(cluster), rules.decode()

        async def work(connection: asyncpg.Connection) -> None:
            await connection.execute(
                "SELECT pg_advisory_xact_lock($1, $2)", *advisory_lock(f"rules of {cluster}")
            )
            if not await connection.fetchval(_SAME, number, text):
                await connection.execute(_END, number, at)
                await connection.execute(_BEGIN, number, at, text)

        await self._database.transaction(work)

    async def overlapping(self, cluster: str, start: float, end: float) -> list[tuple[float, bytes]]:
        """Return the rules that applied between `start` and `end`, each with its start."""
        rows = await self._database.fetch(_OVERLAPPING, await self._clusters.id_of(cluster), start, end)
        return [(row["started_at"], row["rules"].encode()) for row in rows]
