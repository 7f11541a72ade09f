"""The simulation starts units when the scheduler's planner does, and on the same nodes."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from random import Random

import pytest
from tests.scheduler import simulation as planner
from tests.scheduler.queue_simulation import GRACE, QueueSimulation

from gpufleet.kubernetes.objects import Pod
from gpufleet.placement import CandidateGpu, CandidateNode, Fits, Request
from gpufleet.scheduler.queues.expected_order import order_of_quotas
from gpufleet.simulation.engine import Simulation
from gpufleet.simulation.scenario import RULES, Scenario
from gpufleet.simulation.unit import Unit

NODES = {"a": 4, "b": 4, "c": 4}
LARGER = {f"node-{at}": 4 for at in range(8)}
WEIGHTS = {"students": 1, "production": 2, "research": 4}
GUARANTEES = {"students": 8, "production": 8, "research": 4}
NAMES = dict(zip("abc", WEIGHTS, strict=True))
HOURS = 8

LONG = partial(pytest.param, marks=pytest.mark.long)

Run = tuple[float, list[str]]
"""The start of a unit, and its nodes."""


def mix(seed: int, declaring: float, minutes: int = 30, most: int = 2) -> list[planner.Unit]:
    """Return up to `most` units that arrive in each minute."""
    chance, mixed = Random(seed), []
    for minute in range(minutes):
        for _ in range(chance.randint(0, most)):
            runtime = 60 * chance.randint(5, 20)
            declared = int(runtime * chance.choice((1, 1.5, 2))) if chance.random() < declaring else None
            size, gpus = chance.choice(((2, 1), (2, 2), *((1, 1),) * 6, *((1, 2),) * 3, (1, 4), (1, 4)))
            mixed.append(planner.Unit(60 * minute, gpus, runtime, size, declared))
    return mixed


def apart(mixed: Iterable[planner.Unit]) -> list[planner.Unit]:
    """Let no two units arrive in the same second: the planner looks at each pod as soon as it arrives."""
    last, found = -1, []
    for unit in mixed:
        last = max(last + 1, unit.arrives)
        found.append(replace(unit, arrives=last))
    return found


def queued(seed: int, minutes: int = 60 * HOURS) -> list[planner.Unit]:
    """Return units of three queues."""
    chance = Random(seed + 100)
    units = (replace(unit, namespace=chance.choice("abc")) for unit in mix(seed, 0.5, minutes, 3))
    return apart(replace(unit, namespace=NAMES[unit.namespace]) for unit in units)


def planned_starts(
    mixed: list[planner.Unit], reservations: int, nodes: Mapping[str, int] = NODES
) -> dict[int, float]:
    real = planner.Simulation(dict(nodes), {"reservations": reservations})
    real.run(mixed)
    return real.started


@dataclass
class Recorded(QueueSimulation):
    """Records when and where each pod has run; units that were evicted come back as new ones."""

    runs: dict[int, list[tuple[Pod, str, float]]] = field(default_factory=dict)
    ended: dict[str, float] = field(default_factory=dict)

    def run(self, units: Iterable[planner.Unit]) -> None:
        """Let these units arrive and run to their ends."""
        coming = sorted(units, key=lambda unit: unit.arrives, reverse=True)
        while coming or self.ends:
            then = min([*self.ends.values(), *(unit.arrives for unit in coming[-1:])])
            arriving = []
            while coming and coming[-1].arrives <= then:
                arriving.append(coming.pop())
            self.step(arriving, then)

    def first(self, number: int) -> int:
        """Return the number with which a unit has arrived first."""
        return self.first_runs.get(number, number)

    def of_units(self) -> dict[int, list[Run]]:
        """Return the runs of each unit, numbered by arrival."""
        arrived = [number for number in range(len(self.units)) if number not in self.first_runs]
        place = {number: at for at, number in enumerate(arrived)}
        found: dict[int, list[Run]] = {}
        for number, pods in self.runs.items():
            start = min(start for _, _, start in pods)
            found.setdefault(place[self.first(number)], []).append(
                (start, sorted(node for _, node, _ in pods))
            )
        return {number: sorted(runs) for number, runs in found.items()}

    def _bind(self, pod: Pod, fits: Fits) -> None:
        super()._bind(pod, fits)
        self.runs.setdefault(planner.number_of(pod), []).append((pod, fits.node, self.now))

    def _end(self, uid: str) -> None:
        super()._end(uid)
        self.ended[uid] = self.now


def planned_queues(mixed: list[planner.Unit], guarantees: Mapping[str, int]) -> Recorded:
    queues = {
        name: {"weight": weight} | ({"guaranteed": {"gpus": guarantees[name]}} if name in guarantees else {})
        for name, weight in WEIGHTS.items()
    }
    real = Recorded(dict(LARGER), {"reservations": 4}, queues=queues)
    real.run(mixed)
    return real


def simulated_runs(
    mixed: list[planner.Unit], scenario: Scenario, nodes: Mapping[str, int]
) -> tuple[dict[int, list[Run]], int]:
    """Return the runs of each unit, and how many were evicted."""
    fleet = [
        CandidateNode(name, tuple(CandidateGpu(at) for at in range(gpus))) for name, gpus in nodes.items()
    ]
    units = [
        Unit(
            number,
            Request(count=unit.gpus),
            unit.arrives,
            unit.runtime,
            unit.size,
            declared=unit.declared,
            queue=unit.namespace,
        )
        for number, unit in enumerate(mixed)
    ]
    run = Simulation(fleet, units, scenario, until=1e6)
    runs: dict[int, list[Run]] = {}

    def observe(now: float) -> None:
        for number, running in run.fleet.running.items():
            known = runs.setdefault(number, [])
            if not known or known[-1][0] != running.started:
                known.append((running.started, sorted(fits.node for fits in running.places)))

    run.observe = observe
    return runs, run.run().preemptions


def simulated_starts(mixed: list[planner.Unit], reservations: int) -> dict[int, float]:
    rules = RULES["default"] if reservations else RULES["priority"]
    runs, _ = simulated_runs(mixed, Scenario(rules=rules, policy="learned"), NODES)
    return {number: start for number, [(start, _)] in runs.items()}


def mean_wait(mixed: list[planner.Unit], runs: Mapping[int, list[Run]]) -> float:
    return sum(runs[number][0][0] - unit.arrives for number, unit in enumerate(mixed)) / len(mixed)


@pytest.mark.parametrize("declaring", [0.0, 0.5, 1.0])
def test_without_reservations_units_start_exactly_when_the_planner_starts_them(declaring: float) -> None:
    for seed in range(4):
        mixed = mix(seed, declaring)
        assert simulated_starts(mixed, 0) == planned_starts(mixed, 0)


@pytest.mark.parametrize("declaring", [0.0, 0.5, 1.0])
def test_with_reservations_nearly_all_units_start_when_the_planner_starts_them(declaring: float) -> None:
    planned = simulated = units = same = 0.0
    for seed in range(12):
        mixed = apart(mix(seed, declaring))
        expected, found = planned_starts(mixed, 4), simulated_starts(mixed, 4)
        planned += sum(start - mixed[number].arrives for number, start in expected.items())
        simulated += sum(start - mixed[number].arrives for number, start in found.items())
        same += sum(expected[number] == found[number] for number in expected)
        units += len(expected)
    assert same > 0.98 * units
    assert simulated == pytest.approx(planned, rel=0.02)


@pytest.mark.parametrize("seed", [0, 1, LONG(2), LONG(3)])
def test_units_of_weighted_queues_start_when_and_where_the_planner_starts_them(seed: int) -> None:
    mixed = queued(seed)
    scenario = Scenario(policy="learned", queues=order_of_quotas(WEIGHTS, {}, {}))
    runs, preemptions = simulated_runs(mixed, scenario, LARGER)
    assert runs == planned_queues(mixed, {}).of_units()
    assert not preemptions


@pytest.mark.parametrize("seed", [0, 1, LONG(2), LONG(4)])
def test_with_guarantees_units_start_and_are_evicted_when_and_where_the_planner_does_it(seed: int) -> None:
    runs, preemptions = guaranteed_runs(seed)
    expected = planned_queues(queued(seed), GUARANTEES).of_units()
    assert runs == expected
    assert preemptions == sum(len(each) - 1 for each in expected.values()) > 20


def test_where_units_start_in_the_same_second_the_mean_wait_is_that_of_the_planner() -> None:
    """Which of them is evicted first is decided by UIDs, which are random."""
    mixed, (runs, _) = queued(3), guaranteed_runs(3)
    expected = planned_queues(mixed, GUARANTEES).of_units()
    assert mean_wait(mixed, runs) == pytest.approx(mean_wait(mixed, expected), rel=0.1)
    same = next(at for at, number in enumerate(sorted(runs)) if runs[number] != expected[number])
    assert same > 300


def guaranteed_runs(seed: int) -> tuple[dict[int, list[Run]], int]:
    queues = order_of_quotas(WEIGHTS, {}, GUARANTEES)
    return simulated_runs(queued(seed), Scenario(policy="learned", queues=queues, grace_s=GRACE), LARGER)
