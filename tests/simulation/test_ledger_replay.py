"""Replaying a recorded ledger without changes gives its allocation and its waits."""

from dataclasses import replace

import msgspec
import pytest
from tests.scheduler.queue_simulation import GRACE
from tests.scheduler.simulation import START
from tests.simulation.test_planner_agreement import (
    GUARANTEES,
    HOURS,
    LARGER,
    LONG,
    WEIGHTS,
    mix,
    planned_queues,
    planned_starts,
    queued,
)

from gpufleet.cli.recorded_ledger import RecordedLedger, replayed
from gpufleet.model.periods import AllocationPeriod, CapacityPeriod
from gpufleet.scheduler.queues.expected_order import QueueRules
from gpufleet.simulation.compare import Input, simulate
from gpufleet.simulation.engine import Simulation
from gpufleet.simulation.ledger import Recorded, recorded, started_units
from gpufleet.simulation.outcome import Outcome
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
    """Return what a ledger has recorded in eight hours of a full fleet on which the planner starts units."""
    mixed = mix(seed, 0.5, 60 * HOURS, 3)
    starts = planned_starts(mixed, 4, LARGER)
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
    return recorded(allocations, capacities(), BEGIN, BEGIN + HOURS * HOUR)


def capacities() -> list[CapacityPeriod]:
    return [
        CapacityPeriod(node=name, gpus=gpus, model="H100", start=BEGIN - HOUR)
        for name, gpus in LARGER.items()
    ]


def waits_of(outcome: Outcome) -> list[float]:
    """Return all waits; units that would start after the end of the ledger have waited until then."""
    return [wait for kind in (outcome.waits, outcome.unstarted) for each in kind.values() for wait in each]


@pytest.mark.parametrize("seed", [0, 1, LONG(2), LONG(3)])
def test_an_unchanged_replay_has_the_allocation_and_the_mean_wait_of_the_ledger(seed: int) -> None:
    ledger = planner_ledger(seed)
    run = Simulation(
        ledger.nodes, ledger.units, Scenario(policy="learned"), ledger.end, ledger.absences, ledger.begin
    )
    outcome = run.run()
    waits = waits_of(outcome)
    assert len(waits) == len(ledger.units) > 500
    assert outcome.allocation_percent == pytest.approx(ledger.allocation_percent, abs=0.2)
    assert sum(waits) / len(waits) == pytest.approx(ledger.mean_wait_s, rel=0.01)


def queued_ledger(seed: int) -> RecordedLedger:
    """Return what a ledger has recorded of queues with guarantees: evicted units come back as new pods."""
    real = planned_queues(queued(seed), GUARANTEES)
    evicted = {victim.metadata.uid for each in real.evictions for victim in each.victims}
    allocations = []
    for number, pods in real.runs.items():
        unit = real.units[number]
        for pod, node, start in pods:
            end = BEGIN + real.ended[pod.metadata.uid]
            created = pod.metadata.creation_timestamp
            assert created is not None
            recorded_pod = period(
                pod.metadata.uid,
                unit.gpus,
                BEGIN + (created - START).total_seconds(),
                BEGIN + start,
                end,
                unit.declared or 0.0,
            )
            allocations.append(
                msgspec.structs.replace(
                    recorded_pod,
                    pod=pod.metadata.name,
                    namespace=pod.metadata.namespace,
                    node=node,
                    workload_uid=str(real.first(number)),
                    interrupted=pod.metadata.uid in evicted,
                )
            )
    quotas = QueueRules().with_quotas(WEIGHTS, {}, GUARANTEES)
    rules = [(BEGIN - HOUR, replace(quotas, namespaces={name: name for name in WEIGHTS}))]
    # A unit that has not started at the end is not in a ledger, so this one ends when all have.
    end = max(allocation.start for allocation in allocations) + 1.0
    return replayed(allocations, capacities(), BEGIN, end, rules)


@pytest.mark.parametrize(("seed", "tolerance"), [(0, 0.01), (1, 0.01), LONG(2, 0.01), LONG(3, 0.1)])
def test_an_unchanged_replay_with_gpu_queues_has_the_allocation_and_the_mean_wait_of_the_ledger(
    seed: int, tolerance: float
) -> None:
    """In the last mix, units that start in the same second differ in which one is evicted first."""
    ledger = queued_ledger(seed)
    known, ((_, queues), *changes) = ledger.recorded, ledger.orders({}, {}, {})
    scenario = Scenario(policy="learned", queues=queues, grace_s=GRACE)
    run = Simulation(known.nodes, known.units, scenario, known.end, known.absences, known.begin, changes)
    outcome = run.run()
    waits = waits_of(outcome)
    assert len(waits) == len(known.units) == len(queued(seed))
    assert outcome.preemptions > 10
    assert outcome.allocation_percent == pytest.approx(known.allocation_percent, abs=0.2)
    assert sum(waits) / len(waits) == pytest.approx(known.mean_wait_s, rel=tolerance)


def test_a_run_that_was_interrupted_goes_on_with_the_next_pods_of_its_workload() -> None:
    evicted = msgspec.structs.replace(period("job.0", 4, 100.0, 150.0, 300.0, 0.0), interrupted=True)
    again = period("job.1", 4, 300.0, 500.0, 1500.0, 0.0)
    other = period("other.0", 4, 310.0, 320.0, 400.0, 0.0)
    ledger = recorded([evicted, again, other], capacities(), 0.0, 2000.0)
    first, second = ledger.units
    assert (first.arrives, first.runtime, second.arrives) == (100.0, 1000.0, 310.0)
    assert ledger.mean_wait_s == (50.0 + 10.0) / 2
    apart = recorded([msgspec.structs.replace(evicted, interrupted=False), again], capacities(), 0.0, 2000.0)
    assert [unit.runtime for unit in apart.units] == [150.0, 1000.0]


def test_a_pod_that_replaces_one_that_was_evicted_at_once_is_no_member_of_its_gang() -> None:
    evicted = msgspec.structs.replace(period("job.0", 4, 100.0, 100.0, 130.0, 0.0), interrupted=True)
    again = period("job.1", 4, 130.0, 140.0, 1140.0, 0.0)
    [unit] = recorded([evicted, again], capacities(), 0.0, 2000.0).units
    assert (unit.members, unit.arrives, unit.runtime) == (1, 100.0, 1000.0)


def test_queues_change_in_a_replay_when_they_changed_in_the_ledger() -> None:
    """Before the limit was set, both units of the namespace run at the same time, and after it they don't."""
    limited = replace(QueueRules().with_quotas({}, {"team": 4}, {}), namespaces={"ml": "team"})
    early = [period(f"early-{at}.0", 4, BEGIN + at, BEGIN + at, BEGIN + 600, 0.0) for at in range(2)]
    late = [
        period(
            f"late-{at}.0", 4, BEGIN + HOUR + at, BEGIN + HOUR + 600 * at, BEGIN + HOUR + 600 * at + 600, 0.0
        )
        for at in range(2)
    ]
    rules = [(BEGIN, QueueRules()), (BEGIN + 1800.0, limited)]
    ledger = replayed([*early, *late], capacities(), BEGIN, BEGIN + 2 * HOUR, rules)
    (_, queues), *changes = ledger.orders({}, {}, {})
    assert queues is None
    assert [unit.queue for unit in ledger.recorded.units] == ["ml", "ml", "team", "team"]
    known = ledger.recorded
    run = Simulation(known.nodes, known.units, Scenario(), known.end, known.absences, known.begin, changes)
    assert waits_of(run.run()) == pytest.approx([0.0, 0.0, 0.0, 599.0])


def test_quotas_of_flags_replace_those_of_the_ledger() -> None:
    rules = [(BEGIN, QueueRules().with_quotas({"a": 2}, {"a": 8}, {"b": 4}))]
    ledger = replayed([], capacities(), BEGIN, BEGIN + HOUR, rules)
    changed = ledger.rules[0][1].with_quotas({"a": 3}, {}, {"c": 2})
    assert {(q.name, q.weight, q.limit, q.guaranteed) for q in changed.quotas} == {
        ("a", 3, 8000, 0),
        ("b", 1, None, 4000),
        ("c", 1, None, 2000),
    }
    assert ledger.queues == {"a", "b"}


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
