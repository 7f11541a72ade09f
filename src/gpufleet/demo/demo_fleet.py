"""Run a simulated fleet beside the server: its Kubernetes-shaped API, its Slurm and its containers, its past,
and its present.

The server doesn't know: it follows them like any others and reads the readings from its store.
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
from gpufleet.demo.player import Player
from gpufleet.demo.simulation.history import (
    CHARTED,
    MEMORY,
    MEMORY_REACH,
    NEEDED,
    Progress,
    reach,
    write_readings,
    write_training,
)
from gpufleet.demo.simulation.simulation import TICK, Simulation
from gpufleet.demo.simulation.training import training_points
from gpufleet.errors import GpufleetError
from gpufleet.exporters.embedded import EmbeddedMetrics
from gpufleet.kubernetes.crds.generate import definitions
from gpufleet.model.reading import Quantity
from gpufleet.runtime.logs import get_logger
from gpufleet.runtime.settings import (
    DemoSettings,
    DockerSettings,
    KubernetesSettings,
    Settings,
    SlurmSettings,
    StoreSettings,
)
from gpufleet.server.wiring.components import Components
from gpufleet.store import Store
from kubelite import KubeLite
from kubelite.storage.direct import DirectStorage

_TOGETHER = 0.2
"""Seconds in which the kubelets gather changes."""

_FEW_NODES = 64
"""Up to this size ended workloads stay in the API for all of the past; larger fleets keep about as many."""

_log = get_logger("demo")


class _Noted(msgspec.Struct):
    """What is remembered from one start to the next."""

    until: float = 0.0
    """Up to when the past is in the store."""


class DemoFleet:
    """A simulated fleet that is shown through an API; `async with` opens and closes it."""

    def __init__(self, settings: Settings, cluster: str, clock: Callable[[], float] = time.time) -> None:
        demo = settings[DemoSettings]
        self._settings = settings
        self._cluster = cluster
        self._clock = clock
        self._notes = settings[StoreSettings].data / "demo.json"
        self._now = _tick(clock())
        self._past = reach(demo.days, demo.nodes)
        self.simulation = Simulation(demo.seed, demo.nodes, demo.gpus)
        self._server = KubeLite(port=demo.kube_port)
        self._doors = FakeServers(self.simulation, clock)
        self.storage = DirectStorage(self._server)
        self._player = Player(
            self.simulation,
            self.storage,
            keep=demo.days * 86_400 * min(1.0, _FEW_NODES / demo.nodes),
            leases_in=settings[KubernetesSettings].lease_namespace,
        )
        self._open = AsyncExitStack()

    async def __aenter__(self) -> Self:
        await self._open.enter_async_context(self._server)
        await self._open.enter_async_context(self._doors)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._open.aclose()

    @property
    def settings(self) -> Settings:
        """The settings of a server that follows all of it: Kubernetes, Slurm and containers."""
        url, sources, days = self._doors.url, self._doors.sources, self._settings[DemoSettings].days
        cluster = self._settings.clusters[self._cluster].replace(
            SlurmSettings(url=url if "slurm" in sources else "", refresh=5.0, history=days * 86_400),
            DockerSettings(url=url if "docker" in sources else ""),
        )
        return self._settings.with_clusters({self._cluster: cluster})

    async def begin(self, progress: Progress) -> None:
        """Write the fleet as it is now into the API, and its kubeconfig."""
        self.storage.put(definitions())
        await self._player.begin(self._now, progress)
        kubeconfig = self._settings[KubernetesSettings].kubeconfig
        assert kubeconfig is not None
        await asyncio.to_thread(self._write_kubeconfig, kubeconfig)

    async def write_past(self, store: Store, progress: Progress) -> None:
        """Write what the store misses of the past and must have before the server begins."""
        missing = self._missing()
        await self._write_readings(store, missing, NEEDED, progress)
        lately = (max(missing[0], self._now - MEMORY_REACH), missing[1])
        await self._write_readings(store, lately, MEMORY)
        await store.accounted.open(self._cluster, missing[0])
        await store.allocation_periods.save(self._cluster, list(self.simulation.holdings(*missing)))
        await store.capacity_periods.save(self._cluster, list(self.simulation.capacities(*missing)))
        await store.readings.append(self._cluster, self.simulation.readings_at(self._now))

    async def go_on(self, parts: Components) -> None:
        """Record the present, and live from now on."""
        cluster = parts.clusters.get(self._cluster)
        assert isinstance(cluster.metrics, EmbeddedMetrics)
        metrics = cluster.metrics
        await self._record(metrics, self._now, self._now)
        cluster.fleet.put_readings(await metrics.latest())
        parts.background.once("rest of the past", self._write_rest(parts.store, self._missing()))
        parts.background.start("simulation", lambda: self._live(metrics))
        parts.background.start("kubelets", self._tend)

    def _missing(self) -> tuple[float, float]:
        """The span of time that the store has nothing of."""
        return max(self._now - self._past, self._noted()), self._now

    async def _write_rest(self, store: Store, missing: tuple[float, float]) -> None:
        await self._write_readings(store, missing, CHARTED)
        await write_training(self.simulation, store.training, self._cluster, *missing)
        self._note(self._now)

    async def _write_readings(
        self,
        store: Store,
        span: tuple[float, float],
        wanted: frozenset[Quantity],
        progress: Progress = lambda what, done, of: None,
    ) -> None:
        await write_readings(self.simulation, store.readings, self._cluster, span, wanted, progress)

    async def _live(self, metrics: EmbeddedMetrics) -> None:
        while True:
            await asyncio.sleep(max(0.0, self._now + TICK - self._clock()))
            before, self._now = self._now, _tick(self._clock())
            await self._player.show(self._now)
            try:
                await self._record(metrics, before, self._now)
            except GpufleetError as error:
                _log.warning("readings not recorded", error=str(error))

    async def _tend(self) -> None:
        """Play the kubelets: look at once when something changes, and when something is due."""
        guests = self._player.guests
        while True:
            guests.changed.clear()
            due = self._player.tend(self._clock())
            with suppress(TimeoutError):
                wait = None if due is None else max(0.0, due - self._clock())
                # Not wait_for: in Python 3.11 it forgets a cancellation that comes with the change.
                async with asyncio.timeout(wait):
                    await guests.changed.wait()
            await asyncio.sleep(_TOGETHER)

    async def _record(self, metrics: EmbeddedMetrics, since: float, at: float) -> None:
        runs = list(self._player.runs(since, at))
        await metrics.record(await asyncio.to_thread(self.simulation.readings_at, at, runs))
        await metrics.record_processes(await asyncio.to_thread(self.simulation.processes_at, at, runs))
        await metrics.record_storage(self.simulation.storage_at(at))
        await metrics.record_rdma(self.simulation.rdma_at(at))
        for run in runs:
            if run.trains and (points := list(training_points(run, since, at))):
                await metrics.record_training(run.uid, points)
        if self._noted():
            self._note(at)

    def _write_kubeconfig(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._server.write_kubeconfig(path)

    def _noted(self) -> float:
        try:
            return msgspec.json.decode(self._notes.read_bytes(), type=_Noted).until
        except (OSError, msgspec.MsgspecError):
            return 0.0

    def _note(self, until: float) -> None:
        new = self._notes.with_suffix(".new")
        new.write_bytes(msgspec.json.encode(_Noted(until)))
        new.replace(self._notes)


def _tick(at: float) -> float:
    return at - at % TICK
