"""Servers that take over from each other account for the same as one that runs all the time.

What happened is written down twice: by servers over a real store, and by the test itself as plain
periods. Whatever happens while no server looks is known from the moment at which one looked last.
Pods come from two sources and hold whole GPUs, shares and MIG instances; nodes are renamed, and the clock is set.
"""

import dataclasses
import itertools
from dataclasses import dataclass, field

import msgspec
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tests.accounting.expected import expected_hour, stored_hour
from tests.accounting.histories import HOUR, PLAN, STEP, Prometheus, Server, Time, World, pod

from gpufleet.model.gpu_models import canonical_model
from gpufleet.model.hours import GPU_HOUR, KILOWATT_HOUR
from gpufleet.model.node import FleetNode
from gpufleet.model.periods import AllocationPeriod, CapacityPeriod
from gpufleet.model.workload import FleetPod, Status
from gpufleet.runtime.settings.prices import Price
from gpufleet.store import Store

NUMBER = HOUR // 3600
_clusters = itertools.count()
_SIZES = {"a": 8, "s": 4}
_CELLS = [(node, gpu, m) for node, gpus in _SIZES.items() for gpu in range(gpus) for m in range(12)]
_VALUES = {(n, gpu, HOUR + m * STEP): float((gpu * 37 + m * 11) % 100) for n, gpu, m in _CELLS}
_WATTS = {(n, gpu, HOUR + m * STEP): 100.0007 + (gpu * 53 + m * 17) % 600 for n, gpu, m in _CELLS}
_NAMES = ["NVIDIA-H200", "NVIDIA_H200", "NVIDIA A100-SXM4-80GB", "NVIDIA L40S"]
"""Names that the label of a node may have; the first two are the same model."""
_PRICES = (
    Price(0.75),
    Price(3.5, canonical_model("NVIDIA H200")),
    Price(1.25, canonical_model("NVIDIA L40S")),
    Price(2.9, canonical_model("NVIDIA H200"), "slurm"),
)
_PLAN = dataclasses.replace(PLAN, prices=_PRICES)
_SHAPES: list[dict[str, object]] = [
    {"node": "a", "gpus": 2, "held": (0, 1)},
    {"node": "a", "gpus": 3, "held": (2, 2, 3), "share": 1 / 7, "namespace": "prod"},
    {"node": "a", "gpus": 1, "held": (3,), "share": 0.3, "namespace": "kube-system"},
    {"node": "s", "gpus": 2, "held": (1, 2), "source": "slurm", "namespace": "hpc"},
]
"""Whole GPUs, MIG instances, a share in an excluded namespace, and a Slurm job."""


@dataclass
class Truth:
    """Who held what when, as far as it could be observed."""

    open: dict[str, AllocationPeriod] = field(default_factory=dict)
    closed: list[AllocationPeriod] = field(default_factory=list)

    def begin(self, pod: FleetPod, at: float, model: str) -> None:
        self.open[pod.uid] = AllocationPeriod(
            pod_uid=pod.uid,
            pod=pod.name,
            namespace=pod.namespace,
            node=pod.node,
            workload_uid=pod.uid,
            workload_kind="Pod",
            workload_name=pod.name,
            source=pod.source,
            gpus=pod.gpus,
            share=pod.share,
            model=canonical_model(model),
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
        st.sampled_from(
            [
                "start",
                "start",
                "start",
                "finish",
                "delete",
                "relabel",
                "rename",
                "kill",
                "stop",
                "open",
                "swap",
                "set",
            ]
        ),
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
        self.world = World(
            {
                name: FleetNode(name=name, gpu_count=gpus, gpu_model=_NAMES[0], created=HOUR - 9000.0)
                for name, gpus in _SIZES.items()
            }
        )
        self.truth = Truth()
        self.servers: list[Server] = []
        self.known = self.time.now
        self.pods = itertools.count()

    async def open(self) -> None:
        metrics = Prometheus(_VALUES, _WATTS)
        self.servers.append(Server(self.world, self.store, metrics, self.time, _PLAN, self.cluster))

    async def step(self, event: Event) -> None:
        what, which, minutes = event
        self.time.now += 60.0 * minutes
        alive = bool(self.servers)
        running = sorted(self.truth.open)
        if what == "start":
            facts = {"bound": self.time.now, "labels": {"team": "nlp"}, **_SHAPES[which]}
            made = pod(f"p{next(self.pods)}", **facts)  # type: ignore[arg-type]
            self.world.pods[made.uid] = made
            self.truth.begin(made, self.time.now, self.model(made))
            self.put_pod(made)
        elif what in ("finish", "delete", "relabel") and running:
            uid = running[which % len(running)]
            self.change(what, uid, alive)
        elif what == "rename":
            self.rename("as"[which % 2], _NAMES[minutes % len(_NAMES)])
        elif what == "set":
            self.time.now += (-400.0, -30.0, 30.0, 900.0)[which]
        elif what in ("kill", "stop") and self.servers:
            if what == "stop":
                await self.round()
                self.servers[0].recorder.step_down()
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
            self.changed(after, seen)
            self.put_pod(after)

    def changed(self, after: FleetPod, seen: float) -> None:
        """The period of the pod ends and the next one begins, unless it began at that moment."""
        if seen > self.truth.open[after.uid].start:
            self.truth.end(after.uid, seen)
            self.truth.begin(after, seen, self.model(after))
        else:
            start = self.truth.open.pop(after.uid).start
            self.truth.begin(after, start, self.model(after))

    def rename(self, node: str, name: str) -> None:
        before = self.world.nodes[node]
        after = self.world.nodes[node] = msgspec.structs.replace(before, gpu_model=name)
        if canonical_model(before.gpu_model) != canonical_model(name):
            seen = self.time.now if self.servers else self.known
            for uid, period in list(self.truth.open.items()):
                if period.node == node:
                    self.changed(self.world.pods[uid], seen)
        for server in self.servers:
            server.fleet.put_node(after)
            server.fleet.refresh()

    def model(self, pod: FleetPod) -> str:
        return self.world.nodes[pod.node].gpu_model

    def put_pod(self, changed: FleetPod) -> None:
        for server in self.servers:
            server.fleet.put_pod(changed)

    async def round(self) -> None:
        for server in self.servers[1:]:
            server.recorder.collect()
        if self.servers:
            await self.servers[0].round()
            self.known = self.time.now


@settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@example(
    [("start", 0, 1), ("rename", 0, 2), ("start", 3, 1), ("rename", 1, 3), ("kill", 0, 1), ("rename", 0, 7)]
)
@example([("start", 1, 1), ("set", 0, 9), ("start", 2, 1), ("stop", 0, 3), ("set", 3, 1), ("open", 0, 2)])
@example([("start", 1, 1), ("start", 1, 2), ("kill", 0, 5), ("set", 0, 1), ("delete", 0, 1), ("open", 0, 1)])
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
    capacities = [
        CapacityPeriod(node=node, gpus=gpus, model="", start=HOUR - 9000.0) for node, gpus in _SIZES.items()
    ]
    samples, power = ([(n, g, at * 1000, v) for (n, g, at), v in each.items()] for each in (_VALUES, _WATTS))
    hidden = PLAN.excluded_namespaces
    expected = expected_hour(
        HOUR, held, capacities, samples, _PRICES, read=samples, power=power, excluded=hidden
    )
    assert await stored_hour(store, history.cluster, HOUR) == expected
    everything = expected_hour(HOUR, held, capacities, samples, _PRICES, power=power)
    attributed = """
        SELECT coalesce(sum(allocated), 0) AS allocated, coalesce(sum(energy), 0) AS energy
        FROM {table} JOIN accounted_cluster AS c ON c.id = cluster WHERE c.name = $1 AND hour = $2
    """
    whole = await store.database.fetchrow(attributed.format(table="cluster_hour"), history.cluster, NUMBER)
    assert whole is not None
    for table in ("namespace_hour", "workload_hour"):
        row = await store.database.fetchrow(attributed.format(table=table), history.cluster, NUMBER)
        assert row is not None
        rest = [everything.get(("namespace", name), (0.0, 0.0, 0.0, 0.0)) for name in hidden]
        assert int(whole["allocated"]) == int(row["allocated"]) + round(sum(r[0] for r in rest) * GPU_HOUR)
        assert int(whole["energy"]) == int(row["energy"]) + round(
            sum(r[3] or 0 for r in rest) * KILOWATT_HOUR
        )
