"""Holding and capacity periods: who held which GPUs when, which node had how many.

A period is known by its holder and its start; storing it again replaces it, but for the GPUs that it had
where the new one doesn't name any (Slurm's accounting database counts them only). What is learned of an
hour after it was rolled up marks the hour stale in the same transaction, so that it is rolled up again.
"""

from collections.abc import Collection, Sequence
from typing import Generic, TypeVar

import asyncpg
import msgspec

from gpufleet.model.periods import CapacityPeriod, HoldingPeriod
from gpufleet.store.accounted_clusters import AccountedClusters
from gpufleet.store.postgres.bulk import merge
from gpufleet.store.postgres.database import Database
from gpufleet.store.postgres.jsonb import jsonb

Period = TypeVar("Period", HoldingPeriod, CapacityPeriod)
_FOREVER = float("inf")
_STALE = "UPDATE accounted_hour SET stale = true WHERE cluster = $1 AND (hour + 1) * 3600.0 > $2"


class KeptPeriods(Generic[Period]):
    """The periods of one kind; `holder` names the column and the field that say whose they are."""

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
        self._within = f"{columns} WHERE cluster = $1 AND ended_at > $2 AND started_at < $3"
        self._same = f"{columns} WHERE cluster = $1 AND {holder} = ANY($2::text[])"

    async def newest(self, cluster: str, holders: Collection[str]) -> dict[str, Period]:
        """The last period of each holder that is named or has an open one."""
        rows = await self._database.fetch(self._newest, await self._clusters.number(cluster), list(holders))
        return {row["holder"]: self._period(row) for row in rows}

    async def within(self, cluster: str, start: float, end: float) -> list[Period]:
        """Every period that overlaps with `start` to `end`."""
        number = await self._clusters.number(cluster)
        return [self._period(row) for row in await self._database.fetch(self._within, number, start, end)]

    async def save(self, cluster: str, periods: Sequence[Period]) -> None:
        """Store periods, and mark the hours that they change."""
        number = await self._clusters.number(cluster)

        async def work(connection: asyncpg.Connection) -> None:
            known = await self._known(connection, number, periods)
            complete = [_completed(period, known.get((self._of(period), period.start))) for period in periods]
            rows = self._rows(number, complete)
            changed = self._changed_from(known, complete)
            await merge(
                connection,
                self._table,
                ("cluster", self._holder, "started_at", "ended_at", "facts"),
                ("cluster", self._holder, "started_at"),
                rows.values(),
            )
            await connection.execute(_STALE, number, changed)

        if periods:
            await self._database.transaction(work)

    async def _known(
        self, connection: asyncpg.Connection, number: int, periods: Sequence[Period]
    ) -> dict[tuple[str, float], Period]:
        """What is stored of the holders of these periods, by holder and start."""
        holders = list({self._of(period) for period in periods})
        rows = await connection.fetch(self._same, number, holders)
        return {(row["holder"], row["started_at"]): self._period(row) for row in rows}

    def _changed_from(self, known: dict[tuple[str, float], Period], periods: Sequence[Period]) -> float:
        """The first moment of which the stored periods say something else than the new ones."""
        first = _FOREVER
        for period in periods:
            before = known.get((self._of(period), period.start))
            if before == period:
                continue
            if before is None or msgspec.structs.replace(before, end=period.end) != period:
                first = min(first, period.start)
            else:
                first = min(first, before.end or _FOREVER, period.end or _FOREVER)
        return first

    def _rows(
        self, number: int, periods: Sequence[Period]
    ) -> dict[tuple[str, float], tuple[int, str, float, float, str]]:
        return {(self._of(period), period.start): self._row(number, period) for period in periods}

    def _of(self, period: Period) -> str:
        return str(getattr(period, self._holder))

    def _row(self, number: int, period: Period) -> tuple[int, str, float, float, str]:
        facts = jsonb(msgspec.structs.replace(period, end=0.0))
        return number, self._of(period), period.start, period.end or _FOREVER, facts

    def _period(self, row: asyncpg.Record) -> Period:
        ended = row["ended_at"]
        period: Period = msgspec.json.decode(row["facts"], type=self._type)
        return period if ended == _FOREVER else msgspec.structs.replace(period, end=ended)


def _completed(period: Period, before: Period | None) -> Period:
    """The period with the GPUs that it is known to have had: whoever tells of it later may not know them."""
    if (
        isinstance(period, HoldingPeriod)
        and isinstance(before, HoldingPeriod)
        and before.held
        and not period.held
        and before.gpus == period.gpus
    ):
        return msgspec.structs.replace(period, held=before.held, models=before.models)
    return period
