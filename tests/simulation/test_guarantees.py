"""Guarantees of queues in a simulation: they are lent, and reclaimed by preemption of borrowed units."""

from dataclasses import replace
from random import Random

import pytest
from tests.scheduler import queue_simulation
from tests.scheduler.queue_simulation import QueueSimulation
from tests.scheduler.simulation import Unit as PlannedUnit
from tests.scheduler.simulation import number_of

from gpufleet.placement import CandidateGpu, CandidateNode, Demand, Request
from gpufleet.scheduler.queues.expected_order import order_of_quotas
from gpufleet.simulation.engine import Simulation
from gpufleet.simulation.fleet import Fleet
from gpufleet.simulation.scenario import DAY, HOUR, Scenario
from gpufleet.simulation.unit import Unit


def nodes(number: int, gpus: int = 1) -> list[CandidateNode]:
    return [
        CandidateNode(f"node-{at}", tuple(CandidateGpu(gpu) for gpu in range(gpus))) for at in range(number)
    ]


def unit(number: int, queue: str, arrives: float, runtime: float = DAY, members: int = 1) -> Unit:
    return Unit(number, Request(count=1), arrives, runtime, members, queue=queue)


def run_of(
    units: list[Unit], fleet: list[CandidateNode], guarantees: dict[str, float]
) -> tuple[Simulation, dict[int, list[float]]]:
    """Return a simulation and, once it has run, the starts of each unit."""
    scenario = Scenario(queues=order_of_quotas({}, {}, guarantees))
    run = Simulation(fleet, units, scenario, until=30 * DAY)
    starts: dict[int, list[float]] = {}

    def observe(now: float) -> None:
        for number, running in run.fleet.running.items():
            known = starts.setdefault(number, [])
            if running.started not in known:
                known.append(running.started)

    run.observe = observe
    return run, starts


def test_unused_guarantees_are_lent_and_reclaimed_from_the_youngest_units() -> None:
    guests = [unit(at, "guest", at) for at in range(4)]
    run, starts = run_of([*guests, unit(4, "owner", 10, HOUR, members=2)], nodes(4), {"owner": 2})
    outcome = run.run()
    assert starts == {0: [0], 1: [1], 2: [2, 10 + HOUR], 3: [3, 10 + HOUR], 4: [10]}
    assert (outcome.preemptions, outcome.completed) == (2, 5)


def test_a_gang_on_borrowed_gpus_leaves_as_a_whole() -> None:
    units = [unit(0, "guest", 0, members=4), unit(1, "owner", 10, HOUR)]
    run, starts = run_of(units, nodes(2, gpus=2), {"owner": 1})
    assert run.run().preemptions == 1
    assert starts == {0: [0, 10 + HOUR], 1: [10]}


def test_a_queue_gets_no_more_than_its_guarantee_by_preemption() -> None:
    guests = [unit(at, "guest", at) for at in range(4)]
    owners = [unit(4 + at, "owner", 10 + at) for at in range(3)]
    run, starts = run_of([*guests, *owners], nodes(4), {"owner": 2, "guest": 1})
    assert run.run().preemptions == 2
    assert (starts[4], starts[5]) == ([10], [11])
    assert starts[6][0] >= DAY, "it waits for a free GPU"
    assert starts[0] == [0], "work inside its own guarantee stays"


def test_guarantees_are_honoured_at_every_instant() -> None:
    """On nodes with one GPU each, no pod inside the guarantee of its queue ever waits."""
    chance = Random(1)
    guarantees = {"a": 2.0, "b": 3.0, "c": 1.0}
    units = [unit(at, chance.choice("abcdd"), 600 * at, HOUR * chance.uniform(0.1, 3)) for at in range(150)]
    run, _ = run_of(units, nodes(6), guarantees)
    waited = preempted = 0
    before: dict[int, float] = {}

    def observe(now: float) -> None:
        nonlocal waited, preempted
        running = run.fleet.running
        used = {queue: sum(each.unit.queue == queue for each in running.values()) for queue in "abcd"}
        for waiting in run.waiting.all():
            waited += 1
            assert used[waiting.queue] >= guarantees.get(waiting.queue, 0)
        gone = [number for number in before if number not in running]
        preempted += sum(number in {each.number for each in run.waiting.all()} for number in gone)
        before.clear()
        before.update({number: each.started for number, each in running.items()})

    run.observe = observe
    outcome = run.run()
    assert outcome.preemptions >= preempted > 10
    assert waited > 100


def test_units_that_are_not_evicted_after_all_keep_gpus_that_are_reserved_meanwhile() -> None:
    fleet = Fleet(nodes(1, gpus=2), "default", Demand.of_requests([]), Random(0))
    one = fleet.start(unit(9, "other", 0), 0.0)
    assert one is not None
    reserved = one.places[0]
    fleet.end(9)
    running = fleet.start(Unit(0, Request(count=2), 0, DAY), 0.0)
    fleet.hold("r7.0", reserved)
    gang = replace(unit(1, "owner", 0, members=2), priority=1)
    assert fleet.preempt(gang, 1.0, fleet.lower_priorities(gang, own_queue=False)) is None
    assert list(fleet.running.values()) == [running]


@pytest.mark.parametrize("seed", range(12))
def test_the_same_units_are_evicted_as_by_the_planner(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = Random(seed)
    guarantees = {"owner": chance.randint(2, 5), "guest": chance.randint(0, 2), "other": chance.randint(0, 2)}
    sizes = [chance.choice((1, 1, 2, 3)) for _ in range(10)]
    guests = [
        unit(at, chance.choice(("guest", "other")), 60 * at, members=size) for at, size in enumerate(sizes)
    ]
    owner = unit(len(guests), "owner", 6000, HOUR, members=chance.randint(1, guarantees["owner"]))

    monkeypatch.setattr(queue_simulation, "GRACE", 0.0)
    queues = {name: {"guaranteed": {"gpus": gpus}} for name, gpus in guarantees.items()}
    planner = QueueSimulation(
        dict.fromkeys((f"node-{at}" for at in range(10)), 1), queues=queues, comes_back=False
    )
    for each in [*guests, owner]:
        planned = PlannedUnit(int(each.arrives), 1, int(each.runtime), each.members, namespace=each.queue)
        planner.step([planned], each.arrives)
    evicted = {number_of(pod) for decided in planner.evictions for pod in decided.victims}

    run, starts = run_of(
        [*guests, owner], nodes(10), {name: float(gpus) for name, gpus in guarantees.items()}
    )
    seen: dict[int, float] = {}
    gone: set[int] = set()
    observe = run.observe

    def watch(now: float) -> None:
        observe(now)
        if now <= owner.arrives:
            running = {number: each.started for number, each in run.fleet.running.items()}
            gone.update(number for number, started in seen.items() if running.get(number) != started)
            seen.update(running)

    run.observe = watch
    run.run()
    assert gone == evicted
    assert evicted or owner.number in starts
