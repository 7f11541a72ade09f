"""Run a simulated fleet beside the server: its Kubernetes API, Slurm, containers, history and readings.

The server reads it like a real fleet.
"""

import asyncio
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Self

import msgspec

from gpufleet.demo.fake_servers import FakeServers
from gpufleet.demo.history import (
    CHART_QUANTITIES,
    REQUIRED_QUANTITIES,
    Progress,
    history_seconds,
    recent_start,
    snapshot_times,
    write_readings,
    write_snapshots,
    write_training,
)
from gpufleet.demo.objects.allocation_periods import allocation_periods
from gpufleet.demo.player import Player
from gpufleet.demo.simulation.simulation import TICK, Simulation
from gpufleet.demo.simulation.training import training_points
from gpufleet.errors import GpufleetError
from gpufleet.exporters.embedded import EmbeddedMetrics
from gpufleet.kubernetes.crds.generate import definitions
from gpufleet.model.reading import Quantity
from gpufleet.runtime.logs import get_logger
from gpufleet.runtime.settings import (
    AccountingSettings,
    DemoSettings,
    DockerSettings,
    KubernetesSettings,
    Settings,
    SlurmSettings,
    StoreSettings,
)
from gpufleet.server.wiring.accounting import rollup_plan, snapshot_step
from gpufleet.server.wiring.components import Components
from gpufleet.store import Store
from kubelite import DirectStorage, KubeLite

_KUBELET_BATCH_SECONDS = 0.2
"""Seconds for which kubelets collect changes before they act."""

_FULL_HISTORY_NODES = 64
"""Fleets up to this size keep finished workloads in the API for the whole history. Larger fleets keep as many."""

_log = get_logger("demo")


class _SavedState(msgspec.Struct):
    """State that is kept between starts."""

    until: float = 0.0
    """Time up to which the store has the history."""


class DemoFleet:
    """A simulated fleet behind APIs; `async with` opens and closes them."""

    def __init__(self, settings: Settings, cluster: str, clock: Callable[[], float] = time.time) -> None:
        demo = settings[DemoSettings]
        self._settings = settings
        self._cluster = cluster
        self._clock = clock
        self._state_file = settings[StoreSettings].data / "demo.json"
        self._now = _tick(clock())
        self._older = (0.0, 0.0)
        """The span whose readings are written in the background."""
        self._history_seconds = history_seconds(demo.days, demo.nodes)
        self.simulation = Simulation(demo.seed, demo.nodes, demo.gpus)
        self._server = KubeLite(port=demo.kube_port)
        self._fake_servers = FakeServers(self.simulation, clock)
        self.storage = DirectStorage(self._server)
        self._player = Player(
            self.simulation,
            self.storage,
            keep=demo.days * 86_400 * min(1.0, _FULL_HISTORY_NODES / demo.nodes),
            lease_namespace=settings[KubernetesSettings].lease_namespace,
        )
        self._exit_stack = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._exit_stack.enter_async_context(self._server)
        await self._exit_stack.enter_async_context(self._fake_servers)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._exit_stack.aclose()

    @property
    def settings(self) -> Settings:
        """The settings of a server that reads the Kubernetes, Slurm and Docker parts of the fleet."""
        url, sources = self._fake_servers.url, self._fake_servers.sources
        history = self._settings[DemoSettings].days * 86_400
        cluster = self._settings.clusters[self._cluster].replace(
            SlurmSettings(url=url if "slurm" in sources else "", refresh=5.0, history=history),
            DockerSettings(url=url if "docker" in sources else ""),
        )
        return self._settings.with_clusters({self._cluster: cluster})

    async def create_objects(self, progress: Progress) -> None:
        """Write the current objects of the fleet to the API, and its kubeconfig."""
        self.storage.put(definitions())
        await self._player.start(self._now, progress)
        kubeconfig = self._settings[KubernetesSettings].kubeconfig
        assert kubeconfig is not None
        await asyncio.to_thread(self._write_kubeconfig, kubeconfig)

    async def write_history(self, store: Store, progress: Progress) -> None:
        """Write the missing history that the server needs before it starts."""
        missing = self._missing_history()
        self._older = missing[0], missing[0]
        if await store.accounted.span(self._cluster) is None:
            # Nothing is accounted for yet: an hour is, once its readings are written.
            self._older = missing[0], recent_start(*missing)
        recent = self._older[1], missing[1]
        await self._write_readings(store, recent, REQUIRED_QUANTITIES, progress)
        await store.accounted.open(self._cluster, recent[0])
        await store.observed.add(self._cluster, *missing)
        await store.allocation_periods.save(
            self._cluster, list(allocation_periods(self.simulation, *missing))
        )
        await store.capacity_periods.save(self._cluster, list(self.simulation.capacities(*missing)))
        await store.accounted.set_stored_until(self._cluster, missing[1])
        await store.readings.append(self._cluster, self.simulation.readings_at(self._now))
        await self._write_snapshots(store, self._snapshot_times(missing)[:1])

    async def start(self, components: Components) -> None:
        """Record the current readings and start the simulation in the background."""
        cluster = components.clusters.get(self._cluster)
        assert isinstance(cluster.metrics, EmbeddedMetrics)
        metrics = cluster.metrics
        await self._record(metrics, self._now, self._now)
        cluster.fleet.put_readings(await metrics.latest())
        components.background.once(
            "demo_history", self._write_remaining_history(components.store, self._missing_history())
        )
        components.background.start("simulation", lambda: self._run_simulation(metrics))
        components.background.start("kubelets", self._run_kubelets)

    def _missing_history(self) -> tuple[float, float]:
        """Return the span of time that is missing from the store."""
        return max(self._now - self._history_seconds, self._history_end()), self._now

    async def _write_remaining_history(self, store: Store, missing: tuple[float, float]) -> None:
        await self._write_readings(store, self._older, REQUIRED_QUANTITIES)
        await store.accounted.open(self._cluster, missing[0])
        await self._write_snapshots(store, self._snapshot_times(missing)[1:])
        await self._write_readings(store, missing, CHART_QUANTITIES)
        await write_training(self.simulation, store.training, self._cluster, *missing)
        self._save_history_end(self._now)

    async def _write_readings(
        self,
        store: Store,
        span: tuple[float, float],
        quantities: frozenset[Quantity],
        progress: Progress = lambda what, done, of: None,
    ) -> None:
        await write_readings(
            self.simulation, store.readings, self._cluster, span, quantities, progress, self._now
        )

    def _snapshot_times(self, missing: tuple[float, float]) -> list[int]:
        return snapshot_times(*missing, snapshot_step(self._accounting))

    async def _write_snapshots(self, store: Store, times: list[int]) -> None:
        plan = rollup_plan(self._accounting)
        await write_snapshots(self.simulation, store.snapshots, self._cluster, times, plan)

    @property
    def _accounting(self) -> AccountingSettings:
        return self._settings.clusters[self._cluster][AccountingSettings]

    async def _run_simulation(self, metrics: EmbeddedMetrics) -> None:
        while True:
            await asyncio.sleep(max(0.0, self._now + TICK - self._clock()))
            before, self._now = self._now, _tick(self._clock())
            await self._player.update(self._now)
            try:
                await self._record(metrics, before, self._now)
            except GpufleetError as error:
                _log.warning("readings_not_recorded", cluster=self._cluster, error=str(error))

    async def _run_kubelets(self) -> None:
        """Act as kubelets: reconcile when something changes or is due."""
        user_pods = self._player.user_pods
        while True:
            user_pods.changed.clear()
            due = self._player.update_user_pods(self._clock())
            with suppress(TimeoutError):
                wait = None if due is None else max(0.0, due - self._clock())
                # Not wait_for: in Python 3.11 it can swallow a cancellation.
                async with asyncio.timeout(wait):
                    await user_pods.changed.wait()
            await asyncio.sleep(_KUBELET_BATCH_SECONDS)

    async def _record(self, metrics: EmbeddedMetrics, since: float, at: float) -> None:
        runs = list(self._player.runs(since, at))
        await metrics.record(await asyncio.to_thread(self.simulation.readings_at, at, runs))
        await metrics.record_processes(await asyncio.to_thread(self.simulation.processes_at, at, runs))
        await metrics.record_storage(self.simulation.storage_at(at))
        await metrics.record_rdma(self.simulation.rdma_at(at))
        for run in runs:
            if run.trains and (points := list(training_points(run, since, at))):
                await metrics.record_training(run.uid, points)
        if self._history_end():
            self._save_history_end(at)

    def _write_kubeconfig(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._server.write_kubeconfig(path)

    def _history_end(self) -> float:
        try:
            return msgspec.json.decode(self._state_file.read_bytes(), type=_SavedState).until
        except (OSError, msgspec.MsgspecError):
            return 0.0

    def _save_history_end(self, until: float) -> None:
        new = self._state_file.with_suffix(".new")
        new.write_bytes(msgspec.json.encode(_SavedState(until)))
        new.replace(self._state_file)


def _tick(at: float) -> float:
    return at - at % TICK
