"""Energy equals the slow reference, is conserved, and reaches reports."""

import dataclasses

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.accounting import reference
from tests.accounting import test_rollup as rollup_tests
from tests.accounting.histories import HOUR as STORED_HOUR
from tests.accounting.histories import STEP, Prometheus, Server, Time, World, pod
from tests.accounting.test_rollup import HOUR, NODES, PLAN, allocation_periods, as_samples, capacities

from gpufleet.accounting.hour_readings import SampleGrid
from gpufleet.accounting.report import period_of, report
from gpufleet.accounting.rollup import roll_up
from gpufleet.fleet.node_names import NodeNames
from gpufleet.model.hours import KILOWATT_HOUR
from gpufleet.model.node import FleetNode
from gpufleet.model.periods import AllocationPeriod, CapacityPeriod
from gpufleet.model.statistics import HoursQuery, WorkloadHoursQuery
from gpufleet.store import Store

watts = st.dictionaries(
    st.tuples(st.sampled_from(NODES), st.integers(0, 3), st.integers(0, 11)),
    st.floats(0, 1400) | st.sampled_from([0.0, 0.0004, 699.9995]),
    max_size=60,
)


@settings(max_examples=300, deadline=None)
@given(allocation_periods(), capacities(), watts)
def test_energy_equals_the_reference_and_is_conserved(
    held: list[AllocationPeriod],
    had_gpus: list[CapacityPeriod],
    power: dict[tuple[str, int, int], float],
) -> None:
    samples = as_samples(power)
    # without any utilization: power alone is enough
    samples = dataclasses.replace(
        samples, power=samples.utilization, utilization=np.full_like(samples.utilization, np.nan)
    )
    hour = roll_up(HOUR, held, had_gpus, samples, PLAN)
    points = [(n, i, (HOUR + c * rollup_tests.STEP) * 1000, v) for (n, i, c), v in power.items()]
    had = reference.reference_allocations(HOUR, held, had_gpus)

    def expected(mine: list[reference.ReferenceAllocation]) -> int | None:
        return reference.energy(mine, points, rollup_tests.STEP * 1000)

    whole = hour.cluster.usage.energy
    assert whole == expected(had)
    spaces = reference.grouped(had, lambda h: h.namespace)
    for row in hour.namespaces:
        assert row.usage.energy == expected(spaces[row.namespace])
    unattributed = expected(spaces.get("kube-system", [])) or 0
    assert sum(row.usage.energy or 0 for row in hour.namespaces) + unattributed == (whole or 0)
    assert sum(row.usage.energy or 0 for row in hour.workloads) + unattributed == (whole or 0)
    teams = [row.usage.energy or 0 for row in hour.labels if row.dimension_key == "team"]
    assert sum(teams) == (whole or 0)


def at_seconds(values: dict[tuple[str, int, int], float]) -> dict[tuple[str, int, int], float]:
    return {(n, i, STORED_HOUR + c * STEP): value for (n, i, c), value in values.items()}


@settings(max_examples=100, deadline=None)
@given(
    watts,
    st.dictionaries(
        st.tuples(st.sampled_from(NODES), st.integers(0, 1), st.integers(0, 12)),
        # A step of 300 s at 700 W is 210 kJ; small values are counters that were reset.
        st.floats(0, 4_000_000) | st.sampled_from([0.0, 1e9, 1e9 + 210_000]),
        max_size=40,
    ),
    st.none() | st.integers(1, 3600),
)
async def test_the_energy_counter_wins_over_power_unless_it_was_reset(
    power: dict[tuple[str, int, int], float],
    joules: dict[tuple[str, int, int], float],
    seconds: int | None,
) -> None:
    """The running hour has no counter after the present, where Prometheus repeats the last value."""
    read, counted = at_seconds(power), at_seconds(joules)
    grid = SampleGrid(STORED_HOUR, STEP, NodeNames())
    until = None if seconds is None else float(STORED_HOUR + seconds)
    await grid.read(Prometheus({}, read, counted), until)
    samples = grid.samples()
    known = {at: v for at, v in counted.items() if until is None or at[2] <= until}
    expected = reference.mean_power(read, known, STEP)
    found = {
        (node, gpu, int(samples.times[column]) // 1000): float(samples.power[row, column])
        for (node, gpu), row in samples.gpus.items()
        for column in range(12)
        if np.isfinite(samples.power[row, column])
    }
    assert found == expected


async def test_an_hour_has_the_energy_that_the_counter_rose_by(store: Store) -> None:
    world = World()
    world.nodes["a"] = FleetNode(name="a", gpu_count=8, gpu_model="H200", created=STORED_HOUR - 9000.0)
    world.pods["train"] = pod("train", "a", 1, STORED_HOUR + 0.0, held=(0,))
    times = [STORED_HOUR + m * STEP for m in range(13)]
    # 600 W on average, though every reading happens to be of a pause; the counter starts again after 20 minutes
    joules = {("a", 0, at): 600.0 * ((at - STORED_HOUR) % 1200 or 1200 * (at > STORED_HOUR)) for at in times}
    joules |= {("a", 0, STORED_HOUR + k * 1200): 0.0 for k in range(1, 3)}
    power = {("a", 0, at): 100.0 for at in times}
    time = Time(STORED_HOUR + 10.0)
    server = Server(world, store, Prometheus({}, power, joules), time)
    for seconds in (10.0, 3660.0):
        time.now = STORED_HOUR + seconds
        await server.round()
    number = STORED_HOUR // 3600
    (row,) = await store.statistics.cluster_hours(
        HoursQuery(cluster="prod", first=number, last=number, limit=10)
    )
    # ten steps by the counter, the two steps with a reset by the reading
    assert row.energy_kwh == (10 * 600 + 2 * 100) * STEP / 3_600_000


async def test_hours_and_reports_have_the_energy_in_kilowatt_hours(store: Store) -> None:
    world = World()
    world.nodes["a"] = FleetNode(name="a", gpu_count=8, gpu_model="H200", created=STORED_HOUR - 9000.0)
    world.pods["train"] = pod("train", "a", 2, STORED_HOUR + 0.0, held=(0, 1), labels={"team": "nlp"})
    world.pods["system"] = pod("system", "a", 1, STORED_HOUR + 0.0, held=(2,), namespace="kube-system")
    times = [STORED_HOUR + m * STEP for m in range(12)]
    busy = {("a", gpu, at): 90.0 for gpu in range(3) for at in times}
    power = {("a", gpu, at): 600.0 for gpu in range(3) for at in times}
    time = Time(STORED_HOUR + 10.0)
    server = Server(world, store, Prometheus(busy, power), time)
    for seconds in (10.0, 3660.0):
        time.now = STORED_HOUR + seconds
        await server.round()
    number = STORED_HOUR // 3600
    span = HoursQuery(cluster="prod", first=number, last=number, limit=10)
    (cluster,) = await store.statistics.cluster_hours(span)
    (namespace,) = await store.statistics.namespace_hours(span, "")
    _, (workload,) = await store.workload_pages.page(
        WorkloadHoursQuery(cluster="prod", first=number, last=number, limit=10)
    )
    # the server saw the pods from second 0 on: their creation
    assert cluster.energy_kwh == 1.8
    assert namespace.energy_kwh == workload.energy_kwh == 1.2
    day = number - number % 24
    totals = await store.usage.totals("prod", day, day + 24)
    groups = await store.usage.by_namespace("prod", day, day + 24)
    made = report("prod", period_of("2021-05"), "namespace", totals, groups)
    assert made.totals.energy_kwh == 1.8
    assert [(row.name, row.energy_kwh) for row in made.rows] == [
        ("ml", 1.2),
        ("unattributed", 2_160_000_000 / KILOWATT_HOUR),
        ("unallocated", None),
    ]


async def test_without_readings_of_power_there_is_no_energy(store: Store) -> None:
    world = World()
    world.nodes["a"] = FleetNode(name="a", gpu_count=8, gpu_model="H200", created=STORED_HOUR - 9000.0)
    world.pods["train"] = pod("train", "a", 2, STORED_HOUR + 0.0, held=(0, 1))
    busy = {("a", gpu, STORED_HOUR + m * STEP): 90.0 for gpu in range(2) for m in range(12)}
    time = Time(STORED_HOUR + 10.0)
    server = Server(world, store, Prometheus(busy), time)
    for seconds in (10.0, 3660.0):
        time.now = STORED_HOUR + seconds
        await server.round()
    number = STORED_HOUR // 3600
    (row,) = await store.statistics.cluster_hours(
        HoursQuery(cluster="prod", first=number, last=number, limit=10)
    )
    assert row.energy_kwh is None
    day = number - number % 24
    totals = await store.usage.totals("prod", day, day + 24)
    made = report("prod", period_of("2021-05"), "namespace", totals, [])
    assert made.totals.energy_kwh is None
    assert [each.energy_kwh for each in made.rows] == [None, None]
