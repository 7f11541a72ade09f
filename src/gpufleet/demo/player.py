"""Keep the objects of an API in step with the simulated fleet.

Each update writes only what has changed since the last one: the objects of runs that started, moved
to another phase or ended, and the GpuNodeStatus of the affected nodes. Changes that users make
through the API stay until the simulation changes the same object.

User pods take precedence. A run whose GPUs are leased to a user pod waits until they are free, and
is cancelled if its time ends first. A deleted pod of a run is recreated, as its controller would; a
bare pod is not.
"""

import asyncio
import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

from gpufleet.demo.history import Progress
from gpufleet.demo.objects.identities import Json, Phase, phase_at, pods_of
from gpufleet.demo.objects.nodes import custom_resource_definitions, gpu_node_status, node, team_namespaces
from gpufleet.demo.objects.owners import cron_job
from gpufleet.demo.objects.workloads import workload_objects
from gpufleet.demo.simulation.simulation import Simulation
from gpufleet.demo.simulation.timeline import Run
from gpufleet.demo.user_pods import UserPods
from kubelite import DirectStorage

_BATCH = 200
Key = tuple[int, int]
"""The slot and cell numbers of a run."""

_HOLDING = (Phase.STARTING, Phase.RUNNING)


class Player:
    """Write the Kubernetes objects of a simulation to an API."""

    def __init__(
        self, simulation: Simulation, storage: DirectStorage, *, keep: float, lease_namespace: str = "default"
    ) -> None:
        """`keep` is the number of seconds for which finished runs stay in the API."""
        self._simulation = simulation
        self._storage = storage
        self._keep = keep
        self._lease_namespace = lease_namespace
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
        """Create the definitions and namespaces, and the objects at the first moment."""
        self._storage.put([*custom_resource_definitions(), *team_namespaces()])
        await self.update(at, progress)

    async def update(self, at: float, progress: Progress = lambda what, done, of: None) -> int:
        """Write what has changed since the last update and return the number of objects."""
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
        """Act as kubelet for user pods. Return when the next step is due, or None."""
        due = self.user_pods.reconcile(at)
        self._storage.put(self._node_statuses(at, set()))
        return due

    def runs(self, start: float, end: float) -> Iterator[Run]:
        """Yield the runs between `start` and `end` as they happened here, and the user pods as runs."""
        for run in self._simulation.runs(start, end):
            if _key(run) not in self._cancelled:
                yield self._rescheduled.get(_key(run), run)
        yield from self.user_pods.runs()

    def _node_statuses(self, at: float, changed_nodes: set[int]) -> list[Json]:
        """Return the GpuNodeStatus of nodes that the simulation or users changed."""
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
        """Return the run and its phase, delayed while user pods hold its GPUs."""
        phase = phase_at(run, at)
        delayed = key in self._rescheduled and run.bound == math.inf
        held = key in self._shown and self._shown[key][1] in _HOLDING
        if not delayed and (held or phase not in _HOLDING):
            return run, phase
        blocked = any(
            (position.node, gpu) in self.user_pods.gpu_holders
            for position in run.slot.positions
            for gpu in position.gpus
        )
        if blocked or delayed:
            run = self._rescheduled[key] = replace(run, bound=math.inf if blocked else float(math.floor(at)))
        return run, phase_at(run, at)

    def _handle_deleted_pods(self, changed_nodes: set[int]) -> list[Json]:
        """Handle pods of runs that were deleted through the API. Return the objects to remove."""
        remove: list[Json] = []
        deleted, self.user_pods.deleted_pods = self.user_pods.deleted_pods, set()
        for key in {self._pod_runs[uid] for uid in deleted if uid in self._pod_runs}:
            run, phase = self._shown.get(key, (None, None))
            if run is None or phase is Phase.FINISHED:
                continue
            if run.kind == "Pod":
                self._cancelled.add(key)
                remove += self._remove_run(key, changed_nodes)
            else:
                # It restarts now: leases and accounting must show that it had no GPUs in between.
                self._release_gpus(run, phase, changed_nodes)
                del self._shown[key]
                self._rescheduled[key] = replace(run, bound=math.inf)
        return remove

    def _remove_run(self, key: Key, changed_nodes: set[int]) -> list[Json]:
        """Stop showing a run. Return its objects, to be removed."""
        run, phase = self._shown.pop(key)
        self._rescheduled.pop(key, None)
        self._release_gpus(run, phase, changed_nodes)
        objects = self._run_objects(run, phase)[::-1]
        for pod in pods_of(run):
            self._pod_runs.pop(pod.uid, None)
        return objects

    def _visible_runs(self, at: float) -> Iterable[Run]:
        """Yield the runs whose objects are in the API: current ones and recently finished ones."""
        for run in self._simulation.runs(at - self._keep, at, self._slots):
            visible = at < run.ended or run.slot.role.finishes
            actual = self._rescheduled.get(_key(run), run)
            never_ran = actual is not run and actual.bound == math.inf and at >= run.ended
            if visible and not never_ran and _key(run) not in self._cancelled:
                yield actual

    def _run_objects(self, run: Run, phase: Phase) -> list[Json]:
        self._pod_runs.update((pod.uid, _key(run)) for pod in pods_of(run))
        return workload_objects(run, phase, self._simulation.hardware, self._lease_namespace)

    def _update_nodes(self, at: float, changed_nodes: set[int]) -> list[Json]:
        """Return nodes that are new, went down, came back, lost a GPU or got it back."""
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
        """Mark the GPUs of a run as unused, if it held any."""
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
        """Write in batches, so that other tasks run in between.

        Remove a lease after its pod, because the scheduler recreates leases missing under a running pod. A lease
        whose GPU passes directly to another run is replaced instead.
        """
        replaced = {item["metadata"]["name"] for item in put if item["kind"] == "Lease"}
        later = [i for i in remove if i["kind"] == "Lease" and i["metadata"]["name"] not in replaced]
        self._storage.remove(i for i in remove if i["kind"] != "Lease" or i["metadata"]["name"] in replaced)
        for start in range(0, len(put), _BATCH):
            self._storage.put(put[start : start + _BATCH])
            progress("objects", min(start + _BATCH, len(put)), len(put))
            await asyncio.sleep(0)
        self._storage.remove(later)


def _key(run: Run) -> Key:
    return run.slot.number, run.number
