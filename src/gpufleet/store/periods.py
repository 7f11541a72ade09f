"""Allocation and capacity periods: which pod held which GPUs when, and which node had how many.

The key of a period is its holder and its start. Storing a period again replaces it, except that it keeps
its GPUs when the new version does not name any (Slurm's accounting database only counts them). A change
to an hour that was already rolled up marks the hour stale in the same transaction, so that it is rolled
up again.
"""

from collections.abc import Collection, Sequence
from typing import Generic, TypeVar

import asyncpg
import msgspec

from gpufleet.model.periods import AllocationPeriod, CapacityPeriod
from gpufleet.store.accounted_clusters import AccountedClusters
from gpufleet.store.postgres.bulk import bulk_upsert
from gpufleet.store.postgres.database import Database
from gpufleet.store.postgres.jsonb import jsonb

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

    async def save(self, cluster: str, periods: Sequence[Period]) -> None:
        """Upsert periods and mark the hours that they change as stale."""
        cluster_id = await self._clusters.id_of(cluster)

        async def work(connection: asyncpg.Connection) -> None:
            stored = await self._stored(connection, cluster_id, periods)
            complete = [_with_gpus(period, stored.get(self._key(period))) for period in periods]
            rows = {self._key(period): self._row(cluster_id, period) for period in complete}
            await bulk_upsert(
                connection,
                self._table,
                ("cluster", self._holder, "started_at", "ended_at", "facts"),
                ("cluster", self._holder, "started_at"),
                rows.values(),
            )
            await connection.execute(_STALE, cluster_id, self._changed_from(stored, complete))

        if periods:
            await self._database.transaction(work)

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
            if before is None or msgspec.structs.replace(before, end=period.end) != period:
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
        period: Period = msgspec.json.decode(row["facts"], type=self._type)
        return period if ended == _FOREVER else msgspec.structs.replace(period, end=ended)


def _with_gpus(period: Period, before: Period | None) -> Period:
    """Return `period` with the GPUs of its stored version, if it only counts them itself."""
    if (
        isinstance(period, AllocationPeriod)
        and isinstance(before, AllocationPeriod)
        and before.held
        and not period.held
        and before.gpus == period.gpus
    ):
        return msgspec.structs.replace(period, held=before.held, models=before.models)
    return period
