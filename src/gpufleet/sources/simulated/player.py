"""Show a simulated fleet to an API, as it is at one moment after another.

What has changed since the last moment is written, nothing else: objects of runs that came, went
on or ended, and the GpuNodeStatus of the nodes that this touches. Whatever a user changes through
the API stays until the simulation itself changes that object.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Protocol

from gpufleet.sources.simulated.identities import Json, Phase, phase_at, pods_of
from gpufleet.sources.simulated.machines import beginnings, gpu_status, node, pytorch_jobs
from gpufleet.sources.simulated.objects import objects_of
from gpufleet.sources.simulated.owners import cron_job
from gpufleet.sources.simulated.simulation import Simulation
from gpufleet.sources.simulated.timeline import Run

_BATCH = 200
Progress = Callable[[str, int, int], None]
"""Told what is being written, how many are, and of how many."""


class Storage(Protocol):
    """Where an API keeps its objects: they are put with the uid, age and status that they have."""

    def put(self, objects: Iterable[Json]) -> None:
        """Add or replace objects."""

    def drop(self, objects: Iterable[Json]) -> None:
        """Remove objects; one that is not there is no fault."""


class Player:
    """Keeps an API as the simulation has it."""

    def __init__(
        self, simulation: Simulation, storage: Storage, *, keep: float, leases_in: str = "default"
    ) -> None:
        """`keep` is how many seconds ended runs stay in the API."""
        self._simulation = simulation
        self._storage = storage
        self._keep = keep
        self._leases_in = leases_in
        self._slots = tuple(slot for slot in simulation.slots if slot.role.source == "k8s")
        self._machines = tuple(m for m in simulation.hardware.machines if m.source == "k8s")
        self._shown: dict[tuple[int, int], tuple[Run, Phase]] = {}
        self._nodes: dict[int, tuple[bool, int | None]] = {}
        self._users: dict[int, dict[int, list[str]]] = {}
        self._crons: set[int] = set()

    async def begin(self, at: float, progress: Progress = lambda what, done, of: None) -> None:
        """Write what is there from the start, and the fleet at the first moment."""
        self._storage.put([pytorch_jobs(), *beginnings()])
        await self.show(at, progress)

    async def show(self, at: float, progress: Progress = lambda what, done, of: None) -> int:
        """Write what has changed since the last moment; how many objects that were."""
        touched: set[int] = set()
        put = self._changed_nodes(at, touched)
        drop: list[Json] = []
        now = {(run.slot.number, run.number): run for run in self._visible(at)}
        for key in self._shown.keys() - now.keys():
            run, phase = self._shown.pop(key)
            drop += self._objects(run, phase)[::-1]
            self._settle(run, phase, touched)
        for key, run in now.items():
            phase = phase_at(run, at)
            before = self._shown.get(key)
            if before is not None and before[1] is phase:
                continue
            put += self._objects(run, phase)
            if before is not None and phase is Phase.FINISHED:
                drop += [
                    item for item in self._objects(run, before[1]) if item["kind"] in ("Lease", "GpuClaim")
                ]
            self._cron(run, put)
            self._settle(run, before[1] if before else None, touched)
            self._occupy(run, phase, touched)
            self._shown[key] = run, phase
        nodes = [self._simulation.hardware.machines[number] for number in sorted(touched)]
        hardware = self._simulation.hardware
        statuses = [gpu_status(m, hardware, at, self._users.get(m.number, {})) for m in nodes]
        await self._write(put + statuses, drop, progress)
        return len(put) + len(drop) + len(statuses)

    def _visible(self, at: float) -> Iterable[Run]:
        """The runs whose objects are in the API: those that are, and those that ended lately."""
        for run in self._simulation.runs(at - self._keep, at, self._slots):
            if at < run.ended or run.slot.role.finishes:
                yield run

    def _objects(self, run: Run, phase: Phase) -> list[Json]:
        return objects_of(run, phase, self._simulation.hardware, self._leases_in)

    def _changed_nodes(self, at: float, touched: set[int]) -> list[Json]:
        """Nodes that are new, went down, came back, lost a GPU or got it back."""
        hardware, changed = self._simulation.hardware, []
        for machine in self._machines:
            state = (hardware.is_down(machine, at), hardware.lost_gpu(machine, at))
            if self._nodes.get(machine.number) != state:
                self._nodes[machine.number] = state
                touched.add(machine.number)
                changed.append(node(machine, hardware, at))
        return changed

    def _cron(self, run: Run, put: list[Json]) -> None:
        if run.kind == "CronJob" and run.slot.number not in self._crons:
            self._crons.add(run.slot.number)
            put.append(cron_job(run))

    def _settle(self, run: Run, phase: Phase | None, touched: set[int]) -> None:
        """Nobody uses the GPUs of a run any more, if it had them."""
        if phase in (Phase.STARTING, Phase.RUNNING):
            for pod in pods_of(run):
                users = self._users.get(pod.place.node, {})
                for gpu in pod.place.gpus:
                    if users.get(gpu) == [pod.uid]:
                        del users[gpu]
                touched.add(pod.place.node)

    def _occupy(self, run: Run, phase: Phase, touched: set[int]) -> None:
        if phase in (Phase.STARTING, Phase.RUNNING):
            for pod in pods_of(run):
                users = self._users.setdefault(pod.place.node, {})
                users.update({gpu: [pod.uid] for gpu in pod.place.gpus})
                touched.add(pod.place.node)

    async def _write(self, put: list[Json], drop: list[Json], progress: Progress) -> None:
        """In batches, so that others get their turn in between."""
        self._storage.drop(drop)
        for start in range(0, len(put), _BATCH):
            self._storage.put(put[start : start + _BATCH])
            progress("objects", min(start + _BATCH, len(put)), len(put))
            await asyncio.sleep(0)
