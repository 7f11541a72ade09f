"""How long each cluster asks to keep its data, shared by all servers of a database.

Clusters share tables, and tables are partitioned by time, not by cluster: dropping a partition drops the
data of all clusters. So each server records what its clusters ask for. A partition is dropped when it is
too old for every cluster; until then, the rows of clusters with a shorter retention are deleted.
"""

from collections.abc import Mapping

import asyncpg

_UPSERT = """
INSERT INTO retention (cluster, what, seconds, told_at) VALUES ($1, $2, $3, $4)
ON CONFLICT (what, cluster) DO UPDATE SET seconds = excluded.seconds, told_at = excluded.told_at
"""
_SELECT = "SELECT cluster, seconds FROM retention WHERE what = $1"
_DELETE = "DELETE FROM retention WHERE what = $1 AND told_at + seconds < $2"


async def record_retention(
    connection: asyncpg.Connection, setting: str, seconds: Mapping[str, float], now: float
) -> None:
    """Store for how many seconds each of these clusters keeps the data that `setting` governs."""
    # sorted, so that two servers never deadlock
    rows = [(cluster, setting, value, now) for cluster, value in sorted(seconds.items())]
    await connection.executemany(_UPSERT, rows)


async def requested_retention(connection: asyncpg.Connection, setting: str) -> dict[str, float]:
    """Return for how many seconds each cluster keeps the data, as recorded by any server."""
    return {row["cluster"]: row["seconds"] for row in await connection.fetch(_SELECT, setting)}


async def delete_outdated(connection: asyncpg.Connection, setting: str, before: float) -> None:
    """Delete the requests of clusters whose data was all expired `before`, because their servers are gone."""
    await connection.execute(_DELETE, setting, before)
