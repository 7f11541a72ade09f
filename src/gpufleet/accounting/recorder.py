"""The books of one cluster: periods written down as they happen, snapshots on the grid, hours rolled up.

Every server keeps what it sees; the one that aggregates also stores it. When a server becomes that
one, it first settles what the one before it left open (`reconcile`), and only then writes on.
Nothing of an hour lives in memory alone: an hour is rolled up from the store and the metric source,
so that any server can do it at any time, and again.
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from gpufleet.accounting.hour_readings import SampleGrid, fill_from_snapshots, node_names, pack
from gpufleet.accounting.ports import Ledger, Period, Shelf
from gpufleet.accounting.reconcile import reconcile
from gpufleet.accounting.rollup import RollupPlan, roll_up
from gpufleet.accounting.snapshot import snapshot
from gpufleet.errors import InvalidRequest, MetricsUnavailable
from gpufleet.model.hours import Hour, WorkloadHour
from gpufleet.model.metric_source import MetricSource
from gpufleet.model.periods import AllocationPeriod, CapacityPeriod
from gpufleet.model.reading import Readings
from gpufleet.runtime.logs import get_logger

SETTLED = 40.0
"""Seconds after its end at which an hour is rolled up: late readings and ends of pods are in by then."""

LATE = 48
"""Hours for which what is learned late is still taken into account."""

CATCH_UP = 31 * 24
"""Hours up to which missed ones are filled in by themselves; `gpufleet db backfill` goes further back."""

OVERLAP = 120.0
"""Seconds by which a server remembers ended periods longer than the aggregating one says it has stored."""

_log = get_logger("accounting")


@dataclass(frozen=True)
class Subject:
    """A cluster as accounting sees it."""

    cluster: str
    holdings: Ledger[AllocationPeriod]
    capacities: Ledger[CapacityPeriod]
    billing: Callable[[], bool]
    """Whether the sources have told what there is, so that periods are written."""
    visible: Callable[[], bool]
    """Whether the picture is up to date enough to take a snapshot of."""
    readings: Callable[[], Readings]
    status: Callable[[str], str | None]
    """How a workload ended, if the picture knows."""


class Recorder:
    """What is written down of one cluster."""

    def __init__(self, subject: Subject, shelf: Shelf, clock: Callable[[], float]) -> None:
        self._subject = subject
        self._shelf = shelf
        self._clock = clock
        self._ended_holdings: dict[tuple[str, float], tuple[AllocationPeriod, float]] = {}
        self._ended_capacities: dict[tuple[str, float], tuple[CapacityPeriod, float]] = {}
        self._holdings: dict[tuple[str, float], AllocationPeriod] = {}
        self._capacities: dict[tuple[str, float], CapacityPeriod] = {}
        self.since = 0.0
        self.leading = False

    @property
    def cluster(self) -> str:
        """Whose book it is."""
        return self._subject.cluster

    @property
    def billing(self) -> bool:
        """Whether there is anything to write down yet."""
        return self._subject.billing()

    def collect(self) -> None:
        """Take over what began and ended since the last call; every server does, all the time."""
        now = self._clock()
        for holding in self._subject.holdings.drain():
            if holding.end:
                self._ended_holdings[holding.pod_uid, holding.start] = (holding, now)
            if self.leading:
                self._holdings[holding.pod_uid, holding.start] = holding
        for capacity in self._subject.capacities.drain():
            if capacity.end:
                self._ended_capacities[capacity.node, capacity.start] = (capacity, now)
            if self.leading:
                self._capacities[capacity.node, capacity.start] = capacity

    async def forget(self) -> None:
        """Let go what ended and is stored by now, by whichever server aggregates."""
        known = await self._shelf.clusters.span(self.cluster)
        until = (known.until if known else 0.0) - OVERLAP
        self._ended_holdings = {k: p for k, p in self._ended_holdings.items() if p[1] > until}
        self._ended_capacities = {k: p for k, p in self._ended_capacities.items() if p[1] > until}

    async def take_over(self) -> None:
        """Settle what the server before left open; from now on this one stores."""
        cluster, subject, shelf = self.cluster, self._subject, self._shelf
        known = await shelf.clusters.open(cluster, self._clock())
        self.collect()
        pods = {p.pod_uid for p in self._told_holdings()}
        nodes = {p.node for p in self._told_capacities()}
        holdings = await shelf.holdings.newest(cluster, pods)
        capacities = await shelf.capacities.newest(cluster, nodes)
        # No await from here on: what the ledgers say must not change while it is compared.
        self.collect()
        # a clock that was ahead knew nothing of the future
        last_known = min(known.until, self._clock())
        changed, lasting = reconcile(holdings, self._told_holdings(), last_known, lambda p: p.pod_uid)
        subject.holdings.adopt(lasting)
        changed_capacities, lasting_capacities = reconcile(
            capacities, self._told_capacities(), last_known, lambda p: p.node
        )
        subject.capacities.adopt(lasting_capacities)
        self._holdings = {(p.pod_uid, p.start): p for p in changed}
        self._capacities = {(p.node, p.start): p for p in changed_capacities}
        self.since, self.leading = known.since, True
        _log.info("books taken over", cluster=cluster, open=len(lasting), changed=len(changed))

    def _told_holdings(self) -> list[AllocationPeriod]:
        return [*(p for p, _ in self._ended_holdings.values()), *self._subject.holdings.open()]

    def _told_capacities(self) -> list[CapacityPeriod]:
        return [*(p for p, _ in self._ended_capacities.values()), *self._subject.capacities.open()]

    def hand_over(self) -> None:
        """Another server stores from now on, perhaps."""
        self.leading = False
        self._holdings.clear()
        self._capacities.clear()

    async def write(self) -> None:
        """Store what was collected. What could not be stored is tried again at the next call."""
        self.collect()
        until = self._clock()
        self.since = min(self.since, until)
        holdings, capacities = dict(self._holdings), dict(self._capacities)
        await self._shelf.capacities.save(self.cluster, list(capacities.values()))
        await self._shelf.holdings.save(self.cluster, list(holdings.values()))
        for key, holding in holdings.items():
            if self._holdings.get(key) is holding:
                del self._holdings[key]
        for node, capacity in capacities.items():
            if self._capacities.get(node) is capacity:
                del self._capacities[node]
        await self._shelf.clusters.set_stored_until(self.cluster, until)

    async def snapshot(self, at: int, plan: RollupPlan) -> bool:
        """Take a snapshot for the moment `at` of the grid; False where the picture can't be trusted."""
        subject = self._subject
        if not subject.visible():
            return False
        capacities, readings = subject.capacities.open(), subject.readings()
        taken = snapshot(
            at,
            [_there(period, at) for period in subject.holdings.open() if period.start < at + 60],
            [_there(period, at) for period in capacities],
            readings,
            node_names(capacities),
            plan,
        )
        await self._shelf.snapshots.save(self.cluster, at, *taken, pack(readings, at))
        return True

    async def due(self, now: float) -> list[int]:
        """The numbers of the hours that are over: those not done, then those of which more is known by now."""
        last = int((now - SETTLED) // 3600) - 1
        first = max(int(self.since // 3600), last - CATCH_UP)
        done = await self._shelf.hours.states(self.cluster, first)
        if any(hour > last and not how.stale for hour, how in done.items()):
            # done by a clock that was ahead
            await self._shelf.hours.mark_stale(self.cluster, last + 1)
        over = range(first, last + 1)
        late = range(max(first, last - LATE + 1), last + 1)
        return [
            *(hour for hour in over if hour not in done),
            *(hour for hour in late if hour in done and (done[hour].stale or not done[hour].measured)),
        ]

    def status_of(self, uid: str) -> str | None:
        """How a workload ended, if the picture knows."""
        return self._subject.status(uid)


def _there(period: Period, at: int) -> Period:
    """What began in the seconds since the moment counts as there."""
    return period if period.start <= at else msgspec.structs.replace(period, start=float(at))


class Rolled(NamedTuple):
    """What became of an hour: its statistics, or None if nobody looked or the stored ones were kept."""

    hour: Hour | None
    kept: str = ""
    """Why the stored ones were kept."""


async def roll(
    cluster: str,
    hour: int,
    step: int,
    shelf: Shelf,
    metrics: MetricSource,
    plan: RollupPlan,
    status_of: Callable[[str], str | None],
    known_since: float = 0.0,
) -> Rolled:
    """Compute hour number `hour` from all that is known, and store it.

    Holders of before `known_since` may be forgotten by now.
    """
    start = hour * 3600
    holdings = await shelf.holdings.overlapping(cluster, start, start + 3600)
    capacities = await shelf.capacities.overlapping(cluster, start, start + 3600)
    grid = SampleGrid(start, step, node_names(capacities))
    measured = True
    try:
        await grid.read(metrics)
    except (MetricsUnavailable, InvalidRequest) as error:
        measured = False
        _log.warning(
            "hour rolled up without the metric source", cluster=cluster, hour=start, error=str(error)
        )
    snapshots = await shelf.snapshots.readings(cluster, hour)
    fill_from_snapshots(grid, snapshots)
    samples = grid.samples()
    rolled = None
    if samples.any or snapshots:
        rolled = await asyncio.to_thread(roll_up, start, holdings, capacities, samples, plan)
    gone = ""
    if rolled is None or not samples.any:
        gone = "the readings are gone"
    elif start < known_since:
        gone = "who held the GPUs is forgotten"
    if gone and await shelf.hours.has_samples(cluster, hour):
        # what is stored was made of more than is left
        _log.warning("hour kept as it is", cluster=cluster, hour=start, reason=gone)
        await shelf.hours.clear_stale(cluster, hour)
        return Rolled(None, kept=gone)
    status = await _statuses(cluster, hour, rolled, shelf, status_of)
    if not await shelf.hours.save(cluster, hour, rolled, measured=measured, status=status):
        return Rolled(None, kept="the hours of its day's workloads are forgotten")
    return Rolled(rolled)


async def _statuses(
    cluster: str, hour: int, rolled: Hour | None, shelf: Shelf, status_of: Callable[[str], str | None]
) -> Callable[[WorkloadHour], str]:
    ended = [row.uid for row in rolled.workloads if not row.running] if rolled else []
    kept = await shelf.ended.statuses(cluster, ended)
    before = await shelf.hours.statuses(cluster, hour)

    def status(row: WorkloadHour) -> str:
        if row.running:
            return "Running"
        earlier = before.get(row.uid)
        known = status_of(row.uid) or kept.get(row.uid) or (earlier if earlier != "Running" else None)
        return known or "Completed"

    return status
