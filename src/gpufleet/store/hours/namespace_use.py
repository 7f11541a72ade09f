"""What each namespace has used recently, for fair shares and budgets: sums over finished hours."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpufleet.model.hours import GPU_HOUR
from gpufleet.model.namespaces import Namespaces, is_visible
from gpufleet.store.accounted_clusters import AccountedClusters
from gpufleet.store.postgres.database import Database

MOST_HALF_LIVES = 20
"""Older use counts less than a millionth."""

_LAST = "SELECT max(hour) AS hour FROM accounted_hour WHERE cluster = $1 AND hour < $2"
# The use of an hour counts with the age of its middle.
_SUMS = """
SELECT name,
    sum(allocated * power(2::float8, ($3::int - hour - 0.5) * -3600 / $4::float8)) AS decayed,
    {periods}
FROM namespace_hour JOIN namespace_name ON id = namespace
WHERE namespace_hour.cluster = $1 AND hour >= $2 AND hour < $3
GROUP BY name ORDER BY name
"""
_PERIOD = """
    coalesce(sum(allocated) FILTER (WHERE hour >= {start}), 0) AS allocated_{at},
    coalesce(sum(cost) FILTER (WHERE hour >= {start}), 0) AS cost_{at}"""


@dataclass(frozen=True)
class NamespaceUse:
    """The use of one namespace."""

    namespace: str
    decayed: float
    """Decayed use in GPU-hours."""
    periods: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """GPU-hours and cost by the name of the period."""


class NamespaceUses:
    """Sum the recent use of namespaces."""

    def __init__(self, database: Database, clusters: AccountedClusters) -> None:
        self._database = database
        self._clusters = clusters

    async def last_hour(self, cluster: str, before: int) -> int | None:
        """Return the number of the last finished hour before `before` that was accounted."""
        row = await self._database.fetchrow(_LAST, await self._clusters.id_of(cluster), before)
        return None if row is None else row["hour"]

    async def sums(
        self,
        cluster: str,
        after: int,
        half_life: float,
        periods: Mapping[str, int],
        namespaces: Namespaces = None,
    ) -> list[NamespaceUse]:
        """Return the use of each namespace before hour `after`: decayed, and since the first hour of each period."""
        names: Sequence[str] = list(periods)
        columns = ",".join(_PERIOD.format(start=int(periods[name]), at=at) for at, name in enumerate(names))
        first = min(after - int(MOST_HALF_LIVES * half_life / 3600) - 1, *periods.values())
        query = _SUMS.format(periods=columns)
        number = await self._clusters.id_of(cluster)
        rows = await self._database.fetch(query, number, max(first, 0), after, half_life)
        return [
            NamespaceUse(
                row["name"],
                float(row["decayed"]) / GPU_HOUR,
                {
                    name: (int(row[f"allocated_{at}"]) / GPU_HOUR, float(row[f"cost_{at}"]))
                    for at, name in enumerate(names)
                },
            )
            for row in rows
            if is_visible(namespaces, row["name"])
        ]
