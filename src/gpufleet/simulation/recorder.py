"""Measure a simulation while it runs."""

import time
from collections.abc import Sequence

from gpufleet.placement import CandidateNode, Demand
from gpufleet.placement.request import WHOLE
from gpufleet.placement.usability import fgd
from gpufleet.simulation.fleet import Fleet, Running
from gpufleet.simulation.outcome import Outcome, Sample
from gpufleet.simulation.scenario import Scenario
from gpufleet.simulation.unit import Unit

SAMPLES = 240
"""Times at which allocation, fragmentation and queue length are recorded."""


class Recorder:
    """Collects the figures of one run."""

    def __init__(
        self,
        nodes: Sequence[CandidateNode],
        scenario: Scenario,
        fleet: Fleet,
        demand: Demand,
        begin: float,
        end: float,
    ) -> None:
        gpus = sum(len(node.gpus) for node in nodes)
        self._outcome = Outcome(scenario.name, scenario.seed, len(nodes), gpus, begin, end)
        self._prices = {node.name: _price(scenario, node) for node in nodes}
        hours = (end - begin) / 3600
        self._outcome.capacity_cost = sum(len(node.gpus) * hours * self._prices[node.name] for node in nodes)
        self._fleet = fleet
        self._score = fgd(demand)
        self._milli = 0
        self._begin, self._end = begin, end
        self._step = (end - begin) / SAMPLES
        self._next = begin + self._step
        self._started_at: set[int] = set()
        self._clock = time.perf_counter()

    def advance(self, now: float, waiting: int) -> None:
        """Record the samples up to `now`; call it before anything changes."""
        while self._next <= now and len(self._outcome.samples) < SAMPLES:
            capacity = max(self._outcome.gpus * WHOLE, 1)
            states, population = self._fleet.inventory.population()
            lost = float(self._score.loss(self._fleet.inventory.states.nodes(states)) @ population)
            fragmented = 100.0 * max(lost, 0.0) / capacity
            self._outcome.samples.append(
                Sample(self._next, 100.0 * self._milli / capacity, fragmented, waiting)
            )
            self._next += self._step

    def absent(self, absences: Sequence[tuple[str, float, float]]) -> None:
        """Count the GPU hours of nodes that are not there."""
        for node, start, end in absences:
            gpus = len(self._fleet.inventory.nodes[node].gpus)
            seconds = max(min(end, self._end) - max(start, self._begin), 0.0)
            self._outcome.absent_gpu_hours += gpus * seconds / 3600

    def arrived(self, unit: Unit) -> None:
        """Count an arrival."""
        self._outcome.arrived += 1

    def impossible(self) -> None:
        """Count a unit that no node could ever take."""
        self._outcome.impossible += 1

    def gave_up(self, unit: Unit) -> None:
        """Count a unit that is deleted while it waits."""
        self._outcome.gave_up += unit.number not in self._started_at

    def allocated(self, unit: Unit, sign: int) -> None:
        """Count GPUs that a unit gets (1) or leaves (-1)."""
        self._milli += sign * unit.gpu_milli

    def started(self, running: Running) -> None:
        """Record the wait of a unit that starts for the first time."""
        unit = running.unit
        if unit.number not in self._started_at:
            self._started_at.add(unit.number)
            self._outcome.started += 1
            self._outcome.waits.setdefault((unit.queue, unit.size), []).append(running.started - unit.arrives)

    def completed(self, running: Running, now: float) -> None:
        """Count a unit that ran to its end."""
        self._outcome.completed += 1
        self._use(running, now)

    def interrupted(self, running: Running, now: float, preempted: bool) -> None:
        """Count a unit that was preempted or whose node failed."""
        if preempted:
            self._outcome.preemptions += 1
        else:
            self._outcome.failures += 1
        self._outcome.lost_gpu_hours += self._use(running, now)

    def finish(self, waiting: Sequence[Unit]) -> Outcome:
        """Return the outcome with what still runs and waits."""
        outcome = self._outcome
        for running in (*self._fleet.running.values(), *self._fleet.terminating.values()):
            self._use(running, self._end)
        for unit in waiting:
            if unit.number not in self._started_at:
                outcome.unstarted.setdefault((unit.queue, unit.size), []).append(self._end - unit.arrives)
        outcome.seconds = time.perf_counter() - self._clock
        return outcome

    def _use(self, running: Running, now: float) -> float:
        hours = max(now - running.started, 0.0) / 3600
        unit, outcome = running.unit, self._outcome
        used = hours * unit.gpu_milli / WHOLE
        outcome.allocated_gpu_hours += used
        outcome.use[unit.queue] = outcome.use.get(unit.queue, 0.0) + used
        outcome.cost += sum(
            hours * unit.request.gpu_milli / WHOLE * self._prices[fits.node] for fits in running.places
        )
        return used


def _price(scenario: Scenario, node: CandidateNode) -> float:
    model = node.gpus[0].model if node.gpus else ""
    return scenario.prices.get(model, scenario.prices.get("", 0.0))
