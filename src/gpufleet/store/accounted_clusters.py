"""The clusters with accounting, and the span for which each has stored records."""

from typing import NamedTuple

from gpufleet.errors import NotFound
from gpufleet.store.postgres.database import Database

_OPEN = """
INSERT INTO accounted_cluster (name, since, seen_at) VALUES ($1, $2, $2)
ON CONFLICT (name) DO UPDATE SET since = least(accounted_cluster.since, excluded.since)
RETURNING id, since, seen_at
"""


class AccountedSpan(NamedTuple):
    """The span for which the allocations of a cluster are stored, in Unix seconds."""

    since: float
    until: float


class AccountedClusters:
    """Names and ids of clusters with accounting."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._ids: dict[str, int] = {}

    async def open(self, name: str, since: float) -> AccountedSpan:
        """Start accounting for a cluster at `since`, unless it started earlier."""
        row = await self._database.transaction(lambda connection: connection.fetchrow(_OPEN, name, since))
        self._ids[name] = row["id"]
        return AccountedSpan(row["since"], row["seen_at"])

    async def set_stored_until(self, name: str, until: float) -> None:
        """Record that everything of the cluster up to `until` is stored."""
        await self._database.execute(
            # not greatest(): the writer's clock may have been ahead and corrected since
            "UPDATE accounted_cluster SET seen_at = $2, since = least(since, $2) WHERE name = $1",
            *(name, until),
        )

    async def span(self, name: str) -> AccountedSpan | None:
        """Return the span for which the cluster is stored; None for a cluster without accounting."""
        row = await self._database.fetchrow(
            "SELECT since, seen_at FROM accounted_cluster WHERE name = $1", name
        )
        return AccountedSpan(row["since"], row["seen_at"]) if row is not None else None

    async def names(self) -> list[str]:
        """Return the names of all clusters that ever had accounting."""
        return [row["name"] for row in await self._database.fetch("SELECT name FROM accounted_cluster")]

    async def id_of(self, name: str) -> int:
        """Return the id of a cluster; raise NotFound if it never had accounting."""
        if name not in self._ids:
            found = await self._database.fetchval("SELECT id FROM accounted_cluster WHERE name = $1", name)
            if found is None:
                raise NotFound(f"cluster {name!r} has no accounting data")
            self._ids[name] = found
        return self._ids[name]
