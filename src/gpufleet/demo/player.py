"""Show a simulated fleet to an API, as it is at one moment after another.

What has changed since the last moment is written, nothing else: objects of runs that came, went
on or ended, and the GpuNodeStatus of the nodes that this touches. Whatever a user changes through
the API stays until the simulation itself changes that object.

Pods of users come first. A run whose GPUs they have waits until these are free and begins then, or
is withdrawn when its time is over. A pod of a run that somebody deletes comes again, as its controller
would make a new one; a bare pod stays away.
"""

import asyncio
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from gpufleet.demo.objects.nodes import beginnings, gpu_status, kinds, node
from gpufleet.demo.objects.objects import objects_of
from gpufleet.demo.objects.owners import cron_job
from gpufleet.demo.simulation.identities import Json, Phase, phase_at, pods_of
from gpufleet.demo.simulation.simulation import Simulation
from gpufleet.demo.simulation.timeline import Run
from gpufleet.demo.user_pods import DirectStorage, UserPods

_BATCH = 200
Progress = Callable[[str, int, int], None]
"""Told what is being written, how many are, and of how many."""


Key = tuple[int, int]
"""A run: the numbers of its slot and of its cell."""

_HOLDING = (Phase.STARTING, Phase.RUNNING)


class Player:
    """Keeps an API as the simulation has it."""

    def __init__(
        self, simulation: Simulation, storage: DirectStorage, *, keep: float, leases_in: str = "default"
    ) -> None:
        """`keep` is how many seconds ended runs stay in the API."""
        self._simulation = simulation
        self._storage = storage
        self._keep = keep
        self._leases_in = leases_in
        self._slots = tuple(slot for slot in simulation.slots if slot.role.source == "k8s")
        self._machines = tuple(m for m in simulation.hardware.machines if m.source == "k8s")
        self._shown: dict[Key, tuple[Run, Phase]] = {}
        self._changed: dict[Key, Run] = {}
        self._withdrawn: set[Key] = set()
        self._pods: dict[str, Key] = {}
        self._nodes: dict[int, tuple[bool, int | None]] = {}
        self._users: dict[int, dict[int, list[str]]] = {}
        self._crons: set[int] = set()
        self.guests = UserPods(storage, simulation.hardware, self._pods)

    async def begin(self, at: float, progress: Progress = lambda what, done, of: None) -> None:
        """Write what is there from the start, and the fleet at the first moment."""
        self._storage.put([*kinds(), *beginnings()])
        await self.show(at, progress)

    async def show(self, at: float, progress: Progress = lambda what, done, of: None) -> int:
        """Write what has changed since the last moment; how many objects that were."""
        touched: set[int] = set()
        drop: list[Json] = self._lose(touched)
        put = self._changed_nodes(at, touched)
        now = {_key(run): run for run in self._visible(at)}
        for key in self._shown.keys() - now.keys():
            drop += self._forget(key, touched)
        for key, run in now.items():
            run, phase = self._allowed(key, run, at)
            before = self._shown.get(key)
            if before is not None and before[1] is phase:
                continue
            put += self._objects(run, phase)
            if before is not None and phase is Phase.FINISHED:
                drop += [item for item in self._objects(*before) if item["kind"] in ("Lease", "GpuClaim")]
            self._cron(run, put)
            self._settle(run, before[1] if before else None, touched)
            self._occupy(run, phase, touched)
            self._shown[key] = run, phase
        statuses = self._reports(at, touched)
        await self._write(put + statuses, drop, progress)
        return len(put) + len(drop) + len(statuses)

    def tend(self, at: float) -> float | None:
        """Do for the pods of users what a kubelet does by now; when there is more to do, if there is."""
        due = self.guests.step(at)
        self._storage.put(self._reports(at, set()))
        return due

    def runs(self, start: float, end: float) -> Iterator[Run]:
        """The runs from `start` to `end` as they went here, and what users run."""
        for run in self._simulation.runs(start, end):
            if _key(run) not in self._withdrawn:
                yield self._changed.get(_key(run), run)
        yield from self.guests.runs()

    def _reports(self, at: float, touched: set[int]) -> list[Json]:
        """The GpuNodeStatus of nodes that were touched, by the simulation or by users."""
        hardware = self._simulation.hardware
        numbers, self.guests.touched = touched | self.guests.touched, set()
        found = []
        for number in sorted(numbers):
            leased = {gpu: uids for (node, gpu), uids in self.guests.leased.items() if node == number}
            users = {**self._users.get(number, {}), **leased}
            found.append(gpu_status(hardware.machines[number], hardware, at, users))
        return found

    def _allowed(self, key: Key, run: Run, at: float) -> tuple[Run, Phase]:
        """The run and where it is in its life, as far as the pods of users let it."""
        phase = phase_at(run, at)
        waits = key in self._changed and run.bound == math.inf
        held = key in self._shown and self._shown[key][1] in _HOLDING
        if not waits and (held or phase not in _HOLDING):
            return run, phase
        crowded = any(
            (place.node, gpu) in self.guests.leased for place in run.slot.places for gpu in place.gpus
        )
        if crowded or waits:
            run = self._changed[key] = replace(run, bound=math.inf if crowded else float(math.floor(at)))
        return run, phase_at(run, at)

    def _lose(self, touched: set[int]) -> list[Json]:
        """Take note of pods that somebody deleted; what has to go with them."""
        drop: list[Json] = []
        lost, self.guests.lost = self.guests.lost, set()
        for key in {self._pods[uid] for uid in lost if uid in self._pods}:
            run, phase = self._shown.get(key, (None, None))
            if run is None or phase is Phase.FINISHED:
                continue
            if run.kind == "Pod":
                self._withdrawn.add(key)
                drop += self._forget(key, touched)
            else:
                # It begins anew, now: neither lease nor bill may say that it had its GPUs all the time.
                self._settle(run, phase, touched)
                del self._shown[key]
                self._changed[key] = replace(run, bound=math.inf)
        return drop

    def _forget(self, key: Key, touched: set[int]) -> list[Json]:
        """A run is no longer shown; its objects, to be dropped."""
        run, phase = self._shown.pop(key)
        self._changed.pop(key, None)
        self._settle(run, phase, touched)
        objects = self._objects(run, phase)[::-1]
        for pod in pods_of(run):
            self._pods.pop(pod.uid, None)
        return objects

    def _visible(self, at: float) -> Iterable[Run]:
        """The runs whose objects are in the API: those that are, and those that ended lately."""
        for run in self._simulation.runs(at - self._keep, at, self._slots):
            there = at < run.ended or run.slot.role.finishes
            mine = self._changed.get(_key(run), run)
            never_ran = mine is not run and mine.bound == math.inf and at >= run.ended
            if there and not never_ran and _key(run) not in self._withdrawn:
                yield mine

    def _objects(self, run: Run, phase: Phase) -> list[Json]:
        self._pods.update((pod.uid, _key(run)) for pod in pods_of(run))
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
        if phase in _HOLDING:
            for pod in pods_of(run):
                users = self._users.get(pod.place.node, {})
                for gpu in pod.place.gpus:
                    if users.get(gpu) == [pod.uid]:
                        del users[gpu]
                touched.add(pod.place.node)

    def _occupy(self, run: Run, phase: Phase, touched: set[int]) -> None:
        if phase in _HOLDING:
            for pod in pods_of(run):
                users = self._users.setdefault(pod.place.node, {})
                users.update({gpu: [pod.uid] for gpu in pod.place.gpus})
                touched.add(pod.place.node)

    async def _write(self, put: list[Json], drop: list[Json], progress: Progress) -> None:
        """In batches, so that others get their turn in between.

        A lease goes after its pod has ended, for the same reason for which it comes before; unless its GPU goes
        to the next at once.
        """
        again = {item["metadata"]["name"] for item in put if item["kind"] == "Lease"}
        later = [i for i in drop if i["kind"] == "Lease" and i["metadata"]["name"] not in again]
        self._storage.remove(i for i in drop if i["kind"] != "Lease" or i["metadata"]["name"] in again)
        for start in range(0, len(put), _BATCH):
            self._storage.put(put[start : start + _BATCH])
            progress("objects", min(start + _BATCH, len(put)), len(put))
            await asyncio.sleep(0)
        self._storage.remove(later)


def _key(run: Run) -> Key:
    return run.slot.number, run.number
