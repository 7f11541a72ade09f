"""The machine finds faults: each of `faults.py`, planted alone.

Most are found within the first few of the machine's ordinary number of examples. Since nothing is learned from
stopping there, a run goes on to several times as many before it calls a fault not found.
"""

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import run_state_machine_as_test
from tests.scheduler.faults import FAULTS, RARE, Plant
from tests.scheduler.machine import Schedulers
from tests.scheduler.test_never_twice import EXAMPLES, STEPS

PATIENT = settings(
    max_examples=6 * EXAMPLES,
    stateful_step_count=STEPS,
    deadline=None,
    derandomize=True,
    database=None,
    report_multiple_bugs=False,
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
        run_state_machine_as_test(Planted, settings=PATIENT)
    assert _holds_a_finding(found.value), f"it fell over instead of being found: {found.value!r}"


def _holds_a_finding(error: BaseException) -> bool:
    """Whether an assertion of the machine failed, and not the fault itself."""
    if isinstance(error, BaseExceptionGroup):
        return any(_holds_a_finding(each) for each in error.exceptions)
    return isinstance(error, AssertionError)
