"""Budgets and statuses of queues, on the simulated clock."""

from collections.abc import Mapping
from typing import Any, cast

import pytest
from msgspec import convert, structs
from tests.scheduler.queue_simulation import QueueSimulation
from tests.scheduler.simulation import Unit

from gpufleet.kubernetes.crds.gpu_queue import QueueStatus
from gpufleet.kubernetes.objects import Pod
from gpufleet.queueing.shares.budget import BudgetState, period_at
from gpufleet.scheduler.api import SchedulerApi
from gpufleet.scheduler.queues.queue_control import CHECK_S, QueueControl
from gpufleet.scheduler.queues.recent_use import PeriodUse, UseReading

DAY = 86400
BUDGET = {"gpuHours": 10.0, "period": "Day", "hard": True}


class Written:
    """Keeps the statuses and events that are written."""

    def __init__(self) -> None:
        self.statuses: dict[str, Mapping[str, Any]] = {}
        self.events: list[tuple[str, str]] = []

    async def write_queue_status(self, queue: str, status: Mapping[str, Any]) -> None:
        self.statuses[queue] = status

    async def record_event(self, regarding: Any, reason: str, note: str, type: str) -> None:
        self.events.append((reason, note))


def control_of(simulation: QueueSimulation, written: Written, problem: str = "") -> QueueControl:
    """Return a control whose evictions end pods after the grace period."""

    def evict(pods: Any, note: str, grace: float) -> None:
        for pod in cast("list[Pod]", pods):
            simulation.terminate(pod)

    scheduler = simulation.scheduler
    return QueueControl(
        cast(SchedulerApi, written),
        scheduler.gpu_queues,
        scheduler.metrics,
        scheduler._timing,
        waiting=lambda: ((entry.pod.metadata.namespace, entry.milli) for entry in scheduler.queue),
        problem=lambda: problem,
        evict=evict,
        grace=120.0,
    )


def conditions(status: Mapping[str, Any]) -> dict[str, tuple[str, str]]:
    return {each["type"]: (each["status"], each.get("message", "")) for each in status["conditions"]}


def run(simulation: QueueSimulation, control: QueueControl, seconds: float) -> list[tuple[str, str]]:
    """Check budgets as often as the scheduler does; return the events."""
    events = []
    until = simulation.now + seconds
    while simulation.now < until:
        simulation.step([], simulation.now + CHECK_S)
        events += [(reason, note) for _, reason, note in control.check_budgets()]
        simulation.plan()
    return events


def test_a_hard_budget_warns_ends_gangs_in_time_and_lets_others_wait() -> None:
    simulation = QueueSimulation({"a": 8, "b": 8}, queues={"team": {"budget": BUDGET}})
    control = control_of(simulation, Written())
    simulation.step([Unit(0, 2, DAY, size=4, namespace="team"), Unit(0, 2, DAY, namespace="team")], 0)
    events = run(simulation, control, 2 * 3600)
    assert [reason for reason, _ in events] == ["BudgetNearlyUsed", "BudgetUsedUp"]
    assert simulation.ends == {}
    # At most one GPU-minute for each of the two units, and not much less.
    used = simulation.used["team"]
    assert 36000 - 10 * 60 <= used <= 36000 + 2 * 60
    (sample,) = next(iter(simulation.scheduler.metrics.queue_budget.collect())).samples
    assert sample.value >= 1, "the alert for a used-up budget needs it"
    simulation.step([Unit(0, 1, DAY, namespace="team")], simulation.now)
    (entry,) = simulation.scheduler.queue
    assert entry.reason == (
        "queue team has used up its budget of 10 GPU-hours, which is renewed on 2026-01-02"
    )
    simulation.now = DAY
    control.check_budgets()
    simulation.plan()
    assert len(simulation.scheduler.queue) == 0


@pytest.mark.parametrize("size", [1, 4])
def test_a_unit_does_not_start_if_it_would_exceed_a_hard_budget(size: int) -> None:
    simulation = QueueSimulation({"a": 8, "b": 8}, queues={"team": {"budget": BUDGET}})
    control = control_of(simulation, Written())
    simulation.step([Unit(0, 8, int(1.2375 * 3600), namespace="team")], 0)
    run(simulation, control, 1.2375 * 3600)
    late = [Unit(0, 8 // size, DAY, size=size, namespace="team"), Unit(0, 1, 60, namespace="team")]
    simulation.step(late, simulation.now)
    run(simulation, control, 600)
    assert 2 in simulation.started, "a smaller unit that fits starts"
    (entry,) = simulation.scheduler.queue
    assert entry.reason.endswith("of 10 left, too little to start 8 GPUs")
    simulation.now = DAY
    control.check_budgets()
    simulation.plan()
    assert 1 in simulation.started


def test_a_large_unit_at_the_end_of_a_hard_budget_exceeds_it_by_less_than_a_gpu_minute() -> None:
    simulation = QueueSimulation({"a": 8}, queues={"team": {"budget": BUDGET}})
    control = control_of(simulation, Written())
    simulation.step([Unit(0, 1, 36000 - 60, namespace="team")], 0)
    simulation.step([], DAY)
    control.check_budgets()
    simulation.step([Unit(0, 8, DAY, namespace="team")], simulation.now)
    run(simulation, control, 600)
    assert simulation.used["team"] <= 36000 + 60


def test_a_soft_budget_leaves_only_gpus_that_no_other_queue_waits_for() -> None:
    budget = {**BUDGET, "hard": False}
    simulation = QueueSimulation({"a": 2}, queues={"team": {"budget": budget, "guaranteed": {"gpus": 2}}})
    control = control_of(simulation, Written())
    simulation.scheduler.gpu_queues.set_reading(
        UseReading(
            until=simulation.scheduler._timing.now().timestamp(),
            read_at=0.0,
            periods={"Day": {"team": PeriodUse(12.0)}},
            starts={"Day": period_at("Day", simulation.scheduler._timing.now())[0].timestamp()},
        )
    )
    control.check_budgets()
    assert simulation.scheduler.gpu_queues.budgets == {"team": BudgetState.USED_UP}
    first = [Unit(0, 2, 100, namespace="team"), Unit(1, 2, 100, namespace="team"), Unit(2, 2, 100)]
    simulation.step(first, 0)
    simulation.step([], 100)
    simulation.step([], 200)
    assert simulation.started == {0: 0, 2: 100, 1: 200}, "idle GPUs are used, others go first"
    simulation.step([Unit(200, 1, 100, namespace="team")], 200)
    (entry,) = simulation.scheduler.queue
    assert "only GPUs that no other queue waits for" in entry.reason


def test_gpus_that_are_released_one_by_one_count_once() -> None:
    simulation = QueueSimulation({"a": 8}, queues={"team": {"budget": BUDGET}})
    simulation.step([Unit(0, 8, 3600, namespace="team")], 0)
    simulation.step([], 3600)
    assert simulation.ends == {}
    queues = simulation.scheduler.gpu_queues
    known = queues.budget("team")
    assert known is not None
    assert queues.budget_use("team", known) == pytest.approx(8.0)
    simulation.now += 3600
    assert queues.budget_use("team", known) == pytest.approx(8.0)


@pytest.mark.parametrize("in_money", [False, True])
def test_use_before_the_reading_counts_as_accounted_and_after_it_as_seen(in_money: bool) -> None:
    budget = {"period": "Day", "cost" if in_money else "gpuHours": 100.0}
    simulation = QueueSimulation({"a": 8}, queues={"team": {"budget": budget}})
    simulation.step([Unit(0, 4, DAY, namespace="team")], 0)
    start = simulation.scheduler._timing.now().timestamp()
    queues = simulation.scheduler.gpu_queues
    queues.set_reading(
        UseReading(
            until=start + 3600,
            read_at=start + 3600,
            periods={"Day": {"team": PeriodUse(4.0, 12.0)}},
            starts={"Day": start},
            prices={"": 3.0},
        )
    )
    simulation.now = 3 * 3600
    known = queues.budget("team")
    assert known is not None
    assert queues.budget_use("team", known) == pytest.approx(36.0 if in_money else 12.0)


async def test_the_status_tells_what_a_queue_has_and_borrows() -> None:
    simulation = QueueSimulation(
        {"a": 8}, queues={"team": {"guaranteed": {"gpus": 2}, "namespaces": ["team", "other"]}}
    )
    simulation.step(
        [
            Unit(0, 2, DAY, namespace="team"),
            Unit(0, 4, DAY, namespace="other"),
            Unit(0, 4, DAY, namespace="team"),
        ],
        0,
    )
    simulation.scheduler.gpu_queues.local_queues_changed("other", 0)
    written = Written()
    await control_of(simulation, written).step()
    status = written.statuses["team"]
    assert (status["used"], status["guaranteed"], status["borrowed"], status["pending"]) == (6, 2, 4, 4)
    assert status["namespaces"] == ["other", "team"]
    found = conditions(status)
    assert {name: state for name, (state, _) in found.items()} == {
        "Valid": "True",
        "NamespacesAssigned": "True",
        "QuotaApplies": "True",
        "UseCurrent": "Unknown",
        "WithinBudget": "True",
    }


async def test_conditions_name_older_queues_kueue_and_a_server_that_is_down() -> None:
    simulation = QueueSimulation(
        {"a": 8}, queues={"a-first": {"namespaces": ["x"]}, "team": {"namespaces": ["x", "k"]}}
    )
    queues = simulation.scheduler.gpu_queues
    queues.local_queues_changed("k", 1)
    queues.set_reading(UseReading(until=0.0, read_at=0.0))
    written = Written()
    await control_of(simulation, written, "the server can't be reached: Connection refused").step()
    found = conditions(written.statuses["team"])
    assert found["NamespacesAssigned"] == ("False", "namespace x belongs to the older queue a-first")
    assert found["QuotaApplies"][0] == "False"
    assert "Kueue has LocalQueues in k" in found["QuotaApplies"][1]
    assert written.statuses["team"]["kueueNamespaces"] == ["k"]
    assert written.statuses["team"]["halfLifeSeconds"] == 7 * DAY
    assert found["UseCurrent"] == (
        "False",
        "the server can't be reached: Connection refused; the last known shares are used",
    )


async def test_an_unchanged_status_is_not_written_again() -> None:
    simulation = QueueSimulation({"a": 8}, queues={"team": {}})
    written = Written()
    control = control_of(simulation, written)
    await control.step()
    queue = simulation.scheduler.gpu_queues.objects["team"]
    given = {key: value for key, value in written.statuses.pop("team").items() if value is not None}
    simulation.scheduler.gpu_queues.put(structs.replace(queue, status=convert(given, QueueStatus)))
    simulation.now = 60.0
    await control.step()
    assert written.statuses == {}
