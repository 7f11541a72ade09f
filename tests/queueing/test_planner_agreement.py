"""The core starts units when and where the live planner does."""

from random import Random

import pytest
from tests.queueing.planned import AtOnce, CoreRuns, Picky, PickyPlanner, run_core
from tests.scheduler.queue_simulation import GRACE
from tests.simulation import test_planner_agreement as simulated
from tests.simulation.test_planner_agreement import GUARANTEES, LARGER, NODES, WEIGHTS, apart, mix, queued

from gpufleet.queueing.core import Rules
from gpufleet.queueing.shares.quota import Quota


def agrees(seed: int, declaring: float, reservations: int) -> bool:
    """Return whether all units of a random case start when the planner starts them."""
    if seed % 2:
        mixed, nodes = apart(mix(seed, declaring)), NODES
    else:
        mixed, nodes = apart(mix(seed, declaring, 40, 5)), LARGER
    expected = simulated.planned_starts(mixed, reservations, nodes)
    return run_core(mixed, nodes, Rules(reservations=reservations)).starts() == expected


@pytest.mark.parametrize("declaring", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("reservations", [0, 4])
def test_pods_and_gangs_start_when_the_planner_starts_them(declaring: float, reservations: int) -> None:
    for seed in range(4):
        assert agrees(seed, declaring, reservations)


@pytest.mark.long
@pytest.mark.parametrize("declaring", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("reservations", [0, 4])
def test_in_nearly_all_cases_units_start_when_the_planner_starts_them(
    declaring: float, reservations: int
) -> None:
    """The planner sometimes looks at a unit again within one second, so that its reservation moves; once in 300 cases."""
    seeds = range(100, 150)
    differ = [seed for seed in seeds if not agrees(seed, declaring, reservations)]
    assert len(differ) <= (1 if reservations else 0)


def with_queues(
    seed: int, guarantees: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> tuple[object, CoreRuns]:
    """Return the runs of the planner, and those of the core."""
    monkeypatch.setattr(simulated, "Recorded", AtOnce)
    mixed = queued(seed)
    quotas = [Quota(name, 1000 * guarantees.get(name, 0), weight=weight) for name, weight in WEIGHTS.items()]
    found = run_core(mixed, LARGER, Rules(reservations=4, grace=GRACE), quotas)
    return simulated.planned_queues(mixed, guarantees).of_units(), found


LONG = [pytest.param(seed, marks=pytest.mark.long) for seed in range(1, 6)]


@pytest.mark.parametrize("seed", [0, *LONG])
def test_units_of_weighted_queues_start_when_and_where_the_planner_starts_them(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, found = with_queues(seed, {}, monkeypatch)
    assert found.runs == expected
    assert not found.evictions


@pytest.mark.parametrize(
    "seed", [0, 2, *(pytest.param(seed, marks=pytest.mark.long) for seed in (1, 4, 5, 6, 7))]
)
def test_units_with_guarantees_start_and_are_evicted_when_and_where_the_planner_does_it(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected, found = with_queues(seed, GUARANTEES, monkeypatch)
    assert found.runs == expected
    assert found.evictions > 15


POOLS = {name: "ab"[at % 3 > 0] for at, name in enumerate(sorted(LARGER))}


def picky(seed: int, priorities: tuple[int, ...]) -> list[Picky]:
    """Return units of several priorities, a third of which select the smaller pool."""
    chance, mixed, at = Random(seed), list[Picky](), 0
    for _ in range(60):
        at += chance.choice((1, 7, 30, 61, 90))
        runtime = 60 * chance.randint(5, 20)
        declared = int(runtime * chance.choice((1, 1.5, 2))) if chance.random() < 0.5 else None
        size, gpus = chance.choice(((2, 1), (2, 2), *((1, 1),) * 6, *((1, 2),) * 3, (1, 4)))
        pool = chance.choice(("", "", "a"))
        mixed.append(Picky(at, gpus, runtime, size, declared, priority=chance.choice(priorities), pool=pool))
    return mixed


def picky_agrees(seed: int, priorities: tuple[int, ...], reservations: int) -> tuple[bool, int]:
    """Return whether the core runs all units as the planner does, and how many evictions there were."""
    mixed = picky(seed, priorities)
    planned = PickyPlanner(dict(LARGER), {"reservations": reservations}, pools=POOLS)
    planned.run(mixed)
    found = run_core(mixed, LARGER, Rules(reservations=reservations, grace=GRACE), pools=POOLS)
    return found.runs == planned.of_units(), found.evictions


@pytest.mark.parametrize("reservations", [0, 4])
def test_units_with_selectors_run_when_and_where_the_planner_runs_them(reservations: int) -> None:
    for seed in range(4):
        assert picky_agrees(seed, (0,), reservations) == (True, 0)


@pytest.mark.parametrize("reservations", [0, 4])
def test_most_cases_with_evictions_by_priority_run_as_by_the_planner(reservations: int) -> None:
    """The planner evicts again for a unit only after some seconds; other differences are not explained yet."""
    results = [picky_agrees(seed, (0, 0, 0, 10), reservations) for seed in range(8)]
    assert sum(same for same, _ in results) >= 6
    assert sum(evictions for _, evictions in results) > 30


@pytest.mark.long
def test_in_many_cases_with_evictions_by_priority_few_differ() -> None:
    results = [picky_agrees(seed, (0, 0, 0, 10), 4)[0] for seed in range(20, 60)]
    assert sum(results) >= 30
