"""Judge estimates of start times: on simulated queues, and on recorded ones.

A unit is judged once, by its first estimate after it began to wait. The baseline is the mean wait of the units that
started in the last hour.
"""

import statistics
import time
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from bench.result import Result
from gpufleet.estimates.fleet_state import FleetState, QueueOrder, RunningUnit, WaitingUnit
from gpufleet.estimates.run_times import Job
from gpufleet.estimates.starts import StartEstimates
from gpufleet.placement import CandidateNode
from gpufleet.scheduler.queues.expected_order import ExpectedOrder
from gpufleet.simulation.engine import Simulation
from gpufleet.simulation.scenario import HOUR, Scenario
from gpufleet.simulation.unit import Unit

WARM_UP = 100
"""Starts that are not judged: run times and errors are not known yet."""


@dataclass
class Judged:
    """Estimates beside what happened, in seconds."""

    inside: list[bool] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    baseline: list[float] = field(default_factory=list)
    widths: list[float] = field(default_factory=list)
    early: int = 0
    """Units that started before their interval."""
    unstarted: int = 0
    """Units that still waited at the end, later than their interval; they are outside of it."""
    unknown: int = 0
    """Units that got no estimate."""
    seconds: list[float] = field(default_factory=list)
    """CPU time of refreshes."""

    def results(self, name: str, most_error: float | None = 0.5) -> Iterator[Result]:
        """Return coverage and error; `most_error` is the largest part of the baseline's error."""
        if len(self.inside) < 50:
            yield Result(f"{name}: starts judged", len(self.inside), "", note="too few for a coverage")
            return
        covered = 100.0 * statistics.fmean(self.inside)
        error, theirs = statistics.median(self.errors), statistics.median(self.baseline)
        note = (
            f"{len(self.inside):,} starts, {self.early:,} too early, {self.unstarted:,} not before the end, "
            f"{self.unknown:,} not estimated; "
            f"median width {statistics.median(self.widths) / 60:.0f} min"
        )
        yield Result(f"{name}: starts in the 90% interval", covered, "%", at_least=86, note=note)
        yield Result(f"{name}: coverage above 90%", covered - 90, "points", at_most=4)
        note = f"median errors {error / 60:.1f} and {theirs / 60:.1f} min"
        yield Result(
            f"{name}: error / baseline", error / max(theirs, 1e-9), "", at_most=most_error, note=note
        )


@dataclass(frozen=True, slots=True)
class _Prediction:
    at: float
    earliest: float
    expected: float
    latest: float
    baseline: float


class Judge:
    """Estimates starts and compares them with what happened; the fleet comes from outside."""

    def __init__(self, nodes: Sequence[CandidateNode]) -> None:
        self.judged = Judged()
        self.estimates = StartEstimates()
        self._nodes = {node.name: at for at, node in enumerate(nodes)}
        self._capacity = [1000 * len(node.gpus) for node in nodes]
        self._models = [node.gpus[0].model if node.gpus else "" for node in nodes]
        self.order: QueueOrder | None = None
        self._made: dict[int, _Prediction | None] = {}
        self._waits: deque[tuple[float, float]] = deque()
        self._compared = 0

    def started(self, unit: Unit, now: float) -> None:
        """Compare the start of a unit with its estimate."""
        self._waits.append((now, now - unit.arrives))
        self.estimates.arrivals.observe(as_waiting(unit), unit.arrives)
        self.estimates.calibration.started(str(unit.number), now)
        made = self._made.get(unit.number)
        self._made[unit.number] = None
        if made is None:
            return
        self._compared += 1
        if self._compared <= WARM_UP:
            return
        wait = now - made.at
        # Starts are only seen at events: a second decides nothing.
        self.judged.inside.append(made.earliest - 1 <= wait <= made.latest + 1)
        self.judged.early += wait < made.earliest - 1
        self.judged.errors.append(abs(wait - made.expected))
        self.judged.baseline.append(abs(wait - made.baseline))
        self.judged.widths.append(made.latest - made.earliest)

    def left(self, number: int, now: float) -> None:
        """Forget a unit that was deleted while it waited; after its interval it has waited too long in any case."""
        self.estimates.calibration.left(str(number))
        made = self._made[number]
        self._made[number] = None
        if made is not None and now - made.at > made.latest + 1:
            self._compared += 1
            if self._compared > WARM_UP:
                self.judged.inside.append(False)
                self.judged.unstarted += 1

    def waiting(self) -> list[int]:
        """Return the units that have an estimate and have not started, as far as is known."""
        return [number for number, made in self._made.items() if made is not None]

    def finish(self, now: float) -> None:
        """Count units that still wait although their interval is over: leaving out long waits would flatter."""
        for made in self._made.values():
            if made is not None and now - made.at > made.latest + 1 and self._compared > WARM_UP:
                self.judged.inside.append(False)
                self.judged.unstarted += 1

    def ended(self, unit: Unit, seconds: float) -> None:
        """Learn a run time."""
        self.estimates.run_times.observe(job_of(unit), seconds)

    def estimate(
        self, running: Iterable[tuple[Unit, float, Sequence[str]]], waiting: Sequence[Unit], now: float
    ) -> None:
        """Estimate the starts of units that began to wait; `running` has unit, start and nodes."""
        new = [unit for unit in waiting if unit.number not in self._made]
        if not new:
            return
        for unit in new:
            self.estimates.arrivals.observe(as_waiting(unit), unit.arrives)
        while self._waits and self._waits[0][0] < now - HOUR:
            self._waits.popleft()
        mean = statistics.fmean(wait for _, wait in self._waits) if self._waits else 0.0
        began = time.process_time()
        self.estimates.refresh(self._state(running, waiting, now), now, probing=False)
        self.judged.seconds.append(time.process_time() - began)
        for unit in new:
            self._made[unit.number] = None
            found = self.estimates.of(str(unit.number), now)
            if found is None or found.expected is None or found.earliest is None or found.latest is None:
                self.judged.unknown += 1
                continue
            baseline = max(mean - (now - unit.arrives), 0.0)
            self._made[unit.number] = _Prediction(now, found.earliest, found.expected, found.latest, baseline)

    def _state(
        self, running: Iterable[tuple[Unit, float, Sequence[str]]], waiting: Sequence[Unit], now: float
    ) -> FleetState:
        free, units = list(self._capacity), []
        for unit, started, names in running:
            milli = unit.request.gpu_milli
            places = tuple((self._nodes[name], milli) for name in names)
            for node, held in places:
                free[node] -= held
            units.append(RunningUnit(job_of(unit), now - started, places, unit.priority, unit.queue))
        return FleetState(
            self._capacity,
            [max(milli, 0) for milli in free],
            self._models,
            units,
            [as_waiting(unit) for unit in waiting],
            order=self.order,
        )


def judge_simulated(
    nodes: list[CandidateNode], units: list[Unit], scenario: Scenario, until: float, every_s: float
) -> Judged:
    """Run units on a simulated fleet and judge the estimates that are made every so many seconds."""
    run = Simulation(nodes, units, scenario, until)
    judge = Judge(nodes)
    seen: dict[int, tuple[Unit, float]] = {}
    due = 0.0

    def observe(now: float) -> None:
        nonlocal due
        current = run.fleet.running
        for number, (unit, started) in list(seen.items()):
            if number not in current or current[number].started != started:
                del seen[number]
                judge.ended(unit, now - started)
        for number, running in current.items():
            if number not in seen:
                seen[number] = running.unit, running.started
                judge.started(running.unit, now)
        waiting = {unit.number for unit in run.waiting.all()}
        for number in judge.waiting():
            if number not in waiting:
                judge.left(number, now)
        if now >= due and len(run.waiting):
            due = now + every_s
            places = (
                (each.unit, each.started, [fits.node for fits in each.places]) for each in current.values()
            )
            if isinstance(run.queues, ExpectedOrder):
                judge.order = run.queues.copy()
            judge.estimate(places, run.waiting.all(), now)

    run.observe = observe
    run.run()
    judge.finish(until)
    return judge.judged


def judge_recorded(
    nodes: list[CandidateNode], units: Sequence[tuple[Unit, float, tuple[str, ...]]], every_s: float = 0.0
) -> Judged:
    """Judge estimates on recorded units, each with its start and its nodes; `arrives` is when it was created."""
    judge = Judge(nodes)
    ended, created, started = range(3)
    events = sorted(
        event
        for at, (unit, start, _) in enumerate(units)
        for event in ((unit.arrives, created, at), (start, started, at), (start + unit.runtime, ended, at))
    )
    waiting: dict[int, Unit] = {}
    running: dict[int, tuple[Unit, float, tuple[str, ...]]] = {}
    due = 0.0
    for number, (now, kind, at) in enumerate(events):
        unit = units[at][0]
        if kind == created:
            waiting[at] = unit
            if events[number + 1][:2] != (now, created) and now >= due:
                due = now + every_s
                judge.estimate(running.values(), list(waiting.values()), now)
        elif kind == started:
            del waiting[at]
            running[at] = units[at]
            judge.started(unit, now)
        else:
            del running[at]
            judge.ended(unit, unit.runtime)
    return judge.judged


def job_of(unit: Unit) -> Job:
    """Return what is known about the run time of a unit."""
    return Job(unit.workload, unit.owner or unit.queue, unit.gpu_milli / 1000, unit.declared)


def as_waiting(unit: Unit) -> WaitingUnit:
    """Return a unit as estimates see it."""
    return WaitingUnit(
        str(unit.number),
        job_of(unit),
        unit.request.gpu_milli,
        unit.members,
        unit.request.models,
        unit.priority,
        queue=unit.queue,
    )
