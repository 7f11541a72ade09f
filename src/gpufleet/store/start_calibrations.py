"""Earlier estimates of start times with their errors, one document for each cluster."""

from gpufleet.store.postgres.database import Database

_SAVE = """
INSERT INTO start_calibration (cluster, estimates) VALUES ($1, $2)
ON CONFLICT (cluster) DO UPDATE SET estimates = excluded.estimates
"""


class StartCalibrations:
    """Store the calibration of estimates over a restart. Of several servers, the last one to save counts."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def save(self, cluster: str, estimates: bytes) -> None:
        """Store a JSON document."""
        await self._database.execute(_SAVE, cluster, estimates.decode())

    async def load(self, cluster: str) -> bytes | None:
        """Return the document of a cluster, if there is one."""
        found = await self._database.fetchval(
            "SELECT estimates FROM start_calibration WHERE cluster = $1", cluster
        )
        return found.encode() if found is not None else None
