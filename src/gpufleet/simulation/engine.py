"""Run units on a simulated fleet from event to event.

A cycle walks the queue in order, as the scheduler's planner does: a unit that fits starts; one that does not
fit preempts others, or gets a reservation, or waits. Placement is the scheduler's own code. With `cycle_s`
units start only at multiples of it, which makes large fleets faster to simulate.
"""

import math
import random
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush

from gpufleet.placement import CandidateNode, Demand
from gpufleet.placement.request import WHOLE
from gpufleet.simulation.fleet import Fleet, Running
from gpufleet.simulation.outcome import Outcome
from gpufleet.simulation.recorder import Recorder
from gpufleet.simulation.reservations import Reservations
from gpufleet.simulation.scenario import Scenario
from gpufleet.simulation.shares import DecayedShares, NoShares, Shares
from gpufleet.simulation.unit import Unit
from gpufleet.simulation.waiting_units import Group, Order, WaitingUnits, Walk

_FOREVER = float("inf")

_MOST_PREEMPTIONS = 64
"""Units for which victims are sought in one cycle."""

Progress = Callable[[float], None]
"""Is told the share of the simulated time that is done."""


class Simulation:
    """One run of a scenario; `observe` is called after each cycle with the time."""

    def __init__(
        self,
        nodes: Sequence[CandidateNode],
        units: Iterable[Unit],
        scenario: Scenario,
        until: float,
        absences: Iterable[tuple[str, float, float]] = (),
    ) -> None:
        """`absences` are nodes and the times between which they are not there."""
        self._coming = sorted(units, key=lambda unit: (unit.arrives, unit.number), reverse=True)
        self._scenario = scenario
        self._until = until
        self._rng = random.Random(scenario.seed)  # noqa: S311 (a simulation, no secret)
        demand = Demand.of_requests(unit.request for unit in self._coming)
        self.fleet = Fleet(nodes, scenario.policy, demand, self._rng)
        self.shares: Shares = (
            DecayedShares(scenario.weights, scenario.half_life_s) if scenario.weights else NoShares()
        )
        self.waiting = WaitingUnits(self.shares, scenario.rules.priorities)
        self._reservations = Reservations(self.fleet, scenario.rules.reservations)
        self._ends: list[tuple[float, int, float]] = []
        """When units end, by time, number and start: a unit that was preempted has another start."""
        self._leaving: list[tuple[float, int, Unit]] = []
        self._nodes = sorted(node.name for node in nodes)
        self._node_events: list[tuple[float, int, str]] = []
        """Failures (0) and repairs (1)."""
        self._used: dict[str, float] = {}
        self._freed = False
        self._fresh: list[Unit] = []
        self._refused: set[object] = set()
        """What does not fit since GPUs last became free: request, members and the reservations to ignore."""
        self.now = self._coming[-1].arrives if self._coming else 0.0
        self._recorder = Recorder(nodes, scenario, self.fleet, demand, self.now, until)
        self.observe: Callable[[float], None] = lambda now: None
        absent = list(absences)
        for node, start, end in absent:
            heappush(self._node_events, (max(start, self.now), 0, node))
            heappush(self._node_events, (end, 1, node))
        self._absent = {(max(start, self.now), node) for node, start, _ in absent}
        self._recorder.absent(absent)
        self._next_failure()

    def run(self, progress: Progress = lambda share: None) -> Outcome:
        """Run to the end and return what was measured."""
        begin, step = self.now, 0.0
        while (event := self._next_event()) < self._until:
            planned = self._planning_time(event)
            self._advance(min(planned, self._until))
            if planned >= self._until:
                break
            self._plan()
            self.observe(self.now)
            done = (self.now - begin) / (self._until - begin)
            if done >= step:
                progress(done)
                step = done + 0.01
        self._advance(self._until)
        progress(1.0)
        return self._recorder.finish(self.waiting.all(self._until))

    # -- time ------------------------------------------------------------------------------

    def _next_event(self) -> float:
        heads = (events[0][0] for events in (self._ends, self._leaving, self._node_events) if events)
        return min(self._coming[-1].arrives if self._coming else _FOREVER, *heads, _FOREVER)

    def _planning_time(self, event: float) -> float:
        cycle = self._scenario.cycle_s
        return math.ceil(event / cycle) * cycle if cycle else event

    def _advance(self, to: float) -> None:
        """Let everything happen until `to`."""
        while True:
            ends = self._ends[0][0] if self._ends else _FOREVER
            arrives = self._coming[-1].arrives if self._coming else _FOREVER
            leaves = self._leaving[0][0] if self._leaving else _FOREVER
            fails = self._node_events[0][0] if self._node_events else _FOREVER
            event = min(ends, arrives, leaves, fails)
            if event > to:
                break
            self.now = event
            self._recorder.advance(event, len(self.waiting))
            if event == ends:
                _, number, started = heappop(self._ends)
                running = self.fleet.running.get(number)
                if running is not None and running.started == started:
                    self._stop(number)
                    self._recorder.completed(running, event)
            elif event == fails:
                self._node_event(heappop(self._node_events))
            elif event == arrives:
                self._arrive(self._coming.pop())
            else:
                _, _, unit = heappop(self._leaving)
                if self.waiting.remove(unit):
                    self._reservations.drop(unit.number)
                    self._recorder.gave_up(unit)
                    self._freed = True
        self.now = to
        self._recorder.advance(to, len(self.waiting))

    def _arrive(self, unit: Unit) -> None:
        self._recorder.arrived(unit)
        if not self.fleet.is_possible(unit):
            self._recorder.impossible()
            return
        self.waiting.put(unit)
        if unit.leaves_at is not None:
            heappush(self._leaving, (unit.leaves_at, unit.number, unit))
        self._fresh.append(unit)

    def _stop(self, number: int) -> Running:
        running = self.fleet.end(number)
        self._count(running.unit, -1)
        self._freed = True
        return running

    def _count(self, unit: Unit, sign: int) -> None:
        gpus = sign * unit.gpu_milli / WHOLE
        self._used[unit.queue] = self._used.get(unit.queue, 0.0) + gpus
        self.shares.changed(unit.queue, gpus, self.now)
        self._recorder.allocated(unit, sign)

    # -- failures --------------------------------------------------------------------------

    def _next_failure(self) -> None:
        mtbf = self._scenario.node_mtbf_s
        if mtbf and self._nodes:
            after = self._rng.expovariate(len(self._nodes) / mtbf)
            heappush(self._node_events, (self.now + after, 0, self._rng.choice(self._nodes)))

    def _node_event(self, event: tuple[float, int, str]) -> None:
        _, repaired, node = event
        self._freed = True
        if repaired:
            self.fleet.repair(node)
            return
        planned = (event[0], node) in self._absent
        if not planned:
            self._next_failure()
        if not self.fleet.inventory.nodes[node].ready:
            return
        for running in self.fleet.fail(node):
            self._count(running.unit, -1)
            self._recorder.interrupted(running, self.now, preempted=False)
            self.waiting.put(running.unit)
        if not planned:
            heappush(self._node_events, (self.now + self._scenario.repair_s, 1, node))

    # -- planning --------------------------------------------------------------------------

    def _plan(self) -> None:
        """Plan the whole queue if GPUs became free, else only the units that are new in it."""
        while self._freed or self._fresh:
            fresh, self._fresh = self._fresh, []
            if self._freed or not self._scenario.rules.backfill:
                self._freed = False
                self._refused.clear()
                self._walk(self.waiting.walk(self.now))
            else:
                new = WaitingUnits(self.shares, self._scenario.rules.priorities)
                for unit in fresh:
                    new.put(unit)
                self._walk(new.walk(self.now))

    def _walk(self, walk: Walk) -> None:
        rules, refused, evicted, tries = self._scenario.rules, self._refused, list[Running](), 0
        for unit, group in walk:
            if self._beyond_limit(unit):
                walk.skip_group()
                continue
            order = self.waiting.order(unit, self.now)
            ignored = self._reservations.ignored(unit, order, self.now) if self._reservations else ()
            key = (group.request, group.members, ignored)
            if key not in refused:
                if self._try(unit, order, ignored):
                    walk.took()
                    continue
                refused.add(key)
            if rules.preempt and tries < _MOST_PREEMPTIONS and self._worth_preempting(unit, key):
                tries += 1
                if (victims := self._preempt(unit, order, ignored)) is not None:
                    walk.took()
                    evicted.extend(victims)
                    refused.clear()
                    continue
                refused.add((unit.priority, *key))
            if not rules.backfill:
                break
            if rules.reservations:
                self._reservations.reserve(unit, order, self.now)
                self._note_lifted()
            if self._nothing_behind(group, order):
                walk.skip_group()
        for running in evicted:
            self.waiting.put(running.unit)
            self._fresh.append(running.unit)

    def _note_lifted(self) -> None:
        """Let all units be tried again if a reservation was dropped."""
        if self._reservations.lifted:
            self._reservations.lifted = False
            self._refused.clear()
            self._freed = True

    def _nothing_behind(self, group: Group, order: Order) -> bool:
        """Return whether all other units of the group are refused like this one."""
        if self._scenario.rules.reservations and not self._reservations.full((*order[:3], order[3] + 1)):
            return False
        return not (group.declaring and self._reservations.any_known)

    def _beyond_limit(self, unit: Unit) -> bool:
        limit = self._scenario.limits.get(unit.queue)
        return limit is not None and self._used.get(unit.queue, 0.0) + unit.gpu_milli / WHOLE > limit

    def _worth_preempting(self, unit: Unit, key: tuple[object, ...]) -> bool:
        return unit.priority > self.fleet.lowest_priority() and (unit.priority, *key) not in self._refused

    def _try(self, unit: Unit, order: Order, ignored: tuple[int, ...]) -> bool:
        self._reservations.lift(ignored)
        running = self.fleet.start(unit, self.now)
        self._reservations.apply(ignored)
        if running is None:
            return False
        self._start(running, order)
        return True

    def _preempt(self, unit: Unit, order: Order, ignored: tuple[int, ...]) -> list[Running] | None:
        self._reservations.lift(ignored)
        found = self.fleet.preempt(unit, self.now, own_queue=bool(self._scenario.weights))
        self._reservations.apply(ignored)
        if found is None:
            return None
        running, victims = found
        for victim in victims:
            self._count(victim.unit, -1)
            self._recorder.interrupted(victim, self.now, preempted=True)
        self._start(running, order)
        return victims

    def _start(self, running: Running, order: Order) -> None:
        unit = running.unit
        self.waiting.remove(unit)
        self._reservations.drop(unit.number)
        self._reservations.yielded(order, running.places)
        self._note_lifted()
        self._count(unit, 1)
        self._recorder.started(running, self.now)
        heappush(self._ends, (max(running.ends, self.now), unit.number, running.started))
