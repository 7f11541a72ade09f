"""Keep the objects of an API in step with the simulated fleet.

Each update writes only what has changed since the last one: the objects of runs that started, moved
to another phase or ended, and the GpuNodeStatus of the affected nodes. Changes that users make
through the API stay until the simulation changes the same object. The pods and claims have the form that
webhook and scheduler would give them.

User pods take precedence. A run whose GPUs are leased to a user pod waits until they are free, and
is cancelled if its time ends first. A deleted pod of a run is recreated, as its controller would; a
bare pod is not.
"""

import asyncio
import math
from collections.abc import Iterable, Iterator
from dataclasses import replace

from gpufleet.demo.history import Progress
from gpufleet.demo.objects.claims import claim, parsed
from gpufleet.demo.objects.identities import Json, Phase, phase_at, pods_of, uses_claims
from gpufleet.demo.objects.nodes import custom_resource_definitions, gpu_node_status, node, team_namespaces
from gpufleet.demo.objects.owners import Replicas, cron_job, replicas_of
from gpufleet.demo.objects.queues import gpu_queues
from gpufleet.demo.objects.repairs import open_repairs, past_repairs
from gpufleet.demo.objects.workloads import owner_objects, workload_objects
from gpufleet.demo.occupancy import HOLDING, Occupancy
from gpufleet.demo.pending_reasons import PendingReasons
from gpufleet.demo.simulation.simulation import Simulation
from gpufleet.demo.simulation.timeline import Run
from gpufleet.demo.user_pods import UserPods
from kubelite import DirectStorage

_BATCH = 200
_HOUR = 3600.0
Key = tuple[int, int]
"""The slot and cell numbers of a run."""

_SCALED = ("Deployment", "StatefulSet")


class Player:
    """Write the Kubernetes objects of a simulation to an API."""

    def __init__(
        self, simulation: Simulation, storage: DirectStorage, *, keep: float, lease_namespace: str = "default"
    ) -> None:
        """`keep` is the number of seconds for which finished runs stay in the API."""
        self._simulation = simulation
        self._storage = storage
        self._keep = keep
        self._slots = tuple(slot for slot in simulation.slots if slot.role.source == "k8s")
        self._machines = tuple(m for m in simulation.hardware.machines if m.source == "k8s")
        self._shown: dict[Key, tuple[Run, Phase]] = {}
        self._rescheduled: dict[Key, Run] = {}
        self._cancelled: set[Key] = set()
        self._pod_runs: dict[str, Key] = {}
        self._node_states: dict[int, tuple[bool, int | None, tuple[float, ...]]] = {}
        self._repairs: dict[str, Json] = {}
        self._past_faults: tuple[float, list[Json]] = (0.0, [])
        """The repairs that have ended, as of an hour."""
        self._cron_jobs: set[int] = set()
        self._notes: dict[Key, str] = {}
        """Why pending runs are pending."""
        self._replicas: dict[Key, Replicas] = {}
        """By the run that the additional replicas belong to."""
        self._pools = {p.node: slot.pool for slot in self._slots if slot.pool for p in slot.positions}
        self._reasons = PendingReasons()
        self.user_pods = UserPods(storage, simulation.hardware, self._pod_runs)
        self._occupancy = Occupancy(simulation.hardware, lease_namespace, self.user_pods)

    async def start(self, at: float, progress: Progress = lambda what, done, of: None) -> None:
        """Create the definitions, namespaces and GpuQueues, and the objects at the first moment."""
        gpus = sum(len(machine.uuids) for machine in self._machines)
        self._storage.put([*custom_resource_definitions(), *team_namespaces(), *gpu_queues(gpus)])
        await self.update(at, progress)

    async def update(self, at: float, progress: Progress = lambda what, done, of: None) -> int:
        """Write what has changed since the last update and return the number of objects."""
        remove: list[Json] = self._handle_deleted_pods()
        nodes = self._update_nodes(at)
        cron_jobs: list[Json] = []
        changed: set[Key] = set()
        now = {_key(run): run for run in self._visible_runs(at)}
        for key in self._shown.keys() - now.keys():
            remove += self._remove_run(key)
        for key, run in now.items():
            run, phase = self._reschedule(key, run, at)
            before = self._shown.get(key)
            if before is not None and before[1] is phase:
                continue
            if before is not None and phase is Phase.FINISHED:
                remove += [item for item in self._run_objects(key, *before) if item["kind"] == "GpuClaim"]
            self._add_cron_job(run, cron_jobs)
            self._occupancy.release(run, before[1] if before else None)
            self._occupancy.occupy(run, phase)
            self._shown[key] = run, phase
            changed.add(key)
        statuses = self._node_statuses(at)
        changed |= self._update_notes(changed, nodes_changed=bool(statuses))
        owners = self._update_replicas(changed)
        leases, unused_leases = self._occupancy.lease_changes()
        objects = [
            item for key in now if key in changed for item in self._run_objects(key, *self._shown[key])
        ]
        repairs, ended_repairs = self._update_repairs(at)
        # Leases come before their pods, because the scheduler recreates leases missing under a running pod.
        put = [*nodes, *cron_jobs, *leases, *owners, *objects, *statuses, *repairs]
        remove += [*unused_leases, *ended_repairs]
        await self._write(put, remove, progress)
        return len(put) + len(remove)

    def update_user_pods(self, at: float) -> float | None:
        """Act as kubelet for user pods. Return when the next step is due, or None."""
        due = self.user_pods.reconcile(at)
        self._storage.put(self._node_statuses(at))
        return due

    def runs(self, start: float, end: float) -> Iterator[Run]:
        """Yield the runs between `start` and `end` as they happened here, and the user pods as runs."""
        for run in self._simulation.runs(start, end):
            if _key(run) not in self._cancelled:
                yield self._rescheduled.get(_key(run), run)
        yield from self.user_pods.runs()

    def _node_statuses(self, at: float) -> list[Json]:
        """Return the GpuNodeStatus of nodes that the simulation or users changed."""
        hardware = self._simulation.hardware
        found = []
        for number in sorted(self._occupancy.take_changed_nodes()):
            status = gpu_node_status(hardware.machines[number], hardware, at, self._occupancy.users(number))
            self._reasons.put_report(status)
            found.append(status)
        return found

    def _update_notes(self, changed: set[Key], *, nodes_changed: bool) -> set[Key]:
        """Find out why pending runs are pending. Return those whose reason has changed."""
        waiting = {key: run for key, (run, phase) in self._shown.items() if phase is Phase.WAITING}
        before, self._notes = self._notes, {}
        for key, run in waiting.items():
            known = before.get(key, "")
            if nodes_changed or key in changed:
                pods = pods_of(run)
                self._notes[key] = (
                    self._reasons.note(parsed(claim(run, pods)), len(pods)) if uses_claims(run) else ""
                )
            else:
                self._notes[key] = known
        return {key for key, note in self._notes.items() if note != before.get(key, "")}

    def _update_replicas(self, changed: set[Key]) -> list[Json]:
        """Count the replicas of workloads that are scaled. Return their owners, unless they are written anyway."""
        before, self._replicas = self._replicas, {}
        for run, phase in self._shown.values():
            if run.kind in _SCALED:
                key, own = _key(run.base or run), replicas_of(run, phase)
                total, ready = self._replicas.get(key, (0, 0))
                self._replicas[key] = Replicas(total + own.total, ready + own.ready)
        scaled = [key for key, count in self._replicas.items() if before.get(key, count) != count]
        return [
            item
            for key in scaled
            if key in self._shown and key not in changed
            for item in owner_objects(*self._shown[key], self._replicas[key])
        ]

    def _reschedule(self, key: Key, run: Run, at: float) -> tuple[Run, Phase]:
        """Return the run and its phase, delayed while user pods hold its GPUs."""
        phase = phase_at(run, at)
        delayed = key in self._rescheduled and run.bound == math.inf
        held = key in self._shown and self._shown[key][1] in HOLDING
        if not delayed and (held or phase not in HOLDING):
            return run, phase
        blocked = any(self.user_pods.blocks(position) for position in run.slot.positions)
        if blocked or delayed:
            run = self._rescheduled[key] = replace(run, bound=math.inf if blocked else float(math.floor(at)))
        return run, phase_at(run, at)

    def _handle_deleted_pods(self) -> list[Json]:
        """Handle pods of runs that were deleted through the API. Return the objects to remove."""
        remove: list[Json] = []
        deleted, self.user_pods.deleted_pods = self.user_pods.deleted_pods, set()
        for key in {self._pod_runs[uid] for uid in deleted if uid in self._pod_runs}:
            run, phase = self._shown.get(key, (None, None))
            if run is None or phase is Phase.FINISHED:
                continue
            if run.kind == "Pod":
                self._cancelled.add(key)
                remove += self._remove_run(key)
            else:
                # It restarts now: leases and accounting must show that it had no GPUs in between.
                self._occupancy.release(run, phase)
                del self._shown[key]
                self._rescheduled[key] = replace(run, bound=math.inf)
        return remove

    def _remove_run(self, key: Key) -> list[Json]:
        """Stop showing a run. Return its objects, to be removed."""
        run, phase = self._shown.pop(key)
        self._rescheduled.pop(key, None)
        self._occupancy.release(run, phase)
        objects = self._run_objects(key, run, phase)[::-1]
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

    def _run_objects(self, key: Key, run: Run, phase: Phase) -> list[Json]:
        self._pod_runs.update((pod.uid, key) for pod in pods_of(run))
        hardware, note = self._simulation.hardware, self._notes.get(key, "")
        return workload_objects(run, phase, hardware, self._replicas.get(key), note)

    def _update_nodes(self, at: float) -> list[Json]:
        """Return nodes that are new, went down, came back, lost a GPU or got it back, or have another finding."""
        hardware, changed = self._simulation.hardware, []
        for machine in self._machines:
            degraded = tuple(each.since(at) for each in hardware.degraded if each.node == machine.number)
            state = (hardware.is_down(machine, at), hardware.lost_gpu(machine, at), degraded)
            if self._node_states.get(machine.number) != state:
                self._node_states[machine.number] = state
                self._occupancy.changed_nodes.add(machine.number)
                changed.append(node(machine, hardware, at, self._pools.get(machine.number, "")))
                self._reasons.put_node(changed[-1])
        return changed

    def _update_repairs(self, at: float) -> tuple[list[Json], list[Json]]:
        """Return the repairs that are new or have changed, and those without a fault in the last month."""
        hour = at - at % _HOUR
        if hour != self._past_faults[0]:
            self._past_faults = hour, past_repairs(self._simulation, hour)
        found = [*self._past_faults[1], *open_repairs(self._simulation, at)]
        before = self._repairs
        self._repairs = {each["metadata"]["name"]: each for each in found}
        changed = [each for name, each in self._repairs.items() if before.get(name) != each]
        return changed, [each for name, each in before.items() if name not in self._repairs]

    def _add_cron_job(self, run: Run, put: list[Json]) -> None:
        if run.kind == "CronJob" and run.slot.number not in self._cron_jobs:
            self._cron_jobs.add(run.slot.number)
            put.append(cron_job(run))

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
