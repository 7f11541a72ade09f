"""The state machine finds each fault of `faults.py`, planted alone.

Most faults are found within the first few examples. A run continues to several times the usual
number of examples before it reports a fault as not found. Rare faults need long sequences of small
steps, so these are searched for with those alone.
"""

from random import Random

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from tests.scheduler.faults import FAULTS, RARE, VERY_RARE, Plant
from tests.scheduler.machine import CLAIMS, Schedulers
from tests.scheduler.test_never_twice import EXAMPLES, STEPS

MANY_EXAMPLES = settings(
    max_examples=6 * EXAMPLES,
    stateful_step_count=STEPS,
    deadline=None,
    derandomize=True,
    database=None,
    report_multiple_bugs=False,
    phases=(Phase.generate,),  # finding it is enough; the minimal example is not needed
    suppress_health_check=list(HealthCheck),
)


MOST_SEEDS = 400
"""Sequences of random steps in which a rare fault is sought; each was found within the first 40."""


@pytest.mark.long
@pytest.mark.parametrize(
    "plant", FAULTS if EXAMPLES < 500 else (*FAULTS, *VERY_RARE), ids=lambda plant: plant.__name__
)
def test_a_fault_is_found(plant: Plant) -> None:
    class Planted(Schedulers):
        pass

    Planted.plant = staticmethod(plant)
    with pytest.raises((AssertionError, BaseExceptionGroup)) as found:
        run_state_machine_as_test(Planted, settings=MANY_EXAMPLES)
    assert _is_finding(found.value), f"the run crashed instead of finding the fault: {found.value!r}"


@pytest.mark.long
@pytest.mark.parametrize("plant", RARE, ids=lambda plant: plant.__name__)
def test_a_rare_fault_is_found(plant: Plant) -> None:
    class Planted(Schedulers):
        pass

    Planted.plant = staticmethod(plant)
    with pytest.raises((AssertionError, BaseExceptionGroup)) as found:
        run_sequences(Planted, MOST_SEEDS)
    assert _is_finding(found.value), f"the run crashed instead of finding the fault: {found.value!r}"


@pytest.mark.long
def test_without_a_fault_random_steps_find_nothing() -> None:
    """Otherwise the test above would prove nothing."""
    run_sequences(Schedulers, 60)


def run_sequences(machine: type[Schedulers], number: int) -> None:
    """Run so many sequences of random steps."""
    for seed in range(number):
        run_random_steps(machine(), Random(seed))


def run_random_steps(machine: Schedulers, chance: Random) -> None:
    """Run small steps of all parties in random order, with some rounds of a scheduler, to the final state."""
    try:
        for _ in range(chance.randint(1, 3)):
            machine.create_a_pod(chance.choice(sorted(CLAIMS)), 0)
        for _ in range(chance.randint(1, 8)):
            if chance.random() < 0.7:
                machine.random_steps(chance)
            else:
                machine.scheduler_round(chance.randrange(2), chance)
    finally:
        machine.teardown()


def _is_finding(error: BaseException) -> bool:
    """Return whether an assertion of the state machine failed, not the faulty code."""
    if isinstance(error, BaseExceptionGroup):
        return any(_is_finding(each) for each in error.exceptions)
    return isinstance(error, AssertionError)
