"""Run units on a simulated fleet from event to event.

A cycle walks the queue in order, as the scheduler's planner does: a unit that fits starts; one that does not
fit preempts others, or gets a reservation, or waits. Placement and the rules of GpuQueues are the scheduler's own
code. With `cycle_s` units start only at multiples of it, which makes large fleets faster to simulate.
"""

import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from heapq import heappop, heappush

from gpufleet.placement import CandidateNode, Demand
from gpufleet.simulation.fleet import Fleet, Running, Targets
from gpufleet.simulation.outcome import Outcome
from gpufleet.simulation.queue_use import QueueUse
from gpufleet.simulation.queues import Queues
from gpufleet.simulation.ranking import Ranking
from gpufleet.simulation.recorder import Recorder
from gpufleet.simulation.reservations import Reservations
from gpufleet.simulation.scenario import Scenario
from gpufleet.simulation.unit import Unit
from gpufleet.simulation.waiting_units import Group, Order, WaitingUnits, Walk

_FOREVER = float("inf")

_FAILURE, _REPAIR, _TERMINATED, _QUEUES = range(4)

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
        begin: float | None = None,
        queue_changes: Sequence[tuple[float, Queues | None]] = (),
    ) -> None:
        """`absences` are nodes and the times between which they are not there.

        It begins with the first arrival by default. `queue_changes` have the queues that apply from a time on.
        """
        self._coming = sorted(units, key=lambda unit: (unit.arrives, unit.number), reverse=True)
        self._scenario = scenario
        self._until = until
        self._rng = random.Random(scenario.seed)  # noqa: S311 (a simulation, no secret)
        demand = Demand.of_requests(unit.request for unit in self._coming)
        self.fleet = Fleet(nodes, scenario.policy, demand, self._rng)
        first = self._coming[-1].arrives if self._coming else 0.0
        self.now = first if begin is None else begin
        self._use = QueueUse(scenario.queues, self.fleet, nodes, self.now)
        self._ranking = Ranking(self._use, scenario.rules.priorities)
        self.waiting = self._ranking.waiting
        self._reservations = Reservations(self.fleet, scenario.rules.reservations)
        self._ends: list[tuple[float, int, float]] = []
        """When units end, by time, number and start: a unit that was preempted has another start."""
        self._leaving: list[tuple[float, int, Unit]] = []
        """When waiting units are deleted; a unit that has started since then is not waiting."""
        self._sequence = 0
        """The number of the last event: those of the same moment keep their order."""
        self._nodes = sorted(node.name for node in nodes)
        self._other_events: list[tuple[float, int, int, str]] = []
        """Failures and repairs of nodes, units that have terminated, and changes of queues."""
        self._freed = False
        self._fresh: list[Unit] = []
        self._refused: set[object] = set()
        """What does not fit since GPUs last became free: request, members and the reservations to ignore."""
        self._recorder = Recorder(nodes, scenario, self.fleet, demand, self.now, until)
        self.observe: Callable[[float], None] = lambda now: None
        absent = list(absences)
        for node, start, end in absent:
            self._schedule(max(start, self.now), _FAILURE, node)
            self._schedule(end, _REPAIR, node)
        self._queue_changes = queue_changes
        for at, (start, _) in enumerate(queue_changes):
            self._schedule(start, _QUEUES, str(at))
        self._absent = {(max(start, self.now), node) for node, start, _ in absent}
        self._recorder.absent(absent)
        self._next_failure()

    @property
    def queues(self) -> Queues | None:
        """Return the queues that apply now."""
        return self._use.queues

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
        return self._recorder.finish(self.waiting.all())

    # -- time ------------------------------------------------------------------------------

    def _next_event(self) -> float:
        heads = (events[0][0] for events in (self._ends, self._leaving, self._other_events) if events)
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
            fails = self._other_events[0][0] if self._other_events else _FOREVER
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
                self._other_event(heappop(self._other_events))
            elif event == arrives:
                self._arrive(self._coming.pop())
            else:
                _, _, unit = heappop(self._leaving)
                if self.waiting.remove(unit):
                    self.fleet.withdraw(unit.number)
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
        self._put(unit)

    def _put(self, unit: Unit) -> None:
        """Put a unit into the queue until it starts or is deleted, unless it is deleted already."""
        if unit.leaves_at is not None:
            if unit.leaves_at <= self.now:
                self._recorder.gave_up(unit)
                return
            self._sequence += 1
            heappush(self._leaving, (unit.leaves_at, self._sequence, unit))
        self.waiting.put(unit)
        self._fresh.append(unit)

    def _stop(self, number: int) -> Running:
        running = self.fleet.end(number)
        self._count(running, -1)
        self._freed = True
        return running

    def _count(self, running: Running, sign: int) -> None:
        """Count the GPUs that a unit gets (1) or leaves (-1)."""
        self._use.count(running, sign, self.now)
        self._recorder.allocated(running.unit, sign)

    # -- failures --------------------------------------------------------------------------

    def _next_failure(self) -> None:
        mtbf = self._scenario.node_mtbf_s
        if mtbf and self._nodes:
            after = self._rng.expovariate(len(self._nodes) / mtbf)
            self._schedule(self.now + after, _FAILURE, self._rng.choice(self._nodes))

    def _schedule(self, at: float, kind: int, name: str) -> None:
        self._sequence += 1
        heappush(self._other_events, (at, kind, self._sequence, name))

    def _other_event(self, event: tuple[float, int, int, str]) -> None:
        _, kind, _, node = event
        self._freed = True
        if kind == _TERMINATED:
            self._terminated(int(node))
            return
        if kind == _QUEUES:
            self._use.change(self._queue_changes[int(node)][1], self.now)
            self._ranking.reset(self._reservations)
            return
        if kind == _REPAIR:
            self.fleet.repair(node)
            return
        planned = (event[0], node) in self._absent
        if not planned:
            self._next_failure()
        if not self.fleet.inventory.nodes[node].ready:
            return
        for running in self.fleet.fail(node):
            self._leave(running, preempted=False)
            self._wait_again(running)
        if not planned:
            self._schedule(self.now + self._scenario.repair_s, _REPAIR, node)

    # -- planning --------------------------------------------------------------------------

    def _plan(self) -> None:
        """Plan the whole queue if GPUs became free, else only the units that are new in it."""
        while self._freed or self._fresh:
            self.fleet.just_evicted.clear()
            fresh, self._fresh = self._fresh, []
            fresh += self._ranking.update(fresh, self._reservations, self.now)
            if self._freed or not self._scenario.rules.backfill:
                self._freed = False
                self._refused.clear()
                self._walk(self.waiting.walk())
            else:
                new = WaitingUnits(self._ranking.rank, self._scenario.rules.priorities)
                for unit in fresh:
                    new.put(unit)
                self._walk(new.walk(), partial=True)

    def _walk(self, walk: Walk, *, partial: bool = False) -> None:
        """Start what fits, in order; a `partial` walk ends when all units must be looked at again."""
        rules, refused, evicted, tries = self._scenario.rules, self._refused, list[Running](), 0
        stayed = False
        for unit, group in walk:
            if partial and self._freed:
                break
            if self._use.limited(unit):
                walk.skip_group()
                continue
            order = self.waiting.order(unit)
            ignored = self._reservations.ignored(unit, order, self.now) if self._reservations else ()
            key = (group.request, group.members, ignored)
            if unit.number in self.fleet.nominated:
                if self._try_nominated(unit, order, ignored):
                    walk.took()
                continue
            if key not in refused:
                if stayed and self._freed and self._fits(unit, ignored):
                    break  # what has become free in this walk is for the units ahead first
                if self._try(unit, order, ignored):
                    walk.took()
                    continue
                refused.add(key)
            stayed = True
            victims = None
            for targets in self._targets(unit, key) if rules.preempt and tries < _MOST_PREEMPTIONS else ():
                tries += 1
                victims = self._preempt(unit, order, ignored, targets)
                if victims is not None:
                    break
                refused.add((targets.key, *key))
            if victims is not None:
                if unit.number not in self.fleet.nominated:
                    walk.took()
                evicted.extend(victims)
                refused.clear()
                continue
            if not rules.backfill:
                break
            if rules.reservations:
                self._reservations.reserve(unit, order, self.now)
                self._note_lifted()
            if self._nothing_behind(group, order):
                walk.skip_group()
        for running in evicted:
            self._wait_again(running)

    def _leave(self, running: Running, *, preempted: bool) -> None:
        """Count that an interrupted unit has left its GPUs."""
        self._count(running, -1)
        self._recorder.interrupted(running, self.now, preempted=preempted)

    def _wait_again(self, running: Running) -> None:
        """Put an interrupted unit into the queue: new pods are created for it."""
        self._put(replace(running.unit, arrives=self.now))

    def _terminate(self, running: Running) -> None:
        """Let an evicted unit keep its GPUs until its pods have terminated."""
        until = min(self.now + self._scenario.grace_s, running.ends)
        self.fleet.terminate(running, until)
        self._schedule(until, _TERMINATED, str(running.unit.number))

    def _terminated(self, number: int) -> None:
        running = self.fleet.terminated(number)
        self._leave(running, preempted=True)
        self._wait_again(running)

    def _note_lifted(self) -> None:
        """Let all units be tried again if a reservation was dropped."""
        if self._reservations.lifted:
            self._reservations.lifted = False
            self._refused.clear()
            self._freed = True

    def _nothing_behind(self, group: Group, order: Order) -> bool:
        """Return whether all other units of the group are refused like this one."""
        if self._scenario.rules.reservations and not self._reservations.full((*order[:-1], order[-1] + 1)):
            return False
        return not (group.declared and self._reservations.let_end(self.now + group.declared[0]))

    def _targets(self, unit: Unit, key: tuple[object, ...]) -> Iterator[Targets]:
        """Yield the groups of units that may be evicted for a unit and were not refused to an equal one."""
        reclaim: object = ("reclaim", unit.queue)
        may_reclaim = (reclaim, *key) not in self._refused and self._ranking.is_guaranteed(unit)
        if may_reclaim and (borrowed := self._use.reclaimable(unit, self.now)):
            yield self.fleet.youngest_of(borrowed, reclaim)
        if unit.priority > self.fleet.lowest_priority():
            lower = self.fleet.lower_priorities(unit, own_queue=self._use.queues is not None)
            if (lower.key, *key) not in self._refused:
                yield lower

    def _fits(self, unit: Unit, ignored: tuple[int, ...]) -> bool:
        self._reservations.lift(ignored)
        fits = self.fleet.start(unit, self.now) is not None
        if fits:
            self.fleet.end(unit.number)
        self._reservations.apply(ignored)
        return fits

    def _try(self, unit: Unit, order: Order, ignored: tuple[int, ...]) -> bool:
        self._reservations.lift(ignored)
        running = self.fleet.start(unit, self.now)
        self._reservations.apply(ignored)
        if running is None:
            return False
        self._start(running, order)
        return True

    def _preempt(
        self, unit: Unit, order: Order, ignored: tuple[int, ...], targets: Targets
    ) -> list[Running] | None:
        self._reservations.lift(ignored)
        found = self.fleet.preempt(unit, self.now, targets, self._scenario.grace_s)
        self._reservations.apply(ignored)
        if found is None:
            return None
        running, victims = found
        if running.started > self.now:
            places = self.fleet.nominate(unit.number).places
            self._reservations.drop(unit.number)
            self._reservations.yielded(order, places)
            self._note_lifted()
            for victim in victims:
                self._terminate(victim)
            return []
        for victim in victims:
            self._leave(victim, preempted=True)
        self._start(running, order)
        return victims

    def _try_nominated(self, unit: Unit, order: Order, ignored: tuple[int, ...]) -> bool:
        """Start a unit for which others were evicted: on GPUs that are free sooner, or when they have left."""
        nomination = self.fleet.nominated[unit.number]
        if nomination.ready_at <= self.now:
            self._start(self.fleet.start_nominated(unit, self.now), order)
            return True
        self.fleet.uncover(nomination)
        if self._try(unit, order, ignored):
            del self.fleet.nominated[unit.number]
            return True
        self.fleet.keep(nomination)
        return False

    def _start(self, running: Running, order: Order) -> None:
        unit = running.unit
        self.waiting.remove(unit)
        self._reservations.drop(unit.number)
        self._reservations.yielded(order, running.places)
        self._note_lifted()
        self._count(running, 1)
        self._recorder.started(running)
        heappush(self._ends, (max(running.ends, self.now), unit.number, running.started))
