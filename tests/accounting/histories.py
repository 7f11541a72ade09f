"""A cluster with a known history, and servers that follow it, die, and take over from each other."""

import dataclasses
from collections.abc import AsyncIterator, Collection, Mapping, Sequence

import numpy as np

from gpufleet.accounting.loop import AccountedCluster, AccountingLoop
from gpufleet.accounting.recorder import Recorder
from gpufleet.accounting.rollup import RollupPlan
from gpufleet.errors import MetricsUnavailable
from gpufleet.fleet.state import Fleet
from gpufleet.model.metric_source import SourceHealth
from gpufleet.model.node import FleetNode
from gpufleet.model.reading import (
    ExtremeBlock,
    GpuRef,
    GpuSeries,
    Processes,
    Quantity,
    RdmaPorts,
    Readings,
    SampleBlock,
    StorageUse,
    TrainingPoint,
)
from gpufleet.model.workload import FleetPod, Status
from gpufleet.runtime.settings.prices import prices_by_model
from gpufleet.store import Store

HOUR = 450_000 * 3600
STEP = 300
PLAN = RollupPlan(
    label_keys=("team",),
    annotation_keys=("cost-center",),
    excluded_namespaces=frozenset({"kube-system"}),
    prices=prices_by_model({"H200": 3.5}),
)


class Time:
    def __init__(self, now: float = float(HOUR)) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    async def of_database(self) -> float:
        return self.now


class Prometheus:
    """A fake metric source: percents, watts and joules by node, GPU and time; or it is down."""

    def __init__(
        self,
        values: Mapping[tuple[str, int, int], float] | None = None,
        watts: Mapping[tuple[str, int, int], float] | None = None,
        joules: Mapping[tuple[str, int, int], float] | None = None,
    ) -> None:
        self.values = dict(values or {})
        self.watts = dict(watts or {})
        self.joules = dict(joules or {})
        self.down = False

    async def samples(
        self, quantity: Quantity, start: float, end: float, step: float
    ) -> AsyncIterator[SampleBlock]:
        if self.down:
            raise MetricsUnavailable("no answer")
        times = np.arange(start, end, step)
        known = {
            Quantity.UTILIZATION: self.values,
            Quantity.POWER: self.watts,
            Quantity.ENERGY: self.joules,
        }.get(quantity, {})
        gpus = sorted({(node, gpu) for node, gpu, _ in known})
        rows = [[known.get((n, g, int(t)), np.nan) for t in times] for n, g in gpus]
        if rows:
            yield SampleBlock(tuple(GpuRef(n, g) for n, g in gpus), times, np.array(rows))

    async def extremes(
        self, quantity: Quantity, start: float, end: float, step: float
    ) -> AsyncIterator[ExtremeBlock]:
        """The lowest and highest of `values` in each step, at any second."""
        times = np.arange(start, end, step)
        cells: dict[tuple[str, int], dict[int, list[float]]] = {}
        for (node, gpu, at), value in self.values.items():
            if start <= at < end:
                cells.setdefault((node, gpu), {}).setdefault(int((at - start) // step), []).append(value)
        shape = (len(cells), len(times))
        lowest, highest = np.full(shape, np.nan), np.full(shape, np.nan)
        for row, by_column in enumerate(cells.values()):
            for column, found in by_column.items():
                lowest[row, column], highest[row, column] = min(found), max(found)
        yield ExtremeBlock(tuple(GpuRef(*gpu) for gpu in cells), times, lowest, highest)

    async def latest(self) -> Readings:
        return Readings(0.0)

    async def processes(self) -> Processes:
        return Processes()

    async def series(
        self, quantity: Quantity, gpus: Collection[GpuRef], start: float, end: float, step: float
    ) -> Sequence[GpuSeries]:
        return []

    async def training(
        self,
        workload_uid: str,
        start: float,
        end: float,
        controllers: Collection[str] = (),
        rank: int | None = None,
    ) -> Sequence[TrainingPoint]:
        return []

    async def storage(self) -> StorageUse | None:
        return None

    async def rdma(self) -> RdmaPorts | None:
        return None

    def health(self) -> SourceHealth:
        return SourceHealth(not self.down, None)


@dataclasses.dataclass
class World:
    """The nodes and pods that exist, as every source lists them."""

    nodes: dict[str, FleetNode] = dataclasses.field(default_factory=dict)
    pods: dict[str, FleetPod] = dataclasses.field(default_factory=dict)


class Server:
    """One server over the world: its fleet, its recorder, its rounds."""

    def __init__(
        self,
        world: World,
        store: Store,
        metrics: Prometheus,
        time: Time,
        plan: RollupPlan = PLAN,
        cluster: str = "prod",
    ) -> None:
        self.time = time
        self.fleet = Fleet(cluster, clock=time)
        for node in world.nodes.values():
            self.fleet.put_node(node)
        for pod in world.pods.values():
            self.fleet.put_pod(pod)
        self.fleet.start_accounting()
        self.recorder = Recorder(self.fleet, store, time, lambda: True)
        self.account = AccountedCluster(self.recorder, metrics, plan, STEP)
        self.loop = AccountingLoop([self.account], store, _nothing, time, now=time.of_database)

    async def round(self) -> None:
        await self.loop.round(self.account)

    def watch(self, until: float) -> None:
        """Let time pass until `until` while the server follows the cluster."""
        while self.time.now < until:
            self.time.now = min(until, self.time.now + 30.0)
            self.recorder.collect()


async def _nothing() -> None:
    return None


def pod(uid: str, node: str, gpus: int, bound: float, **more: object) -> FleetPod:
    facts: dict[str, object] = {"namespace": "ml", "phase": Status.RUNNING, "created": bound, "labels": {}}
    return FleetPod(uid=uid, name=uid, node=node, gpus=gpus, bound=bound, **{**facts, **more})  # type: ignore[arg-type]
