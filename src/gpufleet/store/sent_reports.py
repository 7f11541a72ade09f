"""Which scheduled reports were sent."""

import asyncpg

from gpufleet.store.postgres.database import Database

_CLAIM = "INSERT INTO sent_report (cluster, period) VALUES ($1, $2) ON CONFLICT DO NOTHING RETURNING 1"


class SentReports:
    """Lets each report be sent once, also if a server that led once wakes up."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def claim(self, cluster: str, period: str) -> bool:
        """Record that the report of a period is being sent; return False if it was before."""

        async def work(connection: asyncpg.Connection) -> bool:
            return bool(await connection.fetchval(_CLAIM, cluster, period))

        return await self._database.transaction(work, repeatable=False)
