"""Show a simulated fleet to an API, as it is at one moment after another.

What has changed since the last moment is written, nothing else: objects of runs that came, went
on or ended, and the GpuNodeStatus of the nodes that this touches. Whatever a user changes through
the API stays until the simulation itself changes that object.

Pods of users come first. A run whose GPUs they have queued until these are free and begins then, or
is withdrawn when its time is over. A pod of a run that somebody deletes comes again, as its controller
would make a new one; a bare pod stays away.
"""

import asyncio
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from gpufleet.demo.objects.identities import Json, Phase, phase_at, pods_of
from gpufleet.demo.objects.nodes import custom_resource_definitions, gpu_node_status, node, team_namespaces
from gpufleet.demo.objects.owners import cron_job
from gpufleet.demo.objects.workloads import workload_objects
from gpufleet.demo.simulation.simulation import Simulation
from gpufleet.demo.simulation.timeline import Run
from gpufleet.demo.user_pods import UserPods
from kubelite import DirectStorage

_BATCH = 200
Progress = Callable[[str, int, int], None]
"""Told what is being written, how many are, and of how many."""


Key = tuple[int, int]
"""A run: the numbers of its slot and of its cell."""

_HOLDING = (Phase.STARTING, Phase.RUNNING)


class Player:
    """Keeps an API as the simulation has it."""

    def __init__(
        self, simulation: Simulation, storage: DirectStorage, *, keep: float, lease_namespace: str = "default"
    ) -> None:
        """`keep` is how many seconds ended runs stay in the API."""
        self._simulation = simulation
        self._storage = storage
        self._keep = keep
        self._leases_in = lease_namespace
        self._slots = tuple(slot for slot in simulation.slots if slot.role.source == "k8s")
        self._machines = tuple(m for m in simulation.hardware.machines if m.source == "k8s")
        self._shown: dict[Key, tuple[Run, Phase]] = {}
        self._rescheduled: dict[Key, Run] = {}
        self._cancelled: set[Key] = set()
        self._pod_runs: dict[str, Key] = {}
        self._node_states: dict[int, tuple[bool, int | None]] = {}
        self._gpu_users: dict[int, dict[int, list[str]]] = {}
        self._cron_jobs: set[int] = set()
        self.user_pods = UserPods(storage, simulation.hardware, self._pod_runs)

    async def start(self, at: float, progress: Progress = lambda what, done, of: None) -> None:
        """Write what is there from the start, and the fleet at the first moment."""
        self._storage.put([*custom_resource_definitions(), *team_namespaces()])
        await self.update(at, progress)

    async def update(self, at: float, progress: Progress = lambda what, done, of: None) -> int:
        """Write what has changed since the last moment; how many objects that were."""
        changed_nodes: set[int] = set()
        remove: list[Json] = self._handle_deleted_pods(changed_nodes)
        put = self._update_nodes(at, changed_nodes)
        now = {_key(run): run for run in self._visible_runs(at)}
        for key in self._shown.keys() - now.keys():
            remove += self._remove_run(key, changed_nodes)
        for key, run in now.items():
            run, phase = self._reschedule(key, run, at)
            before = self._shown.get(key)
            if before is not None and before[1] is phase:
                continue
            put += self._run_objects(run, phase)
            if before is not None and phase is Phase.FINISHED:
                remove += [
                    item for item in self._run_objects(*before) if item["kind"] in ("Lease", "GpuClaim")
                ]
            self._add_cron_job(run, put)
            self._release_gpus(run, before[1] if before else None, changed_nodes)
            self._occupy_gpus(run, phase, changed_nodes)
            self._shown[key] = run, phase
        statuses = self._node_statuses(at, changed_nodes)
        await self._write(put + statuses, remove, progress)
        return len(put) + len(remove) + len(statuses)

    def update_user_pods(self, at: float) -> float | None:
        """Do for the pods of users what a kubelet does by now; when there is more to do, if there is."""
        due = self.user_pods.reconcile(at)
        self._storage.put(self._node_statuses(at, set()))
        return due

    def runs(self, start: float, end: float) -> Iterator[Run]:
        """The runs from `start` to `end` as they went here, and what users run."""
        for run in self._simulation.runs(start, end):
            if _key(run) not in self._cancelled:
                yield self._rescheduled.get(_key(run), run)
        yield from self.user_pods.runs()

    def _node_statuses(self, at: float, changed_nodes: set[int]) -> list[Json]:
        """The GpuNodeStatus of nodes that were changed_nodes, by the simulation or by users."""
        hardware = self._simulation.hardware
        numbers, self.user_pods.changed_nodes = changed_nodes | self.user_pods.changed_nodes, set()
        found = []
        for number in sorted(numbers):
            gpu_holders = {
                gpu: uids for (node, gpu), uids in self.user_pods.gpu_holders.items() if node == number
            }
            users = {**self._gpu_users.get(number, {}), **gpu_holders}
            found.append(gpu_node_status(hardware.machines[number], hardware, at, users))
        return found

    def _reschedule(self, key: Key, run: Run, at: float) -> tuple[Run, Phase]:
        """The run and where it is in its life, as far as the pods of users let it."""
        phase = phase_at(run, at)
        queued = key in self._rescheduled and run.bound == math.inf
        held = key in self._shown and self._shown[key][1] in _HOLDING
        if not queued and (held or phase not in _HOLDING):
            return run, phase
        blocked = any(
            (position.node, gpu) in self.user_pods.gpu_holders
            for position in run.slot.positions
            for gpu in position.gpus
        )
        if blocked or queued:
            run = self._rescheduled[key] = replace(run, bound=math.inf if blocked else float(math.floor(at)))
        return run, phase_at(run, at)

    def _handle_deleted_pods(self, changed_nodes: set[int]) -> list[Json]:
        """Take note of pods that somebody deleted; what has to go with them."""
        remove: list[Json] = []
        deleted, self.user_pods.deleted = self.user_pods.deleted, set()
        for key in {self._pod_runs[uid] for uid in deleted if uid in self._pod_runs}:
            run, phase = self._shown.get(key, (None, None))
            if run is None or phase is Phase.FINISHED:
                continue
            if run.kind == "Pod":
                self._cancelled.add(key)
                remove += self._remove_run(key, changed_nodes)
            else:
                # It begins anew, now: neither lease nor bill may say that it had its GPUs all the time.
                self._release_gpus(run, phase, changed_nodes)
                del self._shown[key]
                self._rescheduled[key] = replace(run, bound=math.inf)
        return remove

    def _remove_run(self, key: Key, changed_nodes: set[int]) -> list[Json]:
        """A run is no longer shown; its objects, to be dropped."""
        run, phase = self._shown.pop(key)
        self._rescheduled.pop(key, None)
        self._release_gpus(run, phase, changed_nodes)
        objects = self._run_objects(run, phase)[::-1]
        for pod in pods_of(run):
            self._pod_runs.pop(pod.uid, None)
        return objects

    def _visible_runs(self, at: float) -> Iterable[Run]:
        """The runs whose objects are in the API: those that are, and those that ended lately."""
        for run in self._simulation.runs(at - self._keep, at, self._slots):
            there = at < run.ended or run.slot.role.finishes
            mine = self._rescheduled.get(_key(run), run)
            never_ran = mine is not run and mine.bound == math.inf and at >= run.ended
            if there and not never_ran and _key(run) not in self._cancelled:
                yield mine

    def _run_objects(self, run: Run, phase: Phase) -> list[Json]:
        self._pod_runs.update((pod.uid, _key(run)) for pod in pods_of(run))
        return workload_objects(run, phase, self._simulation.hardware, self._leases_in)

    def _update_nodes(self, at: float, changed_nodes: set[int]) -> list[Json]:
        """Nodes that are new, went down, came back, deleted a GPU or got it back."""
        hardware, changed = self._simulation.hardware, []
        for machine in self._machines:
            state = (hardware.is_down(machine, at), hardware.lost_gpu(machine, at))
            if self._node_states.get(machine.number) != state:
                self._node_states[machine.number] = state
                changed_nodes.add(machine.number)
                changed.append(node(machine, hardware, at))
        return changed

    def _add_cron_job(self, run: Run, put: list[Json]) -> None:
        if run.kind == "CronJob" and run.slot.number not in self._cron_jobs:
            self._cron_jobs.add(run.slot.number)
            put.append(cron_job(run))

    def _release_gpus(self, run: Run, phase: Phase | None, changed_nodes: set[int]) -> None:
        """Nobody uses the GPUs of a run any more, if it had them."""
        if phase in _HOLDING:
            for pod in pods_of(run):
                users = self._gpu_users.get(pod.position.node, {})
                for gpu in pod.position.gpus:
                    if users.get(gpu) == [pod.uid]:
                        del users[gpu]
                changed_nodes.add(pod.position.node)

    def _occupy_gpus(self, run: Run, phase: Phase, changed_nodes: set[int]) -> None:
        if phase in _HOLDING:
            for pod in pods_of(run):
                users = self._gpu_users.setdefault(pod.position.node, {})
                users.update({gpu: [pod.uid] for gpu in pod.position.gpus})
                changed_nodes.add(pod.position.node)

    async def _write(self, put: list[Json], remove: list[Json], progress: Progress) -> None:
        """In batches, so that others get their turn in between.

        A lease goes after its pod has ended, for the same reason for which it comes before; unless its GPU goes
        to the next at once.
        """
        again = {item["metadata"]["name"] for item in put if item["kind"] == "Lease"}
        later = [i for i in remove if i["kind"] == "Lease" and i["metadata"]["name"] not in again]
        self._storage.remove(i for i in remove if i["kind"] != "Lease" or i["metadata"]["name"] in again)
        for start in range(0, len(put), _BATCH):
            self._storage.put(put[start : start + _BATCH])
            progress("objects", min(start + _BATCH, len(put)), len(put))
            await asyncio.sleep(0)
        self._storage.remove(later)


def _key(run: Run) -> Key:
    return run.slot.number, run.number
