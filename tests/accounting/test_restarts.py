"""Servers and demos that stop, are killed and start again within an hour, while the clock is set."""

import itertools
from pathlib import Path

import msgspec
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.accounting import reference
from tests.accounting.expected import expected_hour, stored_hour
from tests.accounting.histories import HOUR, PLAN, STEP, Prometheus, Server, Time, World, pod

from gpufleet.accounting.roll_hour import roll_hour
from gpufleet.cli.demo import demo_settings
from gpufleet.demo.demo_fleet import DemoFleet
from gpufleet.demo.objects.allocation_periods import allocation_periods
from gpufleet.model.node import FleetNode
from gpufleet.model.statistics import HoursQuery
from gpufleet.runtime.settings import StoreSettings, load_settings
from gpufleet.store import Store

NUMBER = HOUR // 3600
NODE = FleetNode(name="a", gpu_count=8, gpu_model="H200", created=HOUR - 9000.0)
DEMO_HOUR = 500_000 * 3600
"""After the creation of the demo's nodes."""
_clusters = itertools.count()

Restart = tuple[bool, int, int]
"""Whether the server is killed (else it stores what it knows and stops), how many seconds it is gone, and by how
many seconds the clock is set before the next one starts."""
restarts = st.lists(
    st.tuples(st.booleans(), st.integers(0, 600), st.sampled_from([0, 0, -400, -30, 30, 900])), max_size=5
)


@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(restarts)
@example([(False, 0, 0), (False, 0, -400), (False, 1, 0)])
async def test_restarts_and_clock_steps_change_neither_capacity_nor_bill(
    store: Store, happened: list[Restart]
) -> None:
    cluster, time = f"r{next(_clusters)}", Time(HOUR + 1.0)
    world = World({"a": NODE}, {"p": pod("p", "a", 2, HOUR + 0.0, held=(0, 1), labels={"team": "nlp"})})
    metrics = Prometheus({("a", gpu, HOUR + m * STEP): 50.0 for gpu in (0, 1) for m in range(12)})
    observed = []
    for killed, gone, stepped in [*happened, (True, 0, 0)]:
        server = Server(world, store, metrics, time, cluster=cluster)
        started = time.now
        await server.round()
        server.watch(time.now + 300.0)
        await server.round()
        observed.append((started, time.now))
        if not killed:
            server.recorder.step_down()
        time.now = max(HOUR + 1.0, time.now + gone + stepped)
    last = Server(world, store, metrics, time, cluster=cluster)
    await last.round()
    started = time.now
    last.watch(HOUR + 3700.0)
    await last.round()
    capacity = await store.capacity_periods.overlapping(cluster, 0.0, 1e12)
    assert [(p.node, p.gpus, p.end) for p in capacity] == [("a", 8, 0.0)]
    span = HoursQuery(cluster=cluster, first=NUMBER, last=NUMBER, limit=10)
    (row,) = await store.statistics.cluster_hours(span)
    assert (row.total_gpu_capacity, row.capacity_gpu_hours) == (8, 8.0)
    assert (row.allocated_gpu_count, row.allocation_rate) == (2.0, 25.0)
    assert row.observed_share == reference.observed_share(HOUR, store_spans(observed, started, time.now))


def store_spans(observed: list[tuple[float, float]], started: float, now: float) -> list[tuple[float, float]]:
    """Return the spans that a server wrote and no later one with an earlier clock took back."""
    spans: list[tuple[float, float]] = []
    for start, end in [*observed, (started, now)]:
        spans = [(low, high) for low, high in spans if low <= end]
        continued = {span for span in spans if span[0] <= start <= span[1]} or {(start, end)}
        spans = [span for span in spans if span not in continued] + [(low, end) for low, _ in continued]
    return spans


async def test_an_hour_observed_for_a_minute_says_so(store: Store) -> None:
    time = Time(HOUR + 3530.0)
    late = msgspec.structs.replace(NODE, created=0.0)
    server = Server(World({"a": late}), store, Prometheus({("a", 0, HOUR + 3300): 50.0}), time)
    await server.round()
    server.watch(HOUR + 3650.0)
    await server.round()
    span = HoursQuery(cluster="prod", first=NUMBER, last=NUMBER, limit=10)
    (row,) = await store.statistics.cluster_hours(span)
    assert (row.total_gpu_capacity, row.observed_share) == (8, 70 / 3600)
    assert row.capacity_gpu_hours == 8 * 70 / 3600


async def test_a_demo_that_is_killed_and_restarted_has_its_capacity_once(
    store: Store, tmp_path: Path
) -> None:
    time = Time(DEMO_HOUR + 600.0)
    size = {"demo.nodes": 16, "demo.gpus": 4, "demo.days": 0.1, "store.data": str(tmp_path)}
    settings = demo_settings(load_settings(size, {}))
    settings[StoreSettings].data.mkdir(parents=True)
    # killed before and after the history was complete, at other times, with a clock that is set back
    for at, complete in ((600.0, False), (900.0, True), (850.0, False), (1500.0, True), (2400.0, True)):
        time.now = DEMO_HOUR + at
        fleet = DemoFleet(settings, "demo", time)
        await fleet.write_history(store, lambda what, done, of: None)
        if complete:
            fleet._save_history_end(fleet._now)
    time.now = DEMO_HOUR + 3600.0
    fleet = DemoFleet(settings, "demo", time)
    await fleet.write_history(store, lambda what, done, of: None)
    simulation, span = fleet.simulation, (DEMO_HOUR - 3600.0, DEMO_HOUR + 3600.0)
    held, capacities = list(allocation_periods(simulation, *span)), list(simulation.capacities(*span))
    open_nodes = [p.node for p in await store.capacity_periods.overlapping("demo", 0.0, 1e12) if not p.end]
    assert len(open_nodes) == len(set(open_nodes)) == 16
    await roll_hour(
        "demo", DEMO_HOUR // 3600, STEP, store, Prometheus({("x", 0, DEMO_HOUR): 1.0}), PLAN, lambda _: None
    )
    expected = expected_hour(DEMO_HOUR, held, capacities, [], "0")
    stored = await stored_hour(store, "demo", DEMO_HOUR)
    assert stored["cluster", ""][:2] == expected["cluster", ""][:2]
    for kind in ("namespace", "workload"):
        mine = {name: row[0] for (what, name), row in stored.items() if what == kind}
        assert mine == {name: row[0] for (what, name), row in expected.items() if what == kind}
    query = HoursQuery(cluster="demo", first=DEMO_HOUR // 3600, last=DEMO_HOUR // 3600, limit=10)
    (row,) = await store.statistics.cluster_hours(query)
    assert (row.total_gpu_capacity, row.observed_share) == (64, 1.0)
