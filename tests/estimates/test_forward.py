"""The forward simulation follows the rules of the queue."""

import random

import numpy as np
import pytest

from gpufleet.estimates.arrivals import Arrivals
from gpufleet.estimates.fleet_state import FleetState, RunningUnit, WaitingUnit
from gpufleet.estimates.forward import ForwardRuns, Sampled
from gpufleet.estimates.run_times import Job
from gpufleet.queueing.shares.quota import Quota, Quotas
from gpufleet.scheduler.queues.expected_order import ExpectedOrder

HOUR = 3600.0


def unit(key: str, gpus: int = 8, members: int = 1, **more: object) -> WaitingUnit:
    job = Job(gpus=float(gpus), declared=more.pop("declared", None))  # type: ignore[arg-type]
    return WaitingUnit(key, job, 1000 * gpus, members, **more)  # type: ignore[arg-type]


def running(node: int, gpus: int = 8, **more: object) -> RunningUnit:
    job = Job(gpus=float(gpus), declared=more.pop("declared", None))  # type: ignore[arg-type]
    return RunningUnit(job, HOUR, ((node, 1000 * gpus),), **more)  # type: ignore[arg-type]


def starts(
    held: list[RunningUnit],
    ends: list[float],
    waiting: list[WaitingUnit],
    nodes: int = 1,
    runtime: float = HOUR,
    **more: object,
) -> dict[str, float]:
    free = [8000] * nodes
    for each in held:
        for node, milli in each.places:
            free[node] -= milli
    state = FleetState([8000] * nodes, free, ["H100"] * nodes, held, waiting, **more)  # type: ignore[arg-type]
    arriving = [runtime] * len(state.arrivals)
    sampled = Sampled(np.array(ends), [runtime] * len(waiting), arriving)
    found = ForwardRuns(state, [], 30 * 24 * HOUR).run(sampled, random.Random(1))
    return found.starts


def test_units_start_by_priority_and_then_by_age() -> None:
    found = starts([running(0, priority=9)], [60.0], [unit("a"), unit("b", priority=5), unit("c")])
    assert found == {"b": 60.0, "a": 60.0 + HOUR, "c": 60.0 + 2 * HOUR}


def test_a_unit_of_higher_priority_evicts_the_youngest_of_lower_priority_at_once() -> None:
    held = [running(0, gpus=4), RunningUnit(Job(gpus=4.0), 60.0, ((0, 4000),))]
    found = starts(held, [20 * HOUR, 9 * HOUR], [unit("urgent", 4, priority=5), unit("later", 4)])
    assert found["urgent"] == 0.0
    # The victim waits again behind the unit that waited already, until the urgent one has ended.
    assert found["later"] == HOUR


def test_later_arrivals_of_higher_priority_overtake_and_others_do_not() -> None:
    held, ends = [running(0)], [HOUR]
    alone = starts(held, ends, [unit("a"), unit("b")])
    waiting = [unit("a"), unit("b")]
    assert starts(held, ends, waiting, arrivals=[unit("x")], arrival_rates=[2 / HOUR]) == alone
    overtaken = starts(held, ends, waiting, arrivals=[unit("x", priority=5)], arrival_rates=[0.2 / HOUR])
    assert overtaken["b"] > alone["b"]


def test_small_units_do_not_pass_the_reservation_of_a_large_one_unless_they_end_before() -> None:
    held = [running(0, 4, declared=2 * HOUR), running(0, 2, declared=3 * HOUR)]
    ends = [HOUR, 2 * HOUR]
    waiting = [unit("large"), unit("short", 2, declared=0.5 * HOUR), unit("long", 2)]
    found = starts(held, ends, waiting)
    assert found == {"short": 0.0, "large": 2 * HOUR, "long": 3 * HOUR}


def test_the_order_between_queues_is_by_weighted_use() -> None:
    order = ExpectedOrder(Quotas([Quota("a"), Quota("b")]), {"a": 100 * HOUR, "b": 0.0}, frozenset())
    waiting = [unit("first", queue="a"), unit("second", queue="b")]
    found = starts([running(0, queue="a")], [HOUR], waiting, order=order)
    assert found["second"] < found["first"]


def test_a_queue_at_its_limit_waits_for_its_own_units() -> None:
    order = ExpectedOrder(Quotas([Quota("a", limit=8000)]), {}, frozenset())
    found = starts([running(0, queue="a")], [5 * HOUR], [unit("w", queue="a")], nodes=2, order=order)
    assert found == {"w": 5 * HOUR}


def test_a_queue_that_has_used_up_its_hard_budget_does_not_start() -> None:
    order = ExpectedOrder(Quotas([Quota("a")]), {}, frozenset({"a"}))
    assert starts([], [], [unit("w", queue="a")], order=order) == {}


def test_a_unit_inside_its_guarantee_reclaims_borrowed_gpus() -> None:
    order = ExpectedOrder(Quotas([Quota("owner", guaranteed=8000), Quota("guest")]), {}, frozenset())
    waiting = [unit("mine", queue="owner"), unit("other", queue="guest")]
    found = starts([running(0, queue="guest")], [50 * HOUR], waiting, order=order)
    assert found["mine"] == 0.0


def order_with(*quotas: Quota) -> ExpectedOrder:
    return ExpectedOrder(Quotas(quotas), {}, frozenset())


def test_what_queues_of_a_department_lend_each_other_is_not_evicted_for_another_department() -> None:
    order = order_with(
        Quota("d"), Quota("a", 2000, parent="d"), Quota("b", 2000, parent="d"),
        Quota("e"), Quota("f", 2000, parent="e"), Quota("g", 2000, parent="e"),
        Quota("c", 1000),
    )  # fmt: skip
    held = [running(0, 1, queue="b") for _ in range(4)] + [running(0, 1, queue="g") for _ in range(4)]
    ends = [HOUR * at for at in range(1, 9)]
    assert starts(held, ends, [unit("own", 1, queue="c")], order=order) == {"own": HOUR}
    assert starts(held, ends, [unit("same", 1, queue="a")], order=order) == {"same": 0.0}


def test_a_queue_without_a_guarantee_is_inside_that_of_its_department() -> None:
    order = order_with(Quota("d"), Quota("a", 4000, parent="d"), Quota("b", parent="d"))
    held = [running(0, 1, queue="other") for _ in range(8)]
    found = starts(
        held, [HOUR * 9] * 8, [unit("in", 4, queue="b"), unit("beyond", 5, queue="b")], order=order
    )
    assert found["in"] == 0.0
    assert found["beyond"] > 0.0


def test_units_that_are_evicted_at_a_moment_evict_nothing_at_that_moment() -> None:
    # Both guarantees are for H200, of which there are none: by their amounts both queues have borrowed.
    order = order_with(Quota("a", 1000, {"H200": 1000}), Quota("b", 1000, {"H200": 1000}), Quota("c", 1000))
    held = [running(0, 1, queue="a") for _ in range(4)] + [running(0, 1, queue="b") for _ in range(4)]
    ends = [HOUR * at for at in range(1, 9)]
    assert starts(held, ends, [unit("in", 1, queue="c")], order=order) == {"in": 0.0}


def test_arrivals_are_expected_by_hour_of_the_day_and_by_their_recent_level() -> None:
    arrivals = Arrivals()
    arrivals.begin(0.0)
    for day in range(6):
        for at in range(60):
            arrivals.observe(unit(f"{day}-{at}"), (24 * day + 12) * HOUR + 60 * at)
    rates = arrivals.rates(6 * 24 * HOUR)
    assert rates[12] * HOUR == pytest.approx(60, rel=0.3)
    assert rates[3] * HOUR < 2
    now = (6 * 24 + 12.5) * HOUR
    for at in range(200):
        arrivals.observe(unit(f"now-{at}"), now - 1000 + at)
    assert arrivals.rates(now)[0] > 2 * rates[12]
    assert len(arrivals.latest()) == 400


def test_an_arrival_counts_once() -> None:
    arrivals = Arrivals()
    arrivals.begin(0.0)
    for _ in range(5):
        arrivals.observe(unit("same"), 1800.0)
    assert arrivals.rates(HOUR)[0] * HOUR < 2
