"""Measure estimates of start times: coverage and error on simulated queues, and the time that one estimate takes.

A simulated fleet runs a load with contention. When a unit has to wait, its start is estimated from what is known at
that moment, and compared with the start in the simulation. The baseline is the mean wait of the units that started in
the last hour. With GPUFLEET_OPENB set to the folder of the openb trace, its tasks and times are used as well, on a
part of its nodes so that tasks wait, and with its recorded starts.
"""

import os
import random
import statistics
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.result import Result
from gpufleet.estimates.calibration import Calibration, Raw
from gpufleet.estimates.fleet_state import FleetState, RunningUnit, WaitingUnit
from gpufleet.estimates.run_times import Job
from gpufleet.estimates.starts import StartEstimates
from gpufleet.placement import CandidateNode
from gpufleet.placement.simulation.trace import read_nodes
from gpufleet.simulation import generate
from gpufleet.simulation.engine import Simulation
from gpufleet.simulation.scenario import DAY, HOUR, Scenario
from gpufleet.simulation.timed_trace import read_timed_tasks
from gpufleet.simulation.unit import Unit

WARM_UP = 100
"""Starts after estimates that are not judged: run times and errors are not known yet."""


@dataclass
class Judged:
    """Estimates beside what happened, in seconds."""

    inside: list[bool] = field(default_factory=list)
    errors: list[float] = field(default_factory=list)
    baseline: list[float] = field(default_factory=list)
    widths: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    """CPU time of refreshes."""

    def results(self, name: str) -> Iterator[Result]:
        """Return coverage and error."""
        if len(self.inside) < 50:
            yield Result(f"{name}: starts judged", len(self.inside), "", note="too few for a coverage")
            return
        covered = 100.0 * statistics.fmean(self.inside)
        error, theirs = statistics.median(self.errors), statistics.median(self.baseline)
        note = f"{len(self.inside):,} starts; median width {statistics.median(self.widths) / 60:.0f} min"
        yield Result(f"{name}: starts in the 90% interval", covered, "%", at_least=86, note=note)
        yield Result(f"{name}: coverage above 90%", covered - 90, "points", at_most=4)
        note = f"median errors {error / 60:.1f} and {theirs / 60:.1f} min"
        yield Result(f"{name}: error / baseline", error / max(theirs, 1e-9), "", at_most=0.5, note=note)


class Judge:
    """Watches a simulation, makes estimates and compares them with the starts."""

    def __init__(self, run: Simulation, nodes: list[CandidateNode], every_s: float) -> None:
        self.judged = Judged()
        self._run = run
        self._every = every_s
        self._nodes = {node.name: at for at, node in enumerate(nodes)}
        self._capacity = [1000 * len(node.gpus) for node in nodes]
        self._models = [node.gpus[0].model if node.gpus else "" for node in nodes]
        self._estimates = StartEstimates()
        self._running: dict[int, tuple[Unit, float]] = {}
        self._made: dict[int, tuple[float, float, float, float, float]] = {}
        self._waits: deque[tuple[float, float]] = deque()
        self._arrived: deque[tuple[float, Unit]] = deque()
        self._seen: set[int] = set()
        self._next = 0.0
        run.observe = self._observe

    def _observe(self, now: float) -> None:
        run, estimates = self._run, self._estimates
        for number, (unit, started) in list(self._running.items()):
            current = run.fleet.running.get(number)
            if current is None or current.started != started:
                del self._running[number]
                estimates.run_times.observe(_job(unit), now - started)
        for number, current in run.fleet.running.items():
            if number not in self._running:
                self._running[number] = current.unit, current.started
                self._see(current.unit)
                self._waits.append((now, now - current.unit.arrives))
                estimates.calibration.started(str(number), now)
                self._compare(number, now)
        while self._waits and self._waits[0][0] < now - HOUR:
            self._waits.popleft()
        if now >= self._next and len(run.waiting):
            self._next = now + self._every
            self._estimate(now)

    def _see(self, unit: Unit) -> None:
        if unit.number not in self._seen:
            self._seen.add(unit.number)
            self._arrived.append((unit.arrives, unit))

    def _estimate(self, now: float) -> None:
        units = self._run.waiting.all(now)
        new = [unit for unit in units if unit.number not in self._made]
        for unit in new:
            self._see(unit)
        while self._arrived and self._arrived[0][0] < now - 6 * HOUR:
            self._arrived.popleft()
        if not new:
            return
        started = time.process_time()
        self._estimates.refresh(self._state(units, now), now, probing=False)
        self.judged.seconds.append(time.process_time() - started)
        mean = statistics.fmean(wait for _, wait in self._waits) if self._waits else 0.0
        for unit in new:
            found = self._estimates.of(str(unit.number), now)
            if found is not None and found.expected is not None:
                assert found.earliest is not None
                assert found.latest is not None
                theirs = max(mean - (now - unit.arrives), 0.0)
                self._made[unit.number] = now, found.earliest, found.expected, found.latest, theirs
            else:
                self._made[unit.number] = now, 0.0, 0.0, -1.0, 0.0

    def _state(self, units: list[Unit], now: float) -> FleetState:
        free = list(self._capacity)
        running = []
        for current in self._run.fleet.running.values():
            milli = current.unit.request.gpu_milli
            places = tuple((self._nodes[fits.node], milli) for fits in current.places)
            for node, held in places:
                free[node] -= held
            running.append(RunningUnit(_job(current.unit), now - current.started, places))
        recent = [_waiting(unit) for _, unit in self._arrived][-300:]
        rate = len(self._arrived) / (6 * HOUR)
        return FleetState(
            self._capacity, free, self._models, running, [_waiting(unit) for unit in units], recent, rate
        )

    def _compare(self, number: int, now: float) -> None:
        made = self._made.pop(number, None)
        if made is None or made[3] < 0:
            return
        then, earliest, expected, latest, theirs = made
        wait = now - then
        self._made[number] = made[0], 0.0, 0.0, -1.0, 0.0
        self.count = getattr(self, "count", 0) + 1
        if self.count > WARM_UP:
            # Starts are only seen at events: a second decides nothing.
            self.judged.inside.append(earliest - 1 <= wait <= latest + 1)
            self.judged.errors.append(abs(wait - expected))
            self.judged.baseline.append(abs(wait - theirs))
            self.judged.widths.append(latest - earliest)


def judge(
    nodes: list[CandidateNode], units: list[Unit], scenario: Scenario, until: float, every_s: float
) -> Judged:
    """Run the units and return how good the estimates were."""
    run = Simulation(nodes, units, scenario, until)
    found = Judge(run, nodes, every_s)
    run.run()
    return found.judged


def measure() -> Iterable[Result]:
    load = generate.Load(days=4, load=0.9, mean_hours=2.0, workloads=60)
    nodes = generate.nodes(8)
    yield from judge(nodes, generate.units(64, load, 1), Scenario(), 4 * DAY, 300.0).results("synthetic")
    folder = os.environ.get("GPUFLEET_OPENB")
    if folder:
        yield from _openb(Path(folder))
    else:
        yield Result("openb", 0, "", note="not measured: set GPUFLEET_OPENB to the folder of the trace")
    yield from _large()


def openb(folder: Path, gpus: int) -> tuple[list[CandidateNode], list[Unit], float]:
    """Return a part of the nodes with about so many GPUs, the tasks of the busy last weeks and their end."""
    with (folder / "nodes.csv").open() as nodes_file, (folder / "pods_default.csv").open() as pods_file:
        nodes, units = read_nodes(nodes_file), read_timed_tasks(pods_file)
    with_gpus = [node for node in nodes if len(node.gpus) == 8]
    step = len(with_gpus) * 8 // gpus
    late = [unit for unit in units if unit.arrives > 10_000_000]
    until = max(unit.arrives for unit in late)
    bare = [replace(unit, request=replace(unit.request, models=frozenset())) for unit in late]
    return with_gpus[::step], bare, until


def _openb(folder: Path) -> Iterator[Result]:
    nodes, units, until = openb(folder, 56)
    yield from judge(nodes, units, Scenario(), until, 60.0).results("openb, contended")
    with (folder / "pods_default.csv").open() as file:
        recorded = [line.rstrip("\n").split(",") for line in file][1:]
    yield from _recorded(recorded).results("openb, recorded starts")


def _recorded(rows: list[list[str]]) -> Judged:
    """Judge the recorded starts: nothing waited for GPUs there, so only earlier delays can be known."""
    judged, calibration = Judged(), Calibration()
    events = sorted((float(row[8]), float(row[10]), row[0]) for row in rows if row[10] and int(row[3]))
    raw = Raw(10.0, 1.0)
    pending: list[tuple[float, str]] = []
    waits: deque[tuple[float, float]] = deque()
    for at, (created, scheduled, name) in enumerate(events):
        for start, other in sorted(each for each in pending if each[0] <= created):
            calibration.started(other, start)
        pending = [each for each in pending if each[0] > created]
        while waits and waits[0][0] < created - HOUR:
            waits.popleft()
        known = [wait for start, wait in waits if start <= created]
        low, middle, high = calibration.quantiles(created)
        wait = scheduled - created
        if at > WARM_UP:
            judged.inside.append(raw.at(low) - 1 <= wait <= raw.at(high) + 1)
            judged.errors.append(abs(wait - raw.at(middle)))
            judged.baseline.append(abs(wait - (statistics.fmean(known) if known else 0.0)))
            judged.widths.append(raw.at(high) - raw.at(low))
        calibration.estimated(name, raw, created)
        pending.append((scheduled, name))
        waits.append((scheduled, wait))
    return judged


def _large() -> Iterator[Result]:
    """Time estimates on 12,500 full nodes with 300 waiting units."""
    rng = random.Random(1)
    estimates = StartEstimates()
    jobs = [Job(f"job-{at}", f"team-{at % 20}", rng.choice([1.0, 2.0, 4.0, 8.0])) for at in range(400)]
    for job in jobs:
        for _ in range(20):
            estimates.run_times.observe(job, rng.lognormvariate(9, 1))
    running = []
    for node in range(12_500):
        left = 8
        while left:
            job = rng.choice([job for job in jobs if job.gpus <= left])
            running.append(RunningUnit(job, rng.uniform(0, 20_000), ((node, int(job.gpus) * 1000),)))
            left -= int(job.gpus)
    waiting = [
        WaitingUnit(f"w{at}", job := rng.choice(jobs), int(job.gpus) * 1000, rng.choice([1, 1, 1, 4]))
        for at in range(300)
    ]
    state = FleetState([8000] * 12_500, [0] * 12_500, ["H100"] * 12_500, running, waiting, waiting, 0.05)
    started = time.process_time()
    estimates.refresh(state, 0.0)
    refreshed = time.process_time() - started
    started = time.perf_counter()
    for unit in waiting:
        assert estimates.of(unit.key, 0.0) is not None
    one = (time.perf_counter() - started) / len(waiting)
    probe = WaitingUnit("what-if", Job(gpus=8.0), 8000)
    started = time.perf_counter()
    found = estimates.hypothetical(probe, 0.0)
    what_if = time.perf_counter() - started
    assert found.expected is not None
    note = f"{len(running):,} running and {len(waiting)} waiting units"
    yield Result("estimate of one waiting unit, 12,500 nodes", one * 1000, "ms", at_most=50, note=note)
    yield Result("estimate of a hypothetical unit, 12,500 nodes", what_if * 1000, "ms", at_most=50)
    yield Result("refresh of all estimates, 12,500 nodes", refreshed, "s CPU", at_most=3)


def _job(unit: Unit) -> Job:
    return Job(unit.workload, unit.owner or unit.queue, unit.gpu_milli / 1000, unit.declared)


def _waiting(unit: Unit) -> WaitingUnit:
    return WaitingUnit(
        str(unit.number), _job(unit), unit.request.gpu_milli, unit.members, unit.request.models, unit.priority
    )
