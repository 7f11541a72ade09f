"""Earlier estimates of start times with their errors, one document for each cluster."""

from collections.abc import Callable

from gpufleet.store.postgres.database import Database
from gpufleet.store.postgres.fence import Fence

_SAVE = """
INSERT INTO start_calibration (cluster, estimates) VALUES ($1, $2)
ON CONFLICT (cluster) DO UPDATE SET estimates = excluded.estimates
"""


class StartCalibrations:
    """Store the calibration of estimates over a restart. Of several servers, the leader of the accounting saves."""

    def __init__(self, database: Database, fence: Callable[[], Fence | None]) -> None:
        """`fence` returns the fence of this server while it leads."""
        self._database = database
        self._fence = fence

    async def save(self, cluster: str, estimates: bytes) -> bool:
        """Store a JSON document. Return False if this server does not lead."""
        if (fence := self._fence()) is None:
            return False
        with fence.applied():
            await self._database.execute(_SAVE, cluster, estimates.decode())
        return True

    async def load(self, cluster: str) -> bytes | None:
        """Return the document of a cluster, if there is one."""
        found = await self._database.fetchval(
            "SELECT estimates FROM start_calibration WHERE cluster = $1", cluster
        )
        return found.encode() if found is not None else None
