"""The simulation starts units when the scheduler's planner does."""

from collections.abc import Mapping
from random import Random

import pytest
from tests.scheduler import simulation as planner

from gpufleet.placement import CandidateGpu, CandidateNode, Request
from gpufleet.simulation.engine import Simulation
from gpufleet.simulation.scenario import RULES, Scenario
from gpufleet.simulation.unit import Unit

NODES = {"a": 4, "b": 4, "c": 4}


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


def planned_starts(
    mixed: list[planner.Unit], reservations: int, nodes: Mapping[str, int] = NODES
) -> dict[int, float]:
    real = planner.Simulation(dict(nodes), {"reservations": reservations})
    real.run(mixed)
    return real.started


def simulated_starts(mixed: list[planner.Unit], reservations: int) -> dict[int, float]:
    nodes = [
        CandidateNode(name, tuple(CandidateGpu(at) for at in range(gpus))) for name, gpus in NODES.items()
    ]
    units = [
        Unit(
            number,
            Request(count=unit.gpus),
            unit.arrives,
            unit.runtime,
            unit.size,
            declared=unit.declared,
        )
        for number, unit in enumerate(mixed)
    ]
    rules = RULES["default"] if reservations else RULES["priority"]
    run = Simulation(nodes, units, Scenario(rules=rules, policy="learned"), until=1e6)
    starts: dict[int, float] = {}

    def observe(now: float) -> None:
        for number, running in run.fleet.running.items():
            starts[number] = running.started

    run.observe = observe
    run.run()
    return starts


@pytest.mark.parametrize("declaring", [0.0, 0.5, 1.0])
def test_without_reservations_units_start_exactly_when_the_planner_starts_them(declaring: float) -> None:
    for seed in range(4):
        mixed = mix(seed, declaring)
        assert simulated_starts(mixed, 0) == planned_starts(mixed, 0)


@pytest.mark.parametrize("declaring", [0.0, 0.5, 1.0])
def test_with_reservations_the_mean_wait_is_that_of_the_planner(declaring: float) -> None:
    """Placement breaks ties otherwise for gangs, so that single units differ."""
    planned = simulated = 0.0
    for seed in range(12):
        mixed = mix(seed, declaring)
        planned += sum(start - mixed[number].arrives for number, start in planned_starts(mixed, 4).items())
        found = simulated_starts(mixed, 4)
        simulated += sum(start - mixed[number].arrives for number, start in found.items())
    assert simulated == pytest.approx(planned, rel=0.08)
