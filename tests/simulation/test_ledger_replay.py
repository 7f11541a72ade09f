"""Replaying a recorded ledger without changes gives its allocation and its waits."""

import pytest
from tests.simulation.test_planner_agreement import NODES, mix, planned_starts

from gpufleet.model.periods import AllocationPeriod, CapacityPeriod
from gpufleet.simulation.engine import Simulation
from gpufleet.simulation.ledger import Recorded, recorded, started_units
from gpufleet.simulation.scenario import Scenario

BEGIN = 1_000_000.0
HOUR = 3600.0


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
    """Return what a ledger has recorded of a fleet on which the scheduler's planner started units."""
    mixed = mix(seed, 0.5)
    starts = planned_starts(mixed, 4)
    allocations = [
        period(
            f"{number}.{member}",
            unit.gpus,
            BEGIN + unit.arrives,
            BEGIN + starts[number],
            BEGIN + starts[number] + unit.runtime,
            unit.declared or 0.0,
        )
        for number, unit in enumerate(mixed)
        for member in range(unit.size)
    ]
    end = max(each.end for each in allocations)
    capacity = [
        CapacityPeriod(node=name, gpus=gpus, model="H100", start=BEGIN - HOUR) for name, gpus in NODES.items()
    ]
    return recorded(allocations, capacity, BEGIN, end)


def test_an_unchanged_replay_has_the_allocation_and_the_mean_wait_of_the_ledger() -> None:
    waited = replayed = 0.0
    allocated: list[float] = []
    for seed in range(16):
        ledger = planner_ledger(seed)
        run = Simulation(ledger.nodes, ledger.units, Scenario(policy="learned"), ledger.end, ledger.absences)
        outcome = run.run()
        # Units that would start after the end of the ledger have waited until then.
        waits = [
            wait for kind in (outcome.waits, outcome.unstarted) for each in kind.values() for wait in each
        ]
        assert len(waits) == len(ledger.units)
        replayed += sum(waits)
        waited += ledger.mean_wait_s * len(ledger.units)
        allocated.append(outcome.allocation_percent - ledger.allocation_percent)
    assert abs(sum(allocated) / len(allocated)) < 1.0
    assert replayed == pytest.approx(waited, rel=0.1)


def test_units_that_started_in_a_span_are_found_once_with_their_arrival() -> None:
    periods = [
        period("gang.0", 8, 100.0, 400.0, 900.0, 0.0),
        period("gang.1", 8, 101.0, 401.0, 900.0, 0.0),
        period("old.0", 1, 10.0, 50.0, 0.0, 0.0),
    ]
    [(key, unit)] = started_units(periods, 200.0, 1000.0)
    assert (key, unit.members, unit.arrives, unit.owner) == ("gang.0", 2, 100.0, "ml")
    assert [key for key, _ in started_units(periods, 0.0, 200.0)] == ["old.0"]
