import random
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from gpufleet.model.periods import AllocationPeriod, CapacityPeriod
from gpufleet.placement import CandidateGpu, CandidateNode, Request
from gpufleet.scheduler.queues.expected_order import order_of_quotas
from gpufleet.simulation import generate
from gpufleet.simulation.compare import Input, compare
from gpufleet.simulation.engine import Simulation
from gpufleet.simulation.fleet import Running
from gpufleet.simulation.ledger import recorded
from gpufleet.simulation.outcome import Outcome
from gpufleet.simulation.page import page
from gpufleet.simulation.scenario import DAY, HOUR, RULES, Scenario
from gpufleet.simulation.text_report import table
from gpufleet.simulation.timed_trace import read_timed_tasks
from gpufleet.simulation.unit import Unit

LOAD = generate.Load(days=4, load=0.95, mean_hours=3, workloads=60)


def one_node(gpus: int = 8) -> list[CandidateNode]:
    return [CandidateNode("a", tuple(CandidateGpu(at) for at in range(gpus)))]


def starts(units: list[Unit], scenario: Scenario, nodes: list[CandidateNode]) -> dict[int, float]:
    """Return when each unit started last."""
    run = Simulation(nodes, units, scenario, until=30 * DAY)
    found: dict[int, float] = {}

    def observe(now: float) -> None:
        found.update({number: running.started for number, running in run.fleet.running.items()})

    run.observe = observe
    run.run()
    return found


def unit(number: int, gpus: int, arrives: float, runtime: float, **more: object) -> Unit:
    return replace(Unit(number, Request(count=gpus), arrives, runtime), **more)  # type: ignore[arg-type]


MIX = [
    unit(0, 6, 0, 100),
    unit(1, 8, 1, 100),
    unit(2, 2, 2, 10),
    unit(3, 8, 3, 10, priority=10),
]


@pytest.mark.parametrize(
    ("rules", "expected"),
    [
        ("fifo", {0: 0, 1: 100, 2: 200, 3: 210}),
        ("priority", {0: 0, 2: 2, 3: 100, 1: 110}),
        ("no-backfill", {3: 3, 1: 13, 2: 113, 0: 113}),
        ("default", {3: 3, 1: 13, 2: 113, 0: 113}),
    ],
)
def test_rules_decide_the_order_of_starts(rules: str, expected: dict[int, float]) -> None:
    assert starts(MIX, Scenario(rules=RULES[rules]), one_node()) == expected


def test_a_declared_run_time_lets_a_unit_run_before_reserved_gpus_are_needed() -> None:
    units = [
        unit(0, 6, 0, 100, declared=100.0),
        unit(1, 8, 1, 100),
        unit(2, 2, 2, 50, declared=50.0),
        unit(3, 2, 3, 50),
    ]
    assert starts(units, Scenario(), one_node()) == {0: 0, 1: 100, 2: 2, 3: 200}


def test_a_queue_at_its_limit_waits_while_others_start() -> None:
    units = [unit(at, 1, at, 100, queue="a" if at < 4 else "b") for at in range(6)]
    found = starts(units, Scenario(queues=order_of_quotas({}, {"a": 2}, {})), one_node())
    assert [found[at] for at in range(6)] == [0, 1, 100, 101, 4, 5]


def test_use_of_queues_follows_their_weights() -> None:
    rng = random.Random(1)
    units = [unit(at, 1, at, rng.uniform(0.5, 1.5) * HOUR, queue=rng.choice("abc")) for at in range(2_100)]
    weights = {"a": 1.0, "b": 2.0, "c": 4.0}
    scenario = Scenario(queues=order_of_quotas(weights, {}, {}))
    [outcome] = compare([(scenario, Input(one_node(14), units, 3 * DAY))])
    total = sum(outcome.use.values())
    for queue, weight in weights.items():
        assert outcome.use[queue] / total == pytest.approx(weight / 7, abs=0.02)


def test_failed_nodes_interrupt_units_that_run_again_elsewhere() -> None:
    scenario = Scenario(node_mtbf_s=2 * DAY, repair_s=HOUR, seed=3)
    units = [unit(at, 8, at, 6 * HOUR) for at in range(6)]
    nodes = generate.nodes(3)
    [outcome] = compare([(scenario, Input(nodes, units, 20 * DAY))])
    assert outcome.failures > 0
    assert outcome.completed == 6
    assert outcome.lost_gpu_hours > 0


@pytest.mark.parametrize("grace", [0.0, 30.0])
@pytest.mark.parametrize("deleted", [20.0, 100.0])
def test_a_unit_that_is_deleted_after_its_eviction_does_not_start_again(deleted: float, grace: float) -> None:
    evicted = unit(0, 8, 0, 1000, leaves_at=deleted)
    preempting = unit(1, 8, 10, 500, priority=10)
    found = starts([evicted, preempting], Scenario(grace_s=grace), one_node())
    assert found == {0: 0, 1: min(10 + grace, deleted) if grace else 10}


def test_evicted_units_have_their_gpus_until_they_have_terminated_or_the_simulation_ends() -> None:
    units = [unit(0, 8, 0, 1000), unit(1, 8, 10, 500, priority=10)]
    run = Simulation(one_node(), units, Scenario(grace_s=30.0), until=25)
    outcome = run.run()
    assert outcome.allocated_gpu_hours == pytest.approx(8 * 25 / 3600)
    assert outcome.preemptions == 0
    later = Simulation(one_node(), units, Scenario(grace_s=30.0), until=100).run()
    assert later.preemptions == 1
    assert later.allocated_gpu_hours == pytest.approx(8 * 100 / 3600)


def test_units_that_no_node_can_take_are_counted_and_left_out() -> None:
    [outcome] = compare([(Scenario(), Input(one_node(), [unit(0, 9, 0, 1), unit(1, 1, 0, 1)], DAY))])
    assert (outcome.impossible, outcome.completed) == (1, 1)


def test_the_same_seed_gives_the_same_outcome() -> None:
    given = Input(generate.nodes(10), generate.units(80, LOAD, 1), 4 * DAY)
    scenario = Scenario(node_mtbf_s=5 * DAY, seed=7)
    first, second = (outcome.report() | {"seconds": 0} for outcome in compare([(scenario, given)] * 2))
    assert first == second


def test_progress_reaches_the_end() -> None:
    seen: list[tuple[str, float]] = []
    given = Input(generate.nodes(4), generate.units(32, LOAD, 1), 4 * DAY)
    compare([(Scenario(), given)], progress=lambda name, share: seen.append((name, share)))
    assert len(seen) > 10
    assert seen[-1] == ("default", 1.0)


class Links(HTMLParser):
    """Collects what a page loads."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.tags: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.loads += [value or "" for name, value in attrs if name in ("src", "href")]


def test_table_and_page_show_every_scenario_and_load_nothing() -> None:
    given = Input(generate.nodes(6), generate.units(48, LOAD, 1), 4 * DAY)
    runs = [(Scenario(name, rules=rules), given) for name, rules in RULES.items()]
    outcomes = compare(runs)
    text, html = table(outcomes), page(outcomes, "A <title>")
    links = Links()
    links.feed(html)
    assert links.loads == []
    assert links.tags.count("svg") == 4
    assert "A &lt;title&gt;" in html
    for name in RULES:
        assert name in text
        assert name in html


def test_a_trace_with_times_has_priorities_queues_and_departures() -> None:
    text = (
        "name,num_gpu,gpu_milli,qos,creation_time,deletion_time,scheduled_time\n"
        "a,1,500,LS,10,110,20\nb,2,1000,BE,20,60,\nc,0,,BE,20,60,30\n"
    )
    first, second = read_timed_tasks(text.splitlines())
    assert (first.arrives, first.runtime, first.priority, first.queue, first.size) == (
        10,
        90,
        100,
        "LS",
        "share",
    )
    assert (second.leaves_at, second.priority, second.size) == (60, 0, "2 gpu")


class Keeper(Simulation):
    """Keeps the periods of all units."""

    def __init__(self, *arguments: object) -> None:
        super().__init__(*arguments)  # type: ignore[arg-type]
        self.seen: dict[tuple[int, float], Running] = {}
        self.observe = self._keep

    def _keep(self, now: float) -> None:
        for number, running in self.fleet.running.items():
            self.seen[number, running.started] = running


def ledger_of(run: Keeper, until: float) -> tuple[list[AllocationPeriod], list[CapacityPeriod]]:
    """Return the periods that the server would have recorded."""
    periods = [
        AllocationPeriod(
            pod_uid=f"{number}-{member}-{started}",
            pod=f"pod-{number}-{member}",
            namespace=running.unit.queue,
            node=fits.node,
            workload_uid=f"w{number}",
            workload_kind="Job",
            workload_name=running.unit.workload,
            source="k8s",
            gpus=running.unit.request.count,
            share=1.0,
            model="H100",
            held=fits.gpus,
            labels={},
            annotations={},
            created=running.unit.arrives,
            priority=running.unit.priority,
            max_runtime=running.unit.declared or 0.0,
            start=started,
            end=running.ends if running.ends < until else 0.0,
        )
        for (number, started), running in run.seen.items()
        for member, fits in enumerate(running.places)
    ]
    capacity = [
        CapacityPeriod(node=name, gpus=8, model="H100", start=0.0) for name in run.fleet.inventory.nodes
    ]
    return periods, capacity


@pytest.mark.parametrize("seed", [1, 2])
def test_replaying_an_unchanged_ledger_gives_its_allocation_and_its_waits(seed: int) -> None:
    rules = replace(RULES["default"], preempt=False)
    units, nodes = generate.units(160, LOAD, seed), generate.nodes(20)
    original = Keeper(nodes, units, Scenario(rules=rules), 4 * DAY)
    before: Outcome = original.run()
    found = recorded(*ledger_of(original, 4 * DAY), 0.0, 4 * DAY)
    [after] = compare([(Scenario(rules=rules), Input(found.nodes, found.units, found.end, found.absences))])
    assert found.allocation_percent == pytest.approx(before.allocation_percent, abs=0.2)
    assert after.allocation_percent == pytest.approx(found.allocation_percent, abs=1.0)
    mean = [outcome.report()["wait_seconds"]["mean"] for outcome in (before, after)]
    assert mean[0] > 60
    assert mean[1] == pytest.approx(mean[0], rel=0.1)


def test_nodes_are_absent_while_the_ledger_has_none_of_their_capacity() -> None:
    capacity = [
        CapacityPeriod(node="a", gpus=8, model="H100", start=0.0, end=50.0),
        CapacityPeriod(node="a", gpus=8, model="H100", start=80.0),
        CapacityPeriod(node="b", gpus=4, model="A100", start=20.0, end=60.0),
    ]
    found = recorded([], capacity, 10.0, 100.0)
    assert found.absences == [("a", 50.0, 80.0), ("b", 10.0, 20.0), ("b", 60.0, 101.0)]
    assert [len(node.gpus) for node in found.nodes] == [8, 4]
