"""How long each cluster wants its data kept, as all servers of a database know it.

Clusters share tables, and a table is cut by time, not by cluster: who drops a part of it drops
everybody's. So each server writes down what its clusters want. A part goes when it is too old for
the cluster that keeps longest; before that, the rows of those who keep them shorter are deleted.
"""

from collections.abc import Mapping

import asyncpg

_TELL = """
INSERT INTO retention (cluster, what, seconds, told_at) VALUES ($1, $2, $3, $4)
ON CONFLICT (what, cluster) DO UPDATE SET seconds = excluded.seconds, told_at = excluded.told_at
"""
_TOLD = "SELECT cluster, seconds FROM retention WHERE what = $1"
_OVER = "DELETE FROM retention WHERE what = $1 AND told_at + seconds < $2"


async def tell(connection: asyncpg.Connection, what: str, seconds: Mapping[str, float], now: float) -> None:
    """Write down for how many seconds each of these clusters keeps what the setting `what` names."""
    # in one order, so that two servers never wait for each other
    rows = [(cluster, what, wanted, now) for cluster, wanted in sorted(seconds.items())]
    await connection.executemany(_TELL, rows)


async def told(connection: asyncpg.Connection, what: str) -> dict[str, float]:
    """For how many seconds each cluster keeps that, whichever server said so."""
    return {row["cluster"]: row["seconds"] for row in await connection.fetch(_TOLD, what)}


async def forget_gone(connection: asyncpg.Connection, what: str, before: float) -> None:
    """Forget clusters that nobody has spoken for in so long that all of theirs was too old `before`."""
    await connection.execute(_OVER, what, before)
