"""Estimate when waiting units of one cluster start, for the API.

Run times and arrivals come from the recorded allocations of the last weeks. The queue is simulated forward when somebody
asks and the last result is older than `REFRESH_S`, or more if that took long: in a thread, and the request gets the last
result meanwhile unless that is older than `TOO_OLD_S`. The errors of earlier estimates are kept in the store, so that a restart does not lose them.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Protocol

import msgspec

from gpufleet.errors import LeadershipLost, NotFound, StoreUnavailable
from gpufleet.estimates.fleet_state import FleetState, WaitingUnit
from gpufleet.estimates.run_times import Job
from gpufleet.estimates.starts import Estimate, StartEstimates
from gpufleet.kubernetes.crds.gpu_queue import GpuQueue
from gpufleet.model.periods import AllocationPeriod
from gpufleet.placement.request import WHOLE
from gpufleet.runtime.logs import get_logger
from gpufleet.scheduler.queues.expected_order import expected_order, queue_of
from gpufleet.scheduler.start_state import StartState, start_state_steps, workload_stem
from gpufleet.scheduler.state import Ledger
from gpufleet.simulation.ledger import ended_units, started_units
from gpufleet.simulation.unit import Unit

_log = get_logger("server")

REFRESH_S = 30.0
TOO_OLD_S = 120.0
NEW_UNIT_S = 2.0
"""The age of a result in which a unit is missing after which it is renewed for it."""
REST = 20
"""How many times the CPU time of the last refresh the next one waits at least, so that it takes little of a core."""
HISTORY_S = 21 * 86400.0
HISTORY_EVERY_S = 600.0
"""Seconds between readings of runs that have ended."""

_SERVICES = frozenset({"Deployment", "ReplicaSet", "StatefulSet", "DaemonSet", "ReplicationController"})

MAX_RUNS = 20_000
"""Periods that are read at a time; the latest are enough to know run times."""

Periods = Callable[[float, float, int], Awaitable[Sequence[AllocationPeriod]]]
"""Returns the latest allocation periods that overlap with a time span, at most a number of them."""


class Calibrations(Protocol):
    """Keeps the errors of earlier estimates by cluster."""

    async def save(self, cluster: str, estimates: bytes) -> bool:
        """Store a JSON document; return False if another server does."""

    async def load(self, cluster: str) -> bytes | None:
        """Return the document of a cluster, if there is one."""


class StartTimes:
    """Estimates for one cluster."""

    def __init__(
        self,
        cluster: str,
        ledger: Callable[[], Awaitable[Ledger]],
        periods: Periods,
        calibrations: Calibrations,
        queues: Callable[[], Iterable[GpuQueue]] = tuple,
    ) -> None:
        self._cluster = cluster
        self._ledger = ledger
        self._periods = periods
        self._calibrations = calibrations
        self._saved: bytes | None = None
        """The last calibration that was loaded or saved."""
        self._queues = queues
        self._estimates = StartEstimates()
        self._state: StartState | None = None
        self._refreshed = self._read_until = float("-inf")
        self._took = 0.0
        """CPU seconds that the last simulation took."""
        self._refreshing: asyncio.Task[None] | None = None
        self._simulating = asyncio.Lock()
        """Held while a thread samples run times or learns them."""

    async def queue(self) -> list[tuple[str, str, list[str], float, Estimate]]:
        """Return namespace, name, claims, GPUs and estimate of each waiting unit, in the order of the queue."""
        state, now = await self._current(), time.time()
        claims: dict[str, list[str]] = {}
        for (_, claim), key in state.unit_of_claim.items():
            claims.setdefault(key, []).append(claim)
        found = []
        for unit in state.fleet.waiting:
            estimate = self._estimates.of(unit.key, now)
            if estimate is not None:
                gpus = unit.milli * unit.members / 1000
                namespace, name = state.namespace_of[unit.key], state.name_of[unit.key]
                found.append((namespace, name, sorted(claims.get(unit.key, ())), gpus, estimate))
        return found

    async def of_claim(self, namespace: str, claim: str) -> Estimate | None:
        """Return the estimate of the unit that uses a claim; None if none waits for it."""
        return await self._of(lambda state: state.unit_of_claim.get((namespace, claim)))

    async def of_pod(self, namespace: str, name: str) -> Estimate | None:
        """Return the estimate of the unit of a pod; None if it does not wait."""
        return await self._of(lambda state: state.unit_of_pod_named.get((namespace, name)))

    async def _of(self, find: Callable[[StartState], str | None]) -> Estimate | None:
        """Return the estimate of a unit; if it is not known, it may have arrived since the last simulation."""
        try:
            key = find(await self._current()) or find(await self._current(NEW_UNIT_S))
        except StoreUnavailable:
            return None
        return self._estimates.of(key, time.time()) if key is not None else None

    async def hypothetical(self, unit: WaitingUnit, namespace: str = "") -> Estimate:
        """Return the estimate of a unit that would arrive now, in the GpuQueue of a namespace if one is given."""
        state = await self._current()
        if not namespace or state.fleet.order is None:
            return self._estimates.hypothetical(unit, time.time())
        queue = queue_of(namespace, expected_order(self._queues())[1])
        return self._estimates.hypothetical(replace(unit, queue=queue), time.time())

    async def refusal(self, unit: WaitingUnit, namespace: str) -> str:
        """Return for which limit or budget a unit of a namespace would wait, or an empty string."""
        fleet = (await self._current()).fleet
        if fleet.order is None:
            return ""
        queue = queue_of(namespace, expected_order(self._queues())[1])
        return fleet.order.refusal(queue, fleet.used(), unit.milli * unit.members)

    async def _current(self, most: float | None = None) -> StartState:
        """Return the last state; renew it in the background if it is old, and wait for that if it is very old.

        With `most` wait if it is older than so many seconds.
        """
        age = time.monotonic() - self._refreshed
        rest = REST * self._took
        if self._state is not None and age <= max(REFRESH_S if most is None else most, rest):
            return self._state
        if self._refreshing is None or self._refreshing.done():
            self._refreshing = asyncio.create_task(self._refresh(), name="start times")
            self._refreshing.add_done_callback(_retrieve)
        if self._state is None or age > max(TOO_OLD_S if most is None else most, 2 * rest):
            await asyncio.shield(self._refreshing)
        assert self._state is not None
        return self._state

    async def _refresh(self) -> None:
        if self._saved is None:
            await self._load()
        await self._learn()
        ledger = await self._ledger()
        state = await self._read_state(ledger)
        self._note_starts(ledger, state)
        for unit in state.fleet.waiting:
            key = state.least_uid_of[unit.key]
            self._estimates.arrivals.observe(replace(unit, key=key), state.created_of[unit.key])
        async with self._simulating:
            self._took = await asyncio.to_thread(self._simulate, state.fleet)
        self._state, self._refreshed = state, time.monotonic()
        await self._save()

    def _simulate(self, fleet: FleetState) -> float:
        """Simulate the queue forward; return the CPU seconds of this thread."""
        began = time.thread_time()
        self._estimates.refresh(fleet, time.time())
        return time.thread_time() - began

    async def _read_state(self, ledger: Ledger) -> StartState:
        """Describe the fleet; other requests are answered between the steps."""
        steps = start_state_steps(ledger, datetime.now(UTC), list(self._queues()))
        while True:
            try:
                next(steps)
            except StopIteration as done:
                state: StartState = done.value
                return state
            await asyncio.sleep(0)

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
        namespaces = expected_order(self._queues())[1]

        def learn_all() -> None:
            learn(self._estimates, periods, since, now)
            learn_arrivals(self._estimates, periods, since, now, namespaces)

        async with self._simulating:
            await asyncio.to_thread(learn_all)
        self._read_until = now

    async def _load(self) -> None:
        """Go on with the errors of the estimates before a restart."""
        calibration = self._estimates.calibration
        kept = await self._calibrations.load(self._cluster)
        if kept is not None:
            try:
                calibration.restore(kept)
            except msgspec.DecodeError as error:  # of another version
                _log.warning("start_calibration_not_read", cluster=self._cluster, error=str(error))
        self._saved = calibration.encode()

    async def _save(self) -> None:
        """Store the errors of the estimates if they have changed; a failure is repaired by the next time."""
        encoded = self._estimates.calibration.encode()
        if encoded == self._saved:
            return
        try:
            if await self._calibrations.save(self._cluster, encoded):
                self._saved = encoded
        except (StoreUnavailable, LeadershipLost) as error:
            _log.warning("start_calibration_not_saved", cluster=self._cluster, error=str(error))

    def _note_starts(self, ledger: Ledger, state: StartState) -> None:
        """Compare earlier estimates with units that have started or are gone."""
        waiting = {unit.key for unit in state.fleet.waiting}
        if self._state is not None:
            before = self._state.unit_of_pod
        else:  # after a restart: the key of a single pod is its UID; gangs that wait no more are forgotten
            before = {key: key for key in self._estimates.calibration.waiting()}
        for uid, key in before.items():
            if key in waiting:
                continue
            pod = ledger.pods.get(uid)
            if pod is not None and pod.spec.node_name:
                at = pod.status.start_time
                self._estimates.calibration.started(key, at.timestamp() if at else time.time())
            else:
                self._estimates.calibration.left(key)


def _retrieve(task: asyncio.Task[None]) -> None:
    """Note the error of a refresh in the background, if there was one; the next request tries again."""
    if not task.cancelled() and (error := task.exception()) is not None:
        _log.warning("start_times_not_refreshed", error=str(error))


def learn(estimates: StartEstimates, periods: Sequence[AllocationPeriod], since: float, until: float) -> None:
    """Record the run times of units that ended in a span of time."""
    for unit in ended_units((each for each in periods if each.workload_kind not in _SERVICES), since, until):
        estimates.run_times.observe(_job_of(unit), unit.runtime)


def _job_of(unit: Unit) -> Job:
    return Job(workload_stem(unit.workload), unit.owner, unit.gpu_milli / WHOLE, unit.declared)


def learn_arrivals(
    estimates: StartEstimates,
    periods: Sequence[AllocationPeriod],
    since: float,
    until: float,
    namespaces: Mapping[str, str],
) -> None:
    """Record the arrivals of units that started in a span of time; `namespaces` has the queue of each."""
    if len(periods) >= MAX_RUNS:  # older ones were not read
        since = min(period.end for period in periods if period.end)
    estimates.arrivals.begin(since)
    for key, unit in started_units(periods, since, until):
        waiting = WaitingUnit(
            key,
            _job_of(unit),
            unit.request.gpu_milli,
            unit.members,
            unit.request.models,
            unit.priority,
            queue=queue_of(unit.owner, namespaces),
        )
        estimates.arrivals.observe(waiting, unit.arrives)
