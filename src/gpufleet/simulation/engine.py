"""Run units on a simulated fleet from event to event.

A cycle walks the queue in order, as the scheduler's planner does: a unit that fits starts; one that does not
fit preempts others, or gets a reservation, or waits. Placement and the rules of GpuQueues are the scheduler's own
code. With `cycle_s` units start only at multiples of it, which makes large fleets faster to simulate.
"""

import math
import random
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from heapq import heappop, heappush

from gpufleet.placement import CandidateNode, Demand
from gpufleet.simulation.fleet import Fleet, Running, Targets
from gpufleet.simulation.outcome import Outcome
from gpufleet.simulation.queues import Held, Rank
from gpufleet.simulation.recorder import Recorder
from gpufleet.simulation.reservations import Reservations
from gpufleet.simulation.scenario import Scenario
from gpufleet.simulation.unit import Unit
from gpufleet.simulation.waiting_units import Group, Order, WaitingUnits, Walk

_FOREVER = float("inf")

_UNRANKED: Rank = (3.0, 0.0)
"""The rank of a unit that has arrived since the last cycle: behind all others."""

_FEW_WAITING = 50
_RANK_S = 60.0
"""With more units in the queue the order between queues is computed only after so many seconds, times their multiple."""

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
    ) -> None:
        """`absences` are nodes and the times between which they are not there; it begins with the first arrival by default."""
        self._coming = sorted(units, key=lambda unit: (unit.arrives, unit.number), reverse=True)
        self._scenario = scenario
        self._until = until
        self._rng = random.Random(scenario.seed)  # noqa: S311 (a simulation, no secret)
        demand = Demand.of_requests(unit.request for unit in self._coming)
        self.fleet = Fleet(nodes, scenario.policy, demand, self._rng)
        self.queues = scenario.queues.copy() if scenario.queues is not None else None
        self.waiting = WaitingUnits(self._rank, scenario.rules.priorities)
        self._reservations = Reservations(self.fleet, scenario.rules.reservations)
        self._ends: list[tuple[float, int, float]] = []
        """When units end, by time, number and start: a unit that was preempted has another start."""
        self._leaving: list[tuple[float, int, Unit]] = []
        self._nodes = sorted(node.name for node in nodes)
        self._node_events: list[tuple[float, int, str]] = []
        """Failures (0) and repairs (1)."""
        self._models = {node.name: node.gpus[0].model if node.gpus else "" for node in nodes}
        self._used: dict[str, Counter[str]] = {}
        self._ranks: dict[int, Rank] = {}
        self._last_ranks: dict[str, Rank] = {}
        """The rank of the last waiting unit of each queue."""
        self._rank_due = -_FOREVER
        self._freed = False
        self._fresh: list[Unit] = []
        self._refused: set[object] = set()
        """What does not fit since GPUs last became free: request, members and the reservations to ignore."""
        first = self._coming[-1].arrives if self._coming else 0.0
        self.now = first if begin is None else begin
        self._used_until = self.now
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
        return self._recorder.finish(self.waiting.all())

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
        self._count(running, -1)
        self._freed = True
        return running

    def _count(self, running: Running, sign: int) -> None:
        """Count the GPUs that a unit gets (1) or leaves (-1)."""
        if self.queues is not None:
            self._count_use()
            used = self._used.setdefault(running.unit.queue, Counter())
            for model, milli in self._gpus(running).items():
                used[model] += sign * milli
        self._recorder.allocated(running.unit, sign)

    def _count_use(self) -> None:
        """Count what queues have used until now."""
        if self.queues is not None and self.now > self._used_until:
            self.queues.advance(self._used, self.now - self._used_until)
            self._used_until = self.now

    def _gpus(self, running: Running) -> Counter[str]:
        found: Counter[str] = Counter()
        for fits in running.places:
            found[self._models[fits.node]] += running.unit.request.gpu_milli
        return found

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
            self._count(running, -1)
            self._recorder.interrupted(running, self.now, preempted=False)
            self.waiting.put(running.unit)
        if not planned:
            heappush(self._node_events, (self.now + self._scenario.repair_s, 1, node))

    # -- planning --------------------------------------------------------------------------

    def _plan(self) -> None:
        """Plan the whole queue if GPUs became free, else only the units that are new in it."""
        while self._freed or self._fresh:
            fresh, self._fresh = self._fresh, []
            self._rank_units(fresh)
            if self._freed or not self._scenario.rules.backfill:
                self._freed = False
                self._refused.clear()
                self._walk(self.waiting.walk())
            else:
                new = WaitingUnits(self._rank, self._scenario.rules.priorities)
                for unit in fresh:
                    new.put(unit)
                self._walk(new.walk())

    def _rank(self, unit: Unit) -> Rank:
        """Return the place of a unit between queues; all are equal without queues."""
        return self._ranks.get(unit.number, _UNRANKED) if self.queues is not None else ()

    def _rank_units(self, fresh: Sequence[Unit]) -> None:
        """Compute the order between queues, or in a long queue only that of new units, if it is not due."""
        if self.queues is None:
            return
        self._count_use()
        if self.now < self._rank_due:
            for unit in fresh:
                self._rank_last(unit)
            return
        waiting = {
            queue: [(str(unit.number), unit.gpu_milli) for unit in units]
            for queue, units in self.waiting.by_queue().items()
        }
        self._ranks = {int(key): rank for key, rank in self.queues.ranks(self._used, waiting).items()}
        self._last_ranks = {queue: self._ranks[int(units[-1][0])] for queue, units in waiting.items()}
        self._reservations.reorder(self.waiting.order)
        times = len(self.waiting) // _FEW_WAITING
        self._rank_due = self.now + _RANK_S * times if times else -_FOREVER

    def _rank_last(self, unit: Unit) -> None:
        """Give a new unit the rank behind all others of its queue, as the planner does."""
        assert self.queues is not None
        key, queue = str(unit.number), unit.queue
        rank = self.queues.ranks(self._used, {queue: [(key, unit.gpu_milli)]})[key]
        self._ranks[unit.number] = self._last_ranks[queue] = max(rank, self._last_ranks.get(queue, rank))

    def _walk(self, walk: Walk) -> None:
        rules, refused, evicted, tries = self._scenario.rules, self._refused, list[Running](), 0
        for unit, group in walk:
            if self._beyond_limit(unit):
                walk.skip_group()
                continue
            order = self.waiting.order(unit)
            ignored = self._reservations.ignored(unit, order, self.now) if self._reservations else ()
            key = (group.request, group.members, ignored)
            if key not in refused:
                if self._try(unit, order, ignored):
                    walk.took()
                    continue
                refused.add(key)
            victims = None
            for targets in self._targets(unit, key) if rules.preempt and tries < _MOST_PREEMPTIONS else ():
                tries += 1
                victims = self._preempt(unit, order, ignored, targets)
                if victims is not None:
                    break
                refused.add((targets.key, *key))
            if victims is not None:
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
        if self._scenario.rules.reservations and not self._reservations.full((*order[:-1], order[-1] + 1)):
            return False
        return not (group.declaring and self._reservations.any_known)

    def _beyond_limit(self, unit: Unit) -> bool:
        return self.queues is not None and self.queues.limited(unit.queue, self._used, unit.gpu_milli)

    def _targets(self, unit: Unit, key: tuple[object, ...]) -> Iterator[Targets]:
        """Yield the groups of units that may be evicted for a unit and were not refused to an equal one."""
        reclaim: object = ("reclaim", unit.queue)
        if (reclaim, *key) not in self._refused and (borrowed := self._borrowed(unit)):
            yield self.fleet.youngest_of(borrowed, reclaim)
        if unit.priority > self.fleet.lowest_priority():
            lower = self.fleet.lower_priorities(unit, own_queue=self.queues is not None)
            if (lower.key, *key) not in self._refused:
                yield lower

    def _borrowed(self, unit: Unit) -> list[int]:
        """Return the units on borrowed GPUs that a unit inside the guarantee of its queue may evict."""
        if self.queues is None or not self.queues.entitled(unit.queue, self._used, unit.gpu_milli):
            return []
        held = [
            Held(str(number), each.unit.queue, self._gpus(each), each.started)
            for number, each in self.fleet.running.items()
        ]
        return [int(key) for key in self.queues.reclaimable(unit.queue, self._used, unit.gpu_milli, held)]

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
        found = self.fleet.preempt(unit, self.now, targets)
        self._reservations.apply(ignored)
        if found is None:
            return None
        running, victims = found
        for victim in victims:
            self._count(victim, -1)
            self._recorder.interrupted(victim, self.now, preempted=True)
        self._start(running, order)
        return victims

    def _start(self, running: Running, order: Order) -> None:
        unit = running.unit
        self.waiting.remove(unit)
        self._reservations.drop(unit.number)
        self._reservations.yielded(order, running.places)
        self._note_lifted()
        self._count(running, 1)
        self._recorder.started(running, self.now)
        heappush(self._ends, (max(running.ends, self.now), unit.number, running.started))
