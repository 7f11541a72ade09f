"""Run accounting for all clusters: save periods, take snapshots, roll up hours, prune old data.

Every server runs `collect`; the leader also runs `run_as_leader`. Each cluster has a loop of its own.
An error in one cluster is logged and retried in the next round without holding up the others.
"""

import asyncio
import itertools
import time
from collections.abc import Awaitable, Callable, Container, Sequence
from dataclasses import dataclass, field

from gpufleet.accounting.progress import Progress, progress
from gpufleet.accounting.recorder import Recorder
from gpufleet.accounting.roll_hour import roll_hour
from gpufleet.accounting.rollup import RollupPlan
from gpufleet.errors import GpufleetError, LeadershipLost
from gpufleet.model.metric_source import MetricSource
from gpufleet.runtime.logs import get_logger
from gpufleet.store import Store

TICK = 2.0
"""Seconds between rounds: changes of periods are stored that soon."""

PROGRESS_EVERY = 30
"""Rounds between two reads of the progress."""

SNAPSHOT_DEADLINE = 60.0
"""Seconds after its time until which a snapshot may still be taken."""

RETRY_HOUR = 300.0
"""Seconds before an hour that failed or could not be measured is rolled up again."""

DAY = 86_400.0
_log = get_logger("accounting")


@dataclass
class AccountedCluster:
    """A cluster's recorder, and what is needed to roll up its hours."""

    recorder: Recorder
    metrics: MetricSource
    plan: RollupPlan
    step: int
    """Seconds between snapshots and between samples; divides an hour."""
    progress: Progress | None = None
    """How far the stored data goes, whichever server leads; None until it was read."""
    snapshot_at: int = 0
    tried: dict[int, float] = field(default_factory=dict)
    """When each hour was last rolled up."""


class AccountingLoop:
    """The accounting rounds of one server."""

    def __init__(
        self,
        clusters: Sequence[AccountedCluster],
        store: Store,
        prune: Callable[[], Awaitable[None]],
        clock: Callable[[], float] = time.time,
        tick: float = TICK,
        now: Callable[[], Awaitable[float]] | None = None,
    ) -> None:
        """`now` decides which snapshots and hours are due: by default the database's clock."""
        self._clusters = clusters
        self._store = store
        self._prune = prune
        self._clock = clock
        self._tick = tick
        self._now = now or store.database.now

    async def collect(self) -> None:
        """Collect the periods of all clusters until cancelled, whichever server stores them."""
        for rounds in itertools.count():
            for cluster in self._clusters:
                cluster.recorder.collect()
            if rounds % PROGRESS_EVERY == 0:
                await self._read_progress()
            await asyncio.sleep(self._tick)

    async def _read_progress(self) -> None:
        try:
            for cluster in self._clusters:
                cluster.progress = await progress(cluster.recorder.cluster, self._store, self._clock())
                await cluster.recorder.forget_stored()
        except GpufleetError as error:
            _log.warning("accounting_progress_not_read", error=str(error))

    async def run_as_leader(self) -> None:
        """Do the work that one server does for all, until cancelled or, with LeadershipLost, replaced."""
        try:
            async with asyncio.TaskGroup() as group:
                for cluster in self._clusters:
                    name = f"accounting of {cluster.recorder.cluster}"
                    group.create_task(self._run_cluster(cluster), name=name)
                group.create_task(self._prune_daily(), name="prune accounting")
        finally:
            for cluster in self._clusters:
                cluster.recorder.step_down()

    async def round(self, cluster: AccountedCluster) -> None:
        """Do what is due for one cluster now."""
        recorder = cluster.recorder
        if not recorder.fleet.accounting_started:
            return
        if not recorder.leading:
            await recorder.take_over()
        await recorder.save()
        await self._snapshot(cluster)
        # Many hours may be due, each slow if the metric source hangs: save and snapshot in between.
        rolled: set[int] = set()
        while (hour := await self._next_hour(cluster, rolled)) is not None:
            rolled.add(hour)
            cluster.tried[hour] = await self._now()
            await self._roll_hour(cluster, hour)
            await recorder.save()
            await self._snapshot(cluster)

    async def _snapshot(self, cluster: AccountedCluster) -> None:
        """Take the snapshot of the last time on the grid once, as soon as possible."""
        now = await self._now()
        at = int(now - now % cluster.step)
        if cluster.snapshot_at == at or now - at >= SNAPSHOT_DEADLINE:
            return
        if await cluster.recorder.snapshot(at, cluster.plan):
            cluster.snapshot_at = at

    async def _next_hour(self, cluster: AccountedCluster, rolled: Container[int]) -> int | None:
        """Return the next due hour that was not `rolled` or tried recently, or None."""
        now = await self._now()
        for hour in await cluster.recorder.due_hours(now):
            # A clock that was ahead may have tried in the future.
            if hour not in rolled and abs(now - cluster.tried.get(hour, 0.0)) >= RETRY_HOUR:
                return hour
        return None

    async def _roll_hour(self, cluster: AccountedCluster, hour: int) -> None:
        started = time.monotonic()
        fleet = cluster.recorder.fleet
        rolled = await roll_hour(
            fleet.cluster, hour, cluster.step, self._store, cluster.metrics, cluster.plan, fleet.final_status
        )
        _log.info(
            "hour_rolled_up",
            cluster=fleet.cluster,
            hour=hour * 3600,
            workloads=len(rolled.hour.workloads) if rolled.hour else 0,
            kept=rolled.kept,
            seconds=round(time.monotonic() - started, 3),
        )

    async def _run_cluster(self, cluster: AccountedCluster) -> None:
        while True:
            try:
                await self.round(cluster)
            except LeadershipLost:
                raise
            except GpufleetError as error:
                _log.warning("accounting_failed", cluster=cluster.recorder.cluster, error=str(error))
            except Exception:  # noqa: BLE001  (a fault of one cluster must not stop the others)
                _log.exception("accounting_failed", cluster=cluster.recorder.cluster)
            await asyncio.sleep(self._tick)

    async def _prune_daily(self) -> None:
        while True:
            try:
                await self._prune()
            except LeadershipLost:
                raise
            except GpufleetError as error:
                _log.warning("accounting_not_pruned", error=str(error))
            except Exception:  # noqa: BLE001  (failing to prune must not stop accounting)
                _log.exception("accounting_not_pruned")
            await asyncio.sleep(DAY)
