"""Properties of the planner on random workloads: how long units wait, and what reservations cost."""

import os
from random import Random
from statistics import fmean

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.scheduler.simulation import Simulation, Unit

SEEDS = int(os.environ.get("GPUFLEET_SEEDS", "8"))
"""Mixes of which the mean utilization is compared."""


@st.composite
def units(draw: st.DrawFn) -> Unit:
    """Draw a pod or a gang that fits on eight GPUs; it may declare no run time, or a longer one."""
    size, gpus = draw(st.sampled_from(((1, 1), (1, 1), (1, 2), (1, 4), (2, 2), (2, 4), (3, 2), (5, 1))))
    runtime = draw(st.sampled_from((1, 5, 10, 20, 100)))
    declared = draw(st.sampled_from((runtime, runtime, 2 * runtime, None)))
    return Unit(draw(st.integers(0, 30)), gpus, runtime, size, declared)


class Bounded(Simulation):
    """Records when each unit must have started."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.latest: list[float] = []

    def arrive(self, unit: Unit) -> None:
        """Record when all that ran or waited before the unit has ended.

        That is unknown if a unit waits ahead of it and one of them does not declare its run time.
        """
        ahead = [each for number, each in enumerate(self.units) if number not in self.started]
        running = [
            number for number in self.started if self.started[number] + self.units[number].runtime > self.now
        ]
        ends = [self.started[number] + self.units[number].longest for number in running]
        there = [*ahead, *(self.units[number] for number in running)]
        if ahead and any(each.declared is None for each in there):
            self.latest.append(float("inf"))
        else:
            self.latest.append(max(ends, default=self.now) + sum(each.longest for each in ahead))
        super().arrive(unit)


@settings(max_examples=60, deadline=None)
@given(st.lists(units(), min_size=3, max_size=12))
def test_no_unit_waits_longer_than_the_drain_time_of_what_was_there_before_it(units: list[Unit]) -> None:
    """If nothing waits ahead of a unit, that is the drain time of what ran when it arrived."""
    simulation = Bounded({"a": 4, "b": 4}, {"reservations": len(units)})
    simulation.run(units)
    late = {
        number: (simulation.started[number], latest)
        for number, latest in enumerate(simulation.latest)
        if simulation.started[number] > latest
    }
    assert not late, "units by number: when they started and should have started"


def mix(seed: int, declaring: float) -> list[Unit]:
    """Return a random mix of pods and gangs, of which a share declares up to twice its run time."""
    chance, mixed = Random(seed), []
    for minute in range(30):
        for _ in range(chance.randint(0, 2)):
            runtime = 60 * chance.randint(5, 20)
            declared = int(runtime * chance.choice((1, 1.5, 2))) if chance.random() < declaring else None
            size, gpus = chance.choice(((2, 1), (2, 2), *((1, 1),) * 6, *((1, 2),) * 3, (1, 4), (1, 4)))
            mixed.append(Unit(60 * minute, gpus, runtime, size, declared))
    return mixed


def seconds(mixed: list[Unit], reservations: int) -> float:
    simulation = Simulation({"a": 4, "b": 4, "c": 4}, {"reservations": reservations})
    simulation.run(mixed)
    return simulation.now


@pytest.mark.parametrize("declaring", [0.0, 1.0])
def test_reservations_cost_little_utilization(declaring: float) -> None:
    """The same GPU seconds are used, so utilization is inverse to the time that all of them take."""
    mixes = [mix(seed, declaring) for seed in range(SEEDS)]
    ratios = [seconds(mixed, 0) / seconds(mixed, 4) for mixed in mixes]
    assert fmean(ratios) >= 0.95, f"the lowest is {min(ratios):.3f}"
