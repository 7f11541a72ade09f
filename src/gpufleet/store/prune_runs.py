"""By which time data is old enough to be deleted, whether that time can be trusted, and what was deleted.

Ages count from the database's clock, never from that of a server, and never from a time after the newest stored
data. If more than a day lies between that data and now, or between two renewals of a leader, then either no
server ran or the clock was set: nothing is deleted until an operator has looked at it. With an embedded database
both clocks are one, so this is what stops a wrong one. A second clock would be compared in `held`.
"""

from datetime import UTC, datetime
from typing import NamedTuple

import asyncpg

from gpufleet.store.postgres.leadership import holder_name

MAX_SHARE = 0.1
"""Largest part of a table that one run deletes, once a day. At the default retentions of 100 days and more a day adds
1 %, so a shorter retention is applied within days, and a mistake is seen before most is gone."""

MIN_ROWS = 1_000
"""Rows that a run may delete even if they are more than that."""

MAX_GAP = 86_400.0
_FORGET = "DELETE FROM prune_run WHERE at < now() - interval '400 days'"
_TIME = """
SELECT extract(epoch FROM {clock})::float8 AS now, (SELECT max(seen_at) FROM accounted_cluster) AS newest,
    (SELECT extract(epoch FROM gap_since)::float8 FROM leader WHERE job = 'accounting') AS gap_since
"""
_RECORD = (
    "INSERT INTO prune_run (holder, origin, cluster, rows, oldest, newest) VALUES ($1, $2, $3, $4, $5, $6)"
)
_RUNS = "SELECT at, holder, origin, cluster, rows, oldest, newest FROM prune_run ORDER BY id DESC LIMIT $1"


class PruneTime(NamedTuple):
    """The database's time, and what speaks against it. In Unix seconds."""

    now: float
    newest: float | None
    """Until when allocations are stored; None before the first ones."""
    gap_since: float | None
    """When the last leader was seen before a gap of more than a day."""

    @property
    def latest(self) -> float:
        """The time from which ages count."""
        return min(self.now, self.newest or 0.0)

    @property
    def held(self) -> str:
        """Why nothing may be deleted; empty if it may."""
        since = self.gap_since
        if since is None and self.newest is not None and self.newest < self.now - MAX_GAP:
            since = self.newest
        if since is None:
            return ""
        return (
            f"no server stored anything for more than a day after {utc(since)}, or the clock was set "
            f"(the database's clock says {utc(self.now)})"
        )


class PruneRun(NamedTuple):
    """What was deleted from one table or partition."""

    at: datetime
    holder: str
    origin: str
    cluster: str
    rows: int
    oldest: float
    newest: float


async def prune_time(connection: asyncpg.Connection, clock: str) -> PruneTime:
    """Return the time for pruning; `clock` is that of `Database`."""
    return PruneTime(*await connection.fetchrow(_TIME.format(clock=clock)))


async def record_run(
    connection: asyncpg.Connection, origin: str, cluster: str, rows: int, oldest: float, newest: float
) -> None:
    """Record what this transaction deletes."""
    if rows:
        await connection.execute(_RECORD, holder_name(), origin, cluster, rows, oldest, newest)
        await connection.execute(_FORGET)


async def last_runs(connection: asyncpg.Connection, count: int) -> list[PruneRun]:
    """Return the last runs, the newest first."""
    return [PruneRun(*row) for row in await connection.fetch(_RUNS, count)]


async def confirm(connection: asyncpg.Connection) -> None:
    """Allow pruning after a gap."""
    await connection.execute("UPDATE leader SET gap_since = NULL")


def utc(moment: float) -> str:
    """Return a time for people, to the minute."""
    return f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%dT%H:%MZ}"
