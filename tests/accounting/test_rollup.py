"""The roll-up and the slow reference agree to the last digit."""

from fractions import Fraction

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.accounting import reference

from gpufleet.accounting.rollup import RollupPlan, roll_up
from gpufleet.accounting.samples import Samples, no_samples
from gpufleet.model.hours import Hour, Usage
from gpufleet.model.periods import AllocationPeriod, CapacityPeriod
from gpufleet.runtime.settings.prices import Price

HOUR = 1_000_800  # a multiple of 3600
STEP = 300
NODES = ["a", "b"]
PLAN = RollupPlan(
    label_keys=("team",),
    annotation_keys=("cost-center",),
    excluded_namespaces=frozenset({"kube-system"}),
    prices=(
        Price(0.75),
        Price(1.5, source="slurm"),
        Price(3.5, model="H200"),
        Price(3.25, model="H200", start=HOUR),
        Price(9.0, model="H200", start=HOUR + 1.0),
        Price(4.125, model="H200", source="slurm", start=HOUR - 86_400.0),
        Price(2.25, model="MI300X", start=HOUR - 3600.0),
    ),
)

moments = st.integers(-1800, 5400).map(lambda s: HOUR + s) | st.floats(HOUR - 10, HOUR + 3610).map(
    lambda s: round(s, 3)
)

MODELS = st.sampled_from(["H200", "MI300X", "L4"])


@st.composite
def models_of(draw: st.DrawFn, held: list[int]) -> tuple[str, ...]:
    by_gpu = {gpu: draw(MODELS) for gpu in held}
    return tuple(by_gpu[gpu] for gpu in held)


@st.composite
def allocation_periods(draw: st.DrawFn) -> list[AllocationPeriod]:
    found = []
    for number in range(draw(st.integers(0, 8))):
        start = draw(moments)
        end = draw(st.just(0.0) | moments)
        if end and end <= start:
            end = start + draw(st.integers(1, 4000))
        gpus = draw(st.integers(1, 4))
        held = draw(
            st.just([])
            | st.lists(st.integers(0, 3), min_size=1, max_size=gpus, unique=True)
            | st.lists(st.integers(0, 1), min_size=1, max_size=gpus)  # MIG instances of few GPUs
        )
        workload = draw(st.sampled_from(["w0", "w1", "w2"]))
        team = draw(st.sampled_from([{}, {"team": "nlp"}, {"team": "vision"}]))
        found.append(
            AllocationPeriod(
                pod_uid=f"p{number if draw(st.booleans()) else 0}",
                pod="p",
                namespace=draw(st.sampled_from(["ml", "prod", "kube-system"])),
                node=draw(st.sampled_from(NODES)),
                workload_uid=workload,
                workload_kind="Job",
                workload_name=workload,
                source=draw(st.sampled_from(["k8s", "slurm"])),
                gpus=gpus,
                share=draw(st.sampled_from([1.0, 1.0, 0.5, 0.1, 1 / 7])),
                model=draw(MODELS),
                held=tuple(sorted(held)),
                models=draw(st.just(()) | models_of(sorted(held))),
                labels=team,
                annotations={},
                start=float(start),
                end=float(end),
            )
        )
    return [
        h for n, h in enumerate(found) if all((h.pod_uid, h.start) != (o.pod_uid, o.start) for o in found[:n])
    ]


@st.composite
def capacities(draw: st.DrawFn) -> list[CapacityPeriod]:
    found = []
    for node in NODES:
        changed = draw(st.none() | st.integers(0, 3600))
        if changed is None:
            found.append(CapacityPeriod(node=node, gpus=4, model="H200", start=0.0))
        else:
            found.append(
                CapacityPeriod(node=node, gpus=4, model="H200", start=0.0, end=float(HOUR + changed))
            )
            found.append(
                CapacityPeriod(
                    node=node, gpus=draw(st.integers(0, 4)), model="H200", start=float(HOUR + changed)
                )
            )
    return found


readings = st.dictionaries(
    st.tuples(st.sampled_from(NODES), st.integers(0, 3), st.integers(0, 11)),
    st.floats(0, 100) | st.sampled_from([0.0, 4.99999, 5.0, 100.0]),
    max_size=60,
)


between = st.dictionaries(
    st.tuples(st.sampled_from(NODES), st.integers(0, 3), st.integers(0, 3599)), st.floats(0, 100), max_size=40
)
"""Readings at any second between the samples."""


def as_samples(
    values: dict[tuple[str, int, int], float], read: dict[tuple[str, int, int], float] | None = None
) -> Samples:
    gpus = {
        (node, index): number for number, (node, index) in enumerate((n, i) for n in NODES for i in range(4))
    }
    matrix = np.full((len(gpus), 12), np.nan)
    for (node, index, column), value in values.items():
        matrix[gpus[node, index], column] = value
    lowest, highest = np.full_like(matrix, np.nan), np.full_like(matrix, np.nan)
    for (node, index, second), value in (read or {}).items():
        cell = gpus[node, index], second // STEP
        lowest[cell], highest[cell] = np.fmin(lowest[cell], value), np.fmax(highest[cell], value)
    times = np.array([(HOUR + column * STEP) * 1000 for column in range(12)], dtype=np.int64)
    gaps = np.full_like(matrix, np.nan)
    return Samples(gpus, times, STEP * 1000, matrix, gaps, gaps, lowest, highest)


def check(
    usage: Usage,
    had: list[reference.ReferenceAllocation],
    values: list[reference.Sample],
    by_gpu: bool,
    read: list[reference.Sample] | None = None,
) -> None:
    found = reference.hits(had, values)
    points = [hit.value for hit in found] if by_gpu else reference.moments(found)
    assert usage.allocated_gpu_hours == reference.gpu_hours(had)
    assert usage.idle_gpu_hours == reference.idle_hours(found, had, STEP * 1000)
    extremes = reference.extremes(found, had, read or [], STEP * 1000) if by_gpu else None
    assert msgspec.structs.asdict(usage.utilization) == reference.spread(points, found, extremes)
    assert usage.workloads == len({h.period.workload_uid + h.period.namespace for h in had})
    cost = sum(
        (h.part * (h.end - h.start) * reference.price(h, PLAN.prices, HOUR) for h in had),
        Fraction(0),
    )
    assert usage.cost == float(cost / reference.HOUR)


@settings(max_examples=300, deadline=None)
@given(allocation_periods(), capacities(), readings, between)
def test_the_roll_up_equals_the_reference_to_the_last_digit(
    held: list[AllocationPeriod],
    had_gpus: list[CapacityPeriod],
    values: dict[tuple[str, int, int], float],
    read: dict[tuple[str, int, int], float],
) -> None:
    hour = roll_up(HOUR, held, had_gpus, as_samples(values, read), PLAN)
    dense = [(n, i, (HOUR + s) * 1000, v) for (n, i, s), v in read.items()]
    had = reference.reference_allocations(HOUR, held, had_gpus)
    points = [(n, i, (HOUR + c * STEP) * 1000, v) for (n, i, c), v in values.items()]
    assert hour.cluster.capacity_gpu_hours == reference.capacity_hours(HOUR, had_gpus)
    check(hour.cluster.usage, had, points, by_gpu=False)
    spaces = reference.grouped((h for h in had if h.period.namespace != "kube-system"), lambda h: h.namespace)
    assert [row.namespace for row in hour.namespaces] == sorted(spaces)
    for row in hour.namespaces:
        check(row.usage, spaces[row.namespace], points, by_gpu=False)
    teams = reference.grouped(had, lambda h: h.labels.get("team", "(none)"))
    rows = [row for row in hour.labels if row.dimension_key == "team"]
    assert [row.dimension_value for row in rows] == sorted(teams)
    for label in rows:
        check(label.usage, teams[label.dimension_value], points, by_gpu=False)
    works = reference.grouped(
        (h for h in had if h.period.namespace != "kube-system"), lambda h: (h.namespace, h.workload_uid)
    )
    assert [(row.namespace, row.uid) for row in hour.workloads] == sorted(works)
    for work in hour.workloads:
        mine = works[work.namespace, work.uid]
        check(work.usage, mine, points, by_gpu=True, read=dense)
        counted = (work.mean_replicas, work.most_replicas, work.fewest_replicas, work.requested_gpus)
        assert counted == reference.pods_over_time(mine)
        assert work.running == (max(h.end for h in mine) == (HOUR + 3600) * 1000)


@settings(max_examples=200, deadline=None)
@given(allocation_periods(), capacities(), st.randoms())
def test_hours_add_up_and_do_not_depend_on_the_order_of_the_input(
    held: list[AllocationPeriod], had: list[CapacityPeriod], random: object
) -> None:
    plan = RollupPlan(label_keys=("team",))
    hour = roll_up(HOUR, held, had, no_samples(), plan)
    shuffled = list(held)
    random.shuffle(shuffled)  # type: ignore[attr-defined]
    assert roll_up(HOUR, shuffled, had, no_samples(), plan) == hour
    total = hour.cluster.usage.allocated_gpu_hours
    assert total <= hour.cluster.capacity_gpu_hours
    for rows in (hour.namespaces, hour.labels, hour.workloads):
        assert sum(_exact(row.usage) for row in rows) == _exact(hour.cluster.usage)


def _exact(usage: Usage) -> int:
    return round(usage.allocated_gpu_hours * 3_600_000 * 1_000_000)


def period(**changes: object) -> AllocationPeriod:
    facts: dict[str, object] = {
        "pod_uid": "p",
        "pod": "p",
        "namespace": "ml",
        "node": "a",
        "workload_uid": "w",
        "workload_kind": "Job",
        "workload_name": "w",
        "source": "k8s",
        "gpus": 1,
        "share": 1.0,
        "model": "H200",
        "held": (0,),
        "labels": {},
        "annotations": {},
        "start": float(HOUR),
    }
    return AllocationPeriod(**{**facts, **changes})  # type: ignore[arg-type]


def hour_of(*held: AllocationPeriod, gpus: int = 4) -> Hour:
    return roll_up(
        HOUR, held, [CapacityPeriod(node="a", gpus=gpus, model="H200", start=0.0)], no_samples(), PLAN
    )


def test_a_workload_of_seconds_is_billed_for_seconds() -> None:
    hour = hour_of(period(start=HOUR + 60.0, end=HOUR + 69.0))
    assert hour.workloads[0].usage.allocated_gpu_hours == 9 / 3600
    assert hour.workloads[0].usage.utilization.mean is None


def test_where_clocks_disagree_the_newer_holder_proves_that_the_older_had_let_go() -> None:
    hour = hour_of(
        period(pod_uid="old", workload_uid="old", end=HOUR + 1805.0),
        period(pod_uid="new", workload_uid="new", start=HOUR + 1800.0),
    )
    assert [(row.uid, row.usage.allocated_gpu_hours) for row in hour.workloads] == [
        ("new", 0.5),
        ("old", 0.5),
    ]


def test_the_full_hour_belongs_to_the_hour_that_it_begins() -> None:
    ends = hour_of(period(start=HOUR - 100.0, end=float(HOUR)))
    begins = hour_of(period(start=HOUR + 3600.0))
    assert ends.workloads == begins.workloads == ()


@pytest.mark.parametrize("gpus", [0, 4])
def test_an_empty_hour_has_a_cluster_and_nothing_else(gpus: int) -> None:
    hour = hour_of(gpus=gpus)
    assert hour.cluster.usage.allocated_gpu_hours == 0
    assert (hour.namespaces, hour.labels, hour.workloads) == ((), (), ())
    assert hour.cluster.capacity_gpu_hours == gpus
