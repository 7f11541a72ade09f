"""Allocation and capacity periods: which pod held which GPUs when, and which node had how many.

The key of a period is its holder and its start. Storing a period again replaces it, except that it keeps
its GPUs when the new version does not name any (Slurm's accounting database only counts them). The periods
of a holder never overlap, whoever writes them (see `period_timeline`); a unique index rejects a second open
period. A change to an hour that was already rolled up marks the hour stale in the same transaction, so that it is rolled
up again.
"""

import asyncio
from collections.abc import Collection, Sequence
from typing import Generic, TypeVar

import asyncpg
import msgspec

from gpufleet.errors import NotFound
from gpufleet.model.gpu_models import canonical_model
from gpufleet.model.periods import AllocationPeriod, CapacityPeriod
from gpufleet.store.accounted_clusters import AccountedClusters
from gpufleet.store.period_timeline import put_periods
from gpufleet.store.postgres.bulk import bulk_upsert
from gpufleet.store.postgres.database import Database
from gpufleet.store.postgres.jsonb import jsonb
from gpufleet.store.postgres.locks import advisory_lock

Period = TypeVar("Period", AllocationPeriod, CapacityPeriod)
_FOREVER = float("inf")
_STALE = "UPDATE accounted_hour SET stale = true WHERE cluster = $1 AND (hour + 1) * 3600.0 > $2"


class PeriodStore(Generic[Period]):
    """Store periods of one kind; `holder` is the column and the attribute that identify the holder."""

    def __init__(
        self, database: Database, clusters: AccountedClusters, table: str, holder: str, type_: type[Period]
    ) -> None:
        self._database = database
        self._clusters = clusters
        self._table = table
        self._holder = holder
        self._type: type[Period] = type_
        columns = f"SELECT {holder} AS holder, started_at, ended_at, facts FROM {table}"  # noqa: S608
        self._newest = (
            f"SELECT DISTINCT ON (holder) * FROM ({columns} WHERE cluster = $1"  # noqa: S608
            f" AND (ended_at = 'infinity' OR {holder} = ANY($2::text[]))) AS found"
            " ORDER BY holder, started_at DESC"
        )
        self._overlapping = f"{columns} WHERE cluster = $1 AND ended_at > $2 AND started_at < $3"
        self._latest = f"{self._overlapping} ORDER BY ended_at DESC LIMIT $4"
        self._of_node = f"{self._overlapping} AND facts->>'node' = $4 ORDER BY started_at DESC LIMIT $5"
        self._delete = f"DELETE FROM {table} WHERE cluster = $1 AND {holder} = $2 AND started_at = $3"  # noqa: S608
        self._of_holders = f"{columns} WHERE cluster = $1 AND {holder} = ANY($2::text[])"

    async def newest(self, cluster: str, holders: Collection[str]) -> dict[str, Period]:
        """Return the last period of each holder in `holders` and of each holder with an open period."""
        rows = await self._database.fetch(self._newest, await self._clusters.id_of(cluster), list(holders))
        return {row["holder"]: self._period(row) for row in rows}

    async def overlapping(self, cluster: str, start: float, end: float) -> list[Period]:
        """Return all periods that overlap with `start` to `end`."""
        cluster_id = await self._clusters.id_of(cluster)
        rows = await self._database.fetch(self._overlapping, cluster_id, start, end)
        return [self._period(row) for row in rows]

    async def latest(self, cluster: str, start: float, end: float, limit: int) -> list[Period]:
        """Return those periods that overlap with `start` to `end` and ended last; open ones come first."""
        cluster_id = await self._clusters.id_of(cluster)
        rows = await self._database.fetch(self._latest, cluster_id, start, end, limit)
        # In a thread, because decoding many periods would delay other requests.
        return await asyncio.to_thread(lambda: [self._period(row) for row in rows])

    async def of_node(self, cluster: str, node: str, start: float, end: float, limit: int) -> list[Period]:
        """Return the newest periods on a node that overlap with `start` to `end`; none without accounting."""
        try:
            cluster_id = await self._clusters.id_of(cluster)
        except NotFound:
            return []
        rows = await self._database.fetch(self._of_node, cluster_id, start, end, node, limit)
        return [self._period(row) for row in rows]

    async def of_holders(self, cluster: str, holders: Collection[str]) -> list[Period]:
        """Return all periods of some holders; none for a cluster without accounting."""
        try:
            cluster_id = await self._clusters.id_of(cluster)
        except NotFound:
            return []
        rows = await self._database.fetch(self._of_holders, cluster_id, list(holders))
        return [self._period(row) for row in rows]

    async def save(self, cluster: str, periods: Sequence[Period]) -> None:
        """Upsert periods and mark the hours that they change as stale."""
        cluster_id = await self._clusters.id_of(cluster)

        async def work(connection: asyncpg.Connection) -> None:
            lock = advisory_lock(f"{self._table} of {cluster}")
            await connection.execute("SELECT pg_advisory_xact_lock($1, $2)", *lock)
            await self._write(connection, cluster_id, periods)

        if periods:
            await self._database.transaction(work)

    async def _write(
        self, connection: asyncpg.Connection, cluster_id: int, periods: Sequence[Period]
    ) -> None:
        stored = await self._stored(connection, cluster_id, periods)
        after = self._timelines(stored, periods)
        changed = [period for period in after.values() if stored.get(self._key(period)) != period]
        removed: set[tuple[str, float]] = set(stored) - set(after)
        if removed:
            await connection.executemany(
                self._delete, [(cluster_id, holder, start) for holder, start in removed]
            )
        # The index on open periods is checked row by row: close before opening.
        for some in ([p for p in changed if p.end], [p for p in changed if not p.end]):
            await bulk_upsert(
                connection,
                self._table,
                ("cluster", self._holder, "started_at", "ended_at", "facts"),
                ("cluster", self._holder, "started_at"),
                [self._row(cluster_id, period) for period in some],
            )
        first = min([self._changed_from(stored, changed), *(start for _, start in removed)])
        await connection.execute(_STALE, cluster_id, first)

    def _timelines(
        self, stored: dict[tuple[str, float], Period], periods: Sequence[Period]
    ) -> dict[tuple[str, float], Period]:
        """Return all periods of the same holders with `periods` added to them, by key."""
        holders: dict[str, tuple[list[Period], list[Period]]] = {}
        for (holder, _), period in stored.items():
            holders.setdefault(holder, ([], []))[0].append(period)
        for period in periods:
            holders.setdefault(self._key(period)[0], ([], []))[1].append(period)
        return {
            (holder, start): period
            for holder, (before, new) in holders.items()
            for start, period in put_periods(before, new).items()
        }

    async def _stored(
        self, connection: asyncpg.Connection, cluster_id: int, periods: Sequence[Period]
    ) -> dict[tuple[str, float], Period]:
        """Return the stored periods of the same holders, by key."""
        holders = list({self._key(period)[0] for period in periods})
        rows = await connection.fetch(self._of_holders, cluster_id, holders)
        return {(row["holder"], row["started_at"]): self._period(row) for row in rows}

    def _changed_from(self, stored: dict[tuple[str, float], Period], periods: Sequence[Period]) -> float:
        """Return the first moment at which the new periods differ from the stored ones."""
        first = _FOREVER
        for period in periods:
            before = stored.get(self._key(period))
            if before == period:
                continue
            if before is None or before.facts != period.facts or before.start != period.start:
                first = min(first, period.start)
            else:
                first = min(first, before.end or _FOREVER, period.end or _FOREVER)
        return first

    def _key(self, period: Period) -> tuple[str, float]:
        return str(getattr(period, self._holder)), period.start

    def _row(self, cluster_id: int, period: Period) -> tuple[int, str, float, float, str]:
        facts = jsonb(msgspec.structs.replace(period, end=0.0))
        return cluster_id, *self._key(period), period.end or _FOREVER, facts

    def _period(self, row: asyncpg.Record) -> Period:
        ended = row["ended_at"]
        period = _with_canonical_models(msgspec.json.decode(row["facts"], type=self._type))
        return period if ended == _FOREVER else msgspec.structs.replace(period, end=ended)


def _with_canonical_models(period: Period) -> Period:
    """Return the period with canonical names: rows of earlier versions have the sources' spellings."""
    model = canonical_model(period.model)
    if isinstance(period, AllocationPeriod) and period.models:
        models = tuple(canonical_model(name) for name in period.models)
        period = period if models == period.models else msgspec.structs.replace(period, models=models)
    return period if model == period.model else msgspec.structs.replace(period, model=model)
