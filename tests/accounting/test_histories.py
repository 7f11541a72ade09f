"""Servers that take over from each other account for the same as one that runs all the time.

What happened is written down twice: by servers over a real store, and by the test itself as plain
periods. Whatever happens while no server looks is known from the moment at which one looked last.
"""

import itertools
from dataclasses import dataclass, field

import msgspec
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.accounting import reference
from tests.accounting.histories import HOUR, PLAN, STEP, Prometheus, Server, Time, World, pod

from gpufleet.accounting.hour_readings import SampleGrid
from gpufleet.accounting.rollup import roll_up
from gpufleet.fleet.node_names import NodeNames
from gpufleet.model.node import FleetNode
from gpufleet.model.periods import AllocationPeriod, CapacityPeriod
from gpufleet.model.statistics import HoursQuery, WorkloadHoursQuery
from gpufleet.model.workload import FleetPod, Status
from gpufleet.store import Store

NUMBER = HOUR // 3600
_clusters = itertools.count()
_VALUES = {
    ("a", gpu, HOUR + m * STEP): float((gpu * 37 + m * 11) % 100) for gpu in range(8) for m in range(12)
}


@dataclass
class Truth:
    """Who held what when, as far as it could be observed."""

    open: dict[str, AllocationPeriod] = field(default_factory=dict)
    closed: list[AllocationPeriod] = field(default_factory=list)

    def begin(self, pod: FleetPod, at: float) -> None:
        self.open[pod.uid] = AllocationPeriod(
            pod_uid=pod.uid,
            pod=pod.name,
            namespace=pod.namespace,
            node=pod.node,
            workload_uid=pod.uid,
            workload_kind="Pod",
            workload_name=pod.name,
            source="k8s",
            gpus=pod.gpus,
            share=1.0,
            model="H200",
            held=pod.held,
            labels=pod.labels,
            annotations={},
            start=at,
        )

    def end(self, uid: str, at: float) -> None:
        period = self.open.pop(uid)
        self.closed.append(msgspec.structs.replace(period, end=max(at, period.start)))

    def all(self) -> list[AllocationPeriod]:
        return [p for p in self.closed if p.end > p.start] + list(self.open.values())


Event = tuple[str, int, int]
"""What happens, to which pod or server, and how many minutes later."""
events = st.lists(
    st.tuples(
        st.sampled_from(["start", "start", "finish", "delete", "relabel", "kill", "open", "swap"]),
        st.integers(0, 3),
        st.integers(1, 9),
    ),
    max_size=16,
)


class History:
    """A history that is played to the servers and recorded as the truth."""

    def __init__(self, store: Store) -> None:
        self.time = Time(HOUR + 60.0)
        self.store = store
        self.cluster = f"c{next(_clusters)}"
        self.world = World({"a": FleetNode(name="a", gpu_count=8, gpu_model="H200", created=HOUR - 9000.0)})
        self.truth = Truth()
        self.servers: list[Server] = []
        self.known = self.time.now
        self.pods = itertools.count()

    async def open(self) -> None:
        metrics = Prometheus(_VALUES)
        self.servers.append(Server(self.world, self.store, metrics, self.time, cluster=self.cluster))

    async def step(self, event: Event) -> None:
        what, which, minutes = event
        self.time.now += 60.0 * minutes
        alive = bool(self.servers)
        running = sorted(self.truth.open)
        if what == "start":
            number = next(self.pods)
            made = pod(
                f"p{number}", "a", 2, self.time.now, held=(2 * which, 2 * which + 1), labels={"team": "nlp"}
            )
            self.world.pods[made.uid] = made
            self.truth.begin(made, self.time.now)
            self.put_pod(made)
        elif what in ("finish", "delete", "relabel") and running:
            uid = running[which % len(running)]
            self.change(what, uid, alive)
        elif what == "kill" and self.servers:
            self.servers.pop(0)
        elif what == "open" and len(self.servers) < 3:
            await self.open()
        elif what == "swap" and len(self.servers) > 1:
            self.servers[0].recorder.step_down()
            self.servers.append(self.servers.pop(0))
        await self.round()

    def change(self, what: str, uid: str, alive: bool) -> None:
        before, now = self.world.pods[uid], self.time.now
        seen = now if alive else self.known
        if what == "finish":
            after = msgspec.structs.replace(before, phase=Status.COMPLETED, ended=now)
            self.world.pods[uid] = after
            self.truth.end(uid, now)
            self.put_pod(after)
        elif what == "delete":
            del self.world.pods[uid]
            self.truth.end(uid, seen)
            for server in self.servers:
                server.fleet.drop_pod(uid)
        else:
            after = msgspec.structs.replace(before, labels={"team": f"t{now:.0f}"})
            self.world.pods[uid] = after
            if seen > self.truth.open[uid].start:
                self.truth.end(uid, seen)
                self.truth.begin(after, seen)
            else:
                start = self.truth.open.pop(uid).start
                self.truth.begin(after, start)
            self.put_pod(after)

    def put_pod(self, changed: FleetPod) -> None:
        for server in self.servers:
            server.fleet.put_pod(changed)

    async def round(self) -> None:
        for server in self.servers[1:]:
            server.recorder.collect()
        if self.servers:
            await self.servers[0].round()
            self.known = self.time.now


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(events)
async def test_accounting_is_the_same_whichever_server_leads(store: Store, happened: list[Event]) -> None:
    history = History(store)
    await history.open()
    await history.round()
    for event in happened:
        await history.step(event)
    history.time.now = max(history.time.now, HOUR + 3650.0)
    if not history.servers:
        await history.open()
    await history.round()
    await check(store, history)


async def check(store: Store, history: History) -> None:
    held = history.truth.all()
    capacities = [CapacityPeriod(node="a", gpus=8, model="H200", start=HOUR - 9000.0)]
    grid = SampleGrid(HOUR, STEP, NodeNames())
    await grid.read(Prometheus(_VALUES))
    expected = roll_up(HOUR, held, capacities, grid.samples(), PLAN)
    span = HoursQuery(cluster=history.cluster, first=NUMBER, last=NUMBER, limit=1000)
    (row,) = await store.statistics.cluster_hours(span)
    assert row.allocated_gpu_hours == reference.gpu_hours(
        reference.reference_allocations(HOUR, held, capacities)
    )
    assert row.allocated_gpu_hours == expected.cluster.usage.allocated_gpu_hours
    assert row.avg_utilization == expected.cluster.usage.utilization.mean
    labels = await store.statistics.label_hours(span, "label", "team", "")
    assert {
        r.dimension_value: (r.allocated_gpu_hours, r.idle_gpu_hours, r.p95_utilization) for r in labels
    } == {
        r.dimension_value: (r.usage.allocated_gpu_hours, r.usage.idle_gpu_hours, r.usage.utilization.p95)
        for r in expected.labels
        if r.dimension_key == "team"
    }
    total, rows = await store.workload_pages.page(
        WorkloadHoursQuery(cluster=history.cluster, first=NUMBER, last=NUMBER, limit=1000)
    )
    assert total == len(rows) == len(expected.workloads)
    assert {r.workload_name: (r.allocated_gpu_hours, r.cost, r.sample_count) for r in rows} == {
        r.name: (r.usage.allocated_gpu_hours, r.usage.cost, r.usage.utilization.samples)
        for r in expected.workloads
    }
