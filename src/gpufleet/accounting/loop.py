"""Keep the books of all clusters: write, snapshot, roll up, forget, each at its time.

Every server runs `collect`; the one that leads also runs `keep`. Clusters don't wait for each other:
each has a loop of its own, and an error in one is logged and tried again with the next round.
"""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Container, Sequence
from dataclasses import dataclass, field

from gpufleet.accounting.ports import Shelf
from gpufleet.accounting.progress import Progress, progress
from gpufleet.accounting.recorder import Recorder, roll
from gpufleet.accounting.rollup import RollupPlan
from gpufleet.errors import GpufleetError
from gpufleet.model.metric_source import MetricSource
from gpufleet.runtime.logs import get_logger

TICK = 2.0
"""Seconds between rounds: what began or ended is stored that soon."""

LOOK_EVERY = 30
"""Rounds after which a server looks what is stored by now, and lets go of that."""

LATEST_SNAPSHOT = 60.0
"""Seconds after its moment up to which a snapshot is still taken."""

TRY_AGAIN = 300.0
"""Seconds before an hour is rolled up again that could not be measured or failed."""

DAY = 86_400.0
_log = get_logger("accounting")


@dataclass
class AccountedCluster:
    """A cluster's book, and what is needed to make hours of it."""

    book: Recorder
    metrics: MetricSource
    plan: RollupPlan
    step: int
    """Seconds between snapshots and between samples; a whole part of an hour."""
    progress: Progress | None = None
    """How far the books are, whoever keeps them; None until that was read."""
    snapshot_at: int = 0
    tried: dict[int, float] = field(default_factory=dict)


class AccountingLoop:
    """The rounds of one server."""

    def __init__(
        self,
        accounts: Sequence[AccountedCluster],
        shelf: Shelf,
        prune: Callable[[], Awaitable[None]],
        clock: Callable[[], float] = time.time,
        tick: float = TICK,
    ) -> None:
        self._accounts = accounts
        self._shelf = shelf
        self._prune = prune
        self._clock = clock
        self._tick = tick

    async def collect(self) -> None:
        """Take over what the pictures write down, whoever stores it. Runs until cancelled."""
        for rounds in itertools.count():
            for account in self._accounts:
                account.book.collect()
            if rounds % LOOK_EVERY == 0:
                await self._look()
            await asyncio.sleep(self._tick)

    async def _look(self) -> None:
        try:
            for account in self._accounts:
                account.progress = await progress(account.book.cluster, self._shelf, self._clock())
                await account.book.forget()
        except GpufleetError as error:
            _log.warning("ended periods kept for now", error=str(error))

    async def keep(self) -> None:
        """Do everything that one server does for all. Runs until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                for account in self._accounts:
                    group.create_task(self._keep_one(account), name=f"books of {account.book.cluster}")
                group.create_task(self._forget(), name="old books")
        finally:
            for account in self._accounts:
                account.book.hand_over()

    async def round(self, account: AccountedCluster) -> None:
        """Do what is due for one cluster now."""
        book = account.book
        if not book.billing:
            return
        if not book.leading:
            await book.take_over()
        await book.write()
        await self._snapshot(account)
        # Many hours may be due, and a metric source that hangs makes each of them long: nothing waits for all.
        rolled: set[int] = set()
        while (hour := await self._next_hour(account, rolled)) is not None:
            rolled.add(hour)
            account.tried[hour] = self._clock()
            await self._roll(account, hour)
            await book.write()
            await self._snapshot(account)

    async def _snapshot(self, account: AccountedCluster) -> None:
        """Take the snapshot of the last moment on the grid, once, as soon as it can be taken."""
        now = self._clock()
        moment = int(now - now % account.step)
        if account.snapshot_at == moment or now - moment >= LATEST_SNAPSHOT:
            return
        if await account.book.snapshot(moment, account.plan):
            account.snapshot_at = moment

    async def _next_hour(self, account: AccountedCluster, rolled: Container[int]) -> int | None:
        """The hour to roll up next, but for those that were just now; None if no other is due."""
        now = self._clock()
        for hour in await account.book.due(now):
            # a clock that was ahead may have tried in the future
            if hour not in rolled and abs(now - account.tried.get(hour, 0.0)) >= TRY_AGAIN:
                return hour
        return None

    async def _roll(self, account: AccountedCluster, hour: int) -> None:
        started = time.monotonic()
        book = account.book
        rolled = await roll(
            book.cluster, hour, account.step, self._shelf, account.metrics, account.plan, book.status_of
        )
        _log.info(
            "hour rolled up",
            cluster=book.cluster,
            hour=hour * 3600,
            workloads=len(rolled.hour.workloads) if rolled.hour else 0,
            kept=rolled.kept,
            seconds=round(time.monotonic() - started, 3),
        )

    async def _keep_one(self, account: AccountedCluster) -> None:
        while True:
            try:
                await self.round(account)
            except GpufleetError as error:
                _log.warning(
                    "books not written, trying again", cluster=account.book.cluster, error=str(error)
                )
            except Exception:  # noqa: BLE001  (a fault of one cluster must not stop the others)
                _log.exception("books not written", cluster=account.book.cluster)
            await asyncio.sleep(self._tick)

    async def _forget(self) -> None:
        while True:
            try:
                await self._prune()
            except GpufleetError as error:
                _log.warning("old books not pruned", error=str(error))
            except Exception:  # noqa: BLE001  (what can't be forgotten must not stop what is written)
                _log.exception("old books not pruned")
            await asyncio.sleep(DAY)
