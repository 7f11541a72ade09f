"""The state machine finds each fault of `faults.py`, planted alone.

Most faults are found within the first few examples. A run continues to several times the usual
number of examples before it reports a fault as not found.
"""

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from tests.scheduler.faults import FAULTS, RARE, Plant
from tests.scheduler.machine import Schedulers
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


@pytest.mark.long
@pytest.mark.parametrize(
    "plant", FAULTS if EXAMPLES < 500 else (*FAULTS, *RARE), ids=lambda plant: plant.__name__
)
def test_a_fault_is_found(plant: Plant) -> None:
    class Planted(Schedulers):
        pass

    Planted.plant = staticmethod(plant)
    with pytest.raises((AssertionError, BaseExceptionGroup)) as found:
        run_state_machine_as_test(Planted, settings=MANY_EXAMPLES)
    assert _is_finding(found.value), f"the run crashed instead of finding the fault: {found.value!r}"


def _is_finding(error: BaseException) -> bool:
    """Return whether an assertion of the state machine failed, not the faulty code."""
    if isinstance(error, BaseExceptionGroup):
        return any(_is_finding(each) for each in error.exceptions)
    return isinstance(error, AssertionError)
