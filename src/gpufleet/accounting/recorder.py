"""Record one cluster: store its periods as they change, and take snapshots.

Every server collects the periods that it observes; the leader also stores them. A server that becomes
the leader first reconciles its periods with those that the previous leader left open.
"""

from collections.abc import Callable

import msgspec

from gpufleet.accounting.hour_readings import pack_readings
from gpufleet.accounting.reconcile import Period, reconcile
from gpufleet.accounting.rollup import RollupPlan
from gpufleet.accounting.snapshot import snapshot
from gpufleet.fleet.state import Fleet
from gpufleet.model.periods import AllocationPeriod, CapacityPeriod
from gpufleet.runtime.logs import get_logger
from gpufleet.store import Store

HOUR_DELAY = 40.0
"""Seconds after its end at which an hour is rolled up, so that late readings and pod ends count."""

LATE_HOURS = 48
"""Hours for which late information is still taken into account."""

MAX_CATCH_UP = 31 * 24
"""Missed hours that are rolled up automatically; `gpufleet db backfill` goes further back."""

MAX_PAUSE = 60.0
"""Seconds between two collections after which the cluster counts as not observed in between: the process was
suspended, or its clock was set."""

OVERLAP = 120.0
"""Seconds for which ended periods are kept after the leader has stored them."""

_log = get_logger("accounting")


class Recorder:
    """The periods and snapshots of one cluster."""

    def __init__(
        self, fleet: Fleet, store: Store, clock: Callable[[], float], up_to_date: Callable[[], bool]
    ) -> None:
        """`up_to_date` returns whether the fleet is complete and up to date enough for a snapshot."""
        self.fleet = fleet
        self._store = store
        self._clock = clock
        self._up_to_date = up_to_date
        self._ended: dict[tuple[str, float], tuple[AllocationPeriod, float]] = {}
        self._ended_capacity: dict[tuple[str, float], tuple[CapacityPeriod, float]] = {}
        """Ended periods by pod or node and start, with the time at which they were collected."""
        self._unsaved: dict[tuple[str, float], AllocationPeriod] = {}
        self._unsaved_capacity: dict[tuple[str, float], CapacityPeriod] = {}
        self.since = 0.0
        self.leading = False
        self._observed_since: float | None = None
        """The start of the time in which this server has followed the cluster without a pause."""
        self._collected_at = 0.0

    @property
    def cluster(self) -> str:
        """The name of the cluster."""
        return self.fleet.cluster

    def collect(self) -> None:
        """Collect what began and ended since the last call. Every server does this all the time."""
        now = self._clock()
        self._observe(now)
        for period in self.fleet.allocation_periods.drain():
            if period.end:
                self._ended[period.pod_uid, period.start] = (period, now)
            if self.leading:
                self._unsaved[period.pod_uid, period.start] = period
        for capacity in self.fleet.capacity_periods.drain():
            if capacity.end:
                self._ended_capacity[capacity.node, capacity.start] = (capacity, now)
            if self.leading:
                self._unsaved_capacity[capacity.node, capacity.start] = capacity

    def _observe(self, now: float) -> None:
        if not self._up_to_date():
            self._observed_since = None
        elif self._observed_since is None or not 0 <= now - self._collected_at <= MAX_PAUSE:
            self._observed_since = now
        self._collected_at = now

    async def forget_stored(self) -> None:
        """Forget ended periods that the leader has stored by now."""
        span = await self._store.accounted.span(self.cluster)
        until = (span.until if span else 0.0) - OVERLAP
        self._ended = {key: each for key, each in self._ended.items() if each[1] > until}
        self._ended_capacity = {key: each for key, each in self._ended_capacity.items() if each[1] > until}

    async def take_over(self) -> None:
        """Become the leader: reconcile with what the previous leader left open."""
        cluster, fleet, store = self.cluster, self.fleet, self._store
        span = await store.accounted.open(cluster, self._clock())
        self.collect()
        pods = {period.pod_uid for period in self._observed()}
        nodes = {period.node for period in self._observed_capacity()}
        stored = await store.allocation_periods.newest(cluster, pods)
        stored_capacity = await store.capacity_periods.newest(cluster, nodes)
        # No await from here on: the fleet must not change while it is compared.
        self.collect()
        # Clamp: the writer's clock may have been ahead.
        until = min(span.until, self._clock())
        changed, still_open = reconcile(stored, self._observed(), until, lambda p: p.pod_uid)
        fleet.allocation_periods.adopt(still_open)
        changed_capacity, open_capacity = reconcile(
            stored_capacity, self._observed_capacity(), until, lambda p: p.node
        )
        fleet.capacity_periods.adopt(open_capacity)
        self._unsaved = {(p.pod_uid, p.start): p for p in changed}
        self._unsaved_capacity = {(p.node, p.start): p for p in changed_capacity}
        self.since, self.leading = span.since, True
        _log.info("accounting_taken_over", cluster=cluster, open=len(still_open), changed=len(changed))

    def _observed(self) -> list[AllocationPeriod]:
        return [*(period for period, _ in self._ended.values()), *self.fleet.allocation_periods.open()]

    def _observed_capacity(self) -> list[CapacityPeriod]:
        ended = (period for period, _ in self._ended_capacity.values())
        return [*ended, *self.fleet.capacity_periods.open()]

    def step_down(self) -> None:
        """Stop storing: another server may lead from now on."""
        self.leading = False
        self._unsaved.clear()
        self._unsaved_capacity.clear()

    async def save(self) -> None:
        """Store what was collected. What could not be stored is retried by the next call."""
        self.collect()
        until = self._clock()
        self.since = min(self.since, until)
        periods, capacity = dict(self._unsaved), dict(self._unsaved_capacity)
        await self._store.capacity_periods.save(self.cluster, list(capacity.values()))
        await self._store.allocation_periods.save(self.cluster, list(periods.values()))
        # Keep what changed again while it was being stored.
        self._unsaved = {k: p for k, p in self._unsaved.items() if periods.get(k) is not p}
        self._unsaved_capacity = {k: p for k, p in self._unsaved_capacity.items() if capacity.get(k) is not p}
        await self._store.accounted.set_stored_until(self.cluster, until)
        if self._observed_since is not None and self._observed_since < until:
            await self._store.observed.add(self.cluster, self._observed_since, until)

    async def snapshot(self, at: int, plan: RollupPlan) -> bool:
        """Take the snapshot of time `at`. Return False if the fleet is not up to date."""
        if not self._up_to_date():
            return False
        fleet = self.fleet
        readings = fleet.gpu_columns.readings
        taken = snapshot(
            at,
            [_started_by(p, at) for p in fleet.allocation_periods.open() if p.start < at + 60],
            [_started_by(p, at) for p in fleet.capacity_periods.open()],
            readings,
            plan,
        )
        await self._store.snapshots.save(self.cluster, at, *taken, pack_readings(readings, at))
        return True

    async def due_hours(self, now: float) -> list[int]:
        """Return the numbers of the hours to roll up: missing ones, then those with late information."""
        if (span := await self._store.accounted.span(self.cluster)) is not None:
            self.since = min(self.since, span.since)  # earlier records may have been added
        last = int((now - HOUR_DELAY) // 3600) - 1
        first = max(int(self.since // 3600), last - MAX_CATCH_UP)
        states = await self._store.hours.states(self.cluster, first)
        if any(hour > last and not state.stale for hour, state in states.items()):
            # Rolled up before they were over, by a clock that was ahead.
            await self._store.hours.mark_stale(self.cluster, last + 1)
        late = range(max(first, last - LATE_HOURS + 1), last + 1)
        return [
            *(hour for hour in range(first, last + 1) if hour not in states),
            *(hour for hour in late if hour in states and (states[hour].stale or not states[hour].measured)),
        ]


def _started_by(period: Period, at: int) -> Period:
    """Move the start of a period that began within seconds after `at` back to `at`."""
    return period if period.start <= at else msgspec.structs.replace(period, start=float(at))
