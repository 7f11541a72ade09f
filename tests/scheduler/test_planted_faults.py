"""The machine finds faults: each of `faults.py`, planted alone, within the ordinary number of examples."""

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from tests.scheduler.faults import FAULTS, RARE, Plant
from tests.scheduler.machine import Schedulers
from tests.scheduler.test_never_twice import EXAMPLES, STEPS

ORDINARY = settings(
    max_examples=EXAMPLES,
    stateful_step_count=STEPS,
    deadline=None,
    derandomize=True,
    database=None,
    phases=(Phase.generate,),  # that it is found is enough; nobody reads the smallest example
    suppress_health_check=list(HealthCheck),
)


@pytest.mark.parametrize(
    "plant", FAULTS if EXAMPLES < 500 else (*FAULTS, *RARE), ids=lambda plant: plant.__name__
)
def test_a_fault_is_found(plant: Plant) -> None:
    class Planted(Schedulers):
        pass

    Planted.plant = staticmethod(plant)
    with pytest.raises((AssertionError, BaseExceptionGroup)) as found:
        run_state_machine_as_test(Planted, settings=ORDINARY)
    assert _holds_a_finding(found.value), f"it fell over instead of being found: {found.value!r}"


def _holds_a_finding(error: BaseException) -> bool:
    """Whether an assertion of the machine failed, and not the fault itself."""
    if isinstance(error, BaseExceptionGroup):
        return any(_holds_a_finding(each) for each in error.exceptions)
    return isinstance(error, AssertionError)
