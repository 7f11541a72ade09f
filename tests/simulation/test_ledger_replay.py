"""Replaying a recorded ledger without changes gives its allocation and its waits."""

import pytest
from tests.simulation.test_planner_agreement import mix, planned_starts

from gpufleet.model.periods import AllocationPeriod, CapacityPeriod
from gpufleet.simulation.compare import Input, simulate
from gpufleet.simulation.engine import Simulation
from gpufleet.simulation.ledger import Recorded, recorded, started_units
from gpufleet.simulation.scenario import Scenario

BEGIN = 1_000_000.0
HOUR = 3600.0
HOURS = 8
NODES = {f"node-{at}": 4 for at in range(8)}


def period(uid: str, gpus: int, created: float, start: float, end: float, runtime: float) -> AllocationPeriod:
    return AllocationPeriod(
        pod_uid=uid,
        pod=uid,
        namespace="ml",
        node="a",
        workload_uid=uid.partition(".")[0],
        workload_kind="Job",
        workload_name="train",
        source="k8s",
        gpus=gpus,
        share=1.0,
        model="H100",
        held=(),
        labels={},
        annotations={},
        created=created,
        max_runtime=runtime,
        start=start,
        end=end,
    )


def planner_ledger(seed: int) -> Recorded:
    """Return what a ledger has recorded in eight hours of a full fleet on which the planner starts units."""
    mixed = mix(seed, 0.5, 60 * HOURS, 3)
    starts = planned_starts(mixed, 4, NODES)
    allocations = [
        period(
            f"{number:05}.{member}",
            unit.gpus,
            BEGIN + unit.arrives,
            BEGIN + starts[number],
            BEGIN + starts[number] + unit.runtime,
            unit.declared or 0.0,
        )
        for number, unit in enumerate(mixed)
        for member in range(unit.size)
    ]
    capacity = [
        CapacityPeriod(node=name, gpus=gpus, model="H100", start=BEGIN - HOUR) for name, gpus in NODES.items()
    ]
    return recorded(allocations, capacity, BEGIN, BEGIN + HOURS * HOUR)


@pytest.mark.parametrize("seed", range(4))
def test_an_unchanged_replay_has_the_allocation_and_the_mean_wait_of_the_ledger(seed: int) -> None:
    ledger = planner_ledger(seed)
    run = Simulation(
        ledger.nodes, ledger.units, Scenario(policy="learned"), ledger.end, ledger.absences, ledger.begin
    )
    outcome = run.run()
    # Units that would start after the end of the ledger have waited until then.
    waits = [wait for kind in (outcome.waits, outcome.unstarted) for each in kind.values() for wait in each]
    assert len(waits) == len(ledger.units) > 500
    assert outcome.allocation_percent == pytest.approx(ledger.allocation_percent, abs=1.0)
    assert sum(waits) / len(waits) == pytest.approx(ledger.mean_wait_s, rel=0.1)


def test_a_replay_begins_with_the_ledger_and_not_with_its_first_unit() -> None:
    capacity = [CapacityPeriod(node="a", gpus=8, model="H100", start=BEGIN)]
    half = period("late.0", 8, BEGIN + HOUR, BEGIN + HOUR, BEGIN + 2 * HOUR, 0.0)
    ledger = recorded([half], capacity, BEGIN, BEGIN + 2 * HOUR)
    given = Input(ledger.nodes, ledger.units, ledger.end, ledger.absences, ledger.begin)
    assert ledger.allocation_percent == simulate(Scenario(), given).allocation_percent == 50.0


def test_units_that_started_in_a_span_are_found_once_with_their_arrival() -> None:
    periods = [
        period("gang.0", 8, 100.0, 400.0, 900.0, 0.0),
        period("gang.1", 8, 101.0, 401.0, 900.0, 0.0),
        period("old.0", 1, 10.0, 50.0, 0.0, 0.0),
    ]
    [(key, unit)] = started_units(periods, 200.0, 1000.0)
    assert (key, unit.members, unit.arrives, unit.owner) == ("gang.0", 2, 100.0, "ml")
    assert [key for key, _ in started_units(periods, 0.0, 200.0)] == ["old.0"]
