"""The clusters whose use is accounted for, and until when each is known."""

from typing import NamedTuple

from gpufleet.errors import NotFound
from gpufleet.store.postgres.database import Database

_OPEN = """
INSERT INTO accounted_cluster (name, since, seen_at) VALUES ($1, $2, $2)
ON CONFLICT (name) DO UPDATE SET since = least(accounted_cluster.since, excluded.since)
RETURNING id, since, seen_at
"""


class Known(NamedTuple):
    """From when until when the holders of a cluster are known, in Unix seconds."""

    since: float
    until: float


class AccountedClusters:
    """Names and numbers of clusters."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._numbers: dict[str, int] = {}

    async def open(self, name: str, since: float) -> Known:
        """Account for a cluster, if not done before, from `since` on."""
        row = await self._database.fetchrow(_OPEN, name, since)
        assert row is not None
        self._numbers[name] = row["id"]
        return Known(row["since"], row["seen_at"])

    async def seen(self, name: str, until: float) -> None:
        """Everything of the cluster up to `until` is stored."""
        await self._database.execute(
            # not the greatest: a clock that was ahead is set right
            "UPDATE accounted_cluster SET seen_at = $2, since = least(since, $2) WHERE name = $1",
            *(name, until),
        )

    async def known(self, name: str) -> Known | None:
        """From when until when everything of the cluster is stored; None if it is not accounted for."""
        row = await self._database.fetchrow(
            "SELECT since, seen_at FROM accounted_cluster WHERE name = $1", name
        )
        return Known(row["since"], row["seen_at"]) if row is not None else None

    async def names(self) -> list[str]:
        """Every cluster that was ever accounted for."""
        return [row["name"] for row in await self._database.fetch("SELECT name FROM accounted_cluster")]

    async def number(self, name: str) -> int:
        """The number of a cluster; NotFound if nothing is known of it."""
        if name not in self._numbers:
            found = await self._database.fetchval("SELECT id FROM accounted_cluster WHERE name = $1", name)
            if found is None:
                raise NotFound(f"nothing is accounted for cluster {name!r}")
            self._numbers[name] = found
        return self._numbers[name]
