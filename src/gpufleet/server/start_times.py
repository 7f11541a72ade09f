"""Estimate when waiting units of one cluster start, for the API.

Run times come from the recorded allocations of the last weeks. The queue is simulated forward when somebody asks
and the last result is older than `REFRESH_S`, in a thread, so that other requests are answered meanwhile.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from datetime import UTC, datetime

from gpufleet.errors import NotFound
from gpufleet.estimates.fleet_state import WaitingUnit
from gpufleet.estimates.run_times import Job
from gpufleet.estimates.starts import Estimate, StartEstimates
from gpufleet.model.periods import AllocationPeriod
from gpufleet.scheduler.start_state import StartState, start_state, workload_stem
from gpufleet.scheduler.state import Ledger

REFRESH_S = 30.0
HISTORY_S = 21 * 86400.0
HISTORY_EVERY_S = 600.0
"""Seconds between readings of runs that have ended."""

_SERVICES = frozenset({"Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "ReplicationController"})

MAX_RUNS = 20_000
"""Periods that are read at a time; the latest are enough to know run times."""

Periods = Callable[[float, float, int], Awaitable[Sequence[AllocationPeriod]]]
"""Returns the latest allocation periods that overlap with a time span, at most a number of them."""


class StartTimes:
    """Estimates for one cluster."""

    def __init__(self, ledger: Callable[[], Awaitable[Ledger]], periods: Periods) -> None:
        self._ledger = ledger
        self._periods = periods
        self._estimates = StartEstimates()
        self._state: StartState | None = None
        self._refreshed = self._read_until = float("-inf")
        self._turn = asyncio.Lock()

    async def queue(self) -> list[tuple[str, str, Estimate]]:
        """Return namespace, name and estimate of each waiting unit, in the order of the queue."""
        state, now = await self._current(), time.time()
        found = []
        for unit in state.fleet.waiting:
            estimate = self._estimates.of(unit.key, now)
            if estimate is not None:
                found.append((state.namespace_of[unit.key], state.name_of[unit.key], estimate))
        return found

    async def of_claim(self, namespace: str, claim: str) -> Estimate | None:
        """Return the estimate of the unit that uses a claim; None if none waits for it."""
        state = await self._current()
        key = state.unit_of_claim.get((namespace, claim))
        return self._estimates.of(key, time.time()) if key is not None else None

    async def hypothetical(self, unit: WaitingUnit) -> Estimate:
        """Return the estimate of a unit that would arrive now."""
        await self._current()
        return self._estimates.hypothetical(unit, time.time())

    async def _current(self) -> StartState:
        async with self._turn:
            if self._state is None or time.monotonic() - self._refreshed > REFRESH_S:
                await self._learn()
                ledger = await self._ledger()
                state = start_state(ledger, datetime.now(UTC))
                self._note_starts(ledger, state)
                await asyncio.to_thread(self._estimates.refresh, state.fleet, time.time())
                self._state, self._refreshed = state, time.monotonic()
            return self._state

    async def _learn(self) -> None:
        """Read the runs that have ended since the last time."""
        now = time.time()
        since = max(self._read_until, now - HISTORY_S)
        if now - since < HISTORY_EVERY_S:
            return
        try:
            periods = await self._periods(since, now, MAX_RUNS)
        except NotFound:  # nothing was recorded for this cluster yet
            periods = ()
        learn(self._estimates, periods, since)
        self._read_until = now

    def _note_starts(self, ledger: Ledger, state: StartState) -> None:
        """Compare earlier estimates with units that have started or are gone."""
        if self._state is None:
            return
        waiting = {unit.key for unit in state.fleet.waiting}
        for uid, key in self._state.unit_of_pod.items():
            if key in waiting:
                continue
            pod = ledger.pods.get(uid)
            if pod is not None and pod.spec.node_name:
                at = pod.status.start_time
                self._estimates.calibration.started(key, at.timestamp() if at else time.time())
            else:
                self._estimates.calibration.left(key)


def learn(estimates: StartEstimates, periods: Sequence[AllocationPeriod], since: float) -> None:
    """Record the run times of pods that ended after `since`."""
    spans: dict[str, tuple[AllocationPeriod, float, float]] = {}
    for period in periods:
        first, start, end = spans.get(period.pod_uid, (period, period.start, period.end))
        open_ = not period.end or not end
        joined = 0.0 if open_ else max(end, period.end)
        spans[period.pod_uid] = first, min(start, period.start), joined
    for period, start, end in sorted(spans.values(), key=lambda span: span[2]):
        if end > since:
            job = Job(
                workload_stem(period.workload_name),
                period.namespace,
                period.gpus * period.share,
                period.max_runtime or None,
                period.workload_kind in _SERVICES,
            )
            estimates.run_times.observe(job, end - start)
