"""Pods that users create on a simulated fleet, and the kubelets that run them.

The real scheduler binds these pods. This module does what a kubelet would: start a bound pod, run it,
finish it, and remove it after deletion. The simulation does not use GPUs that are leased to user pods.
"""

import asyncio
import math
from collections.abc import Container, Iterator

import msgspec

from gpufleet.demo.objects.identities import Json, condition, timestamp
from gpufleet.demo.simulation.hardware import Hardware, Machine
from gpufleet.demo.simulation.teams import Project, Team
from gpufleet.demo.simulation.timeline import ROLES, STARTUP, Run, Slot, SlotPosition
from gpufleet.kubernetes.allocation import parse_allocation
from gpufleet.kubernetes.annotations import ALLOCATED, VISIBLE
from gpufleet.kubernetes.leases import LeaseHolder, read_lease
from gpufleet.kubernetes.objects import Lease
from kubelite import DirectStorage

IMAGE_PULL_SECONDS = 3.0
"""Seconds from binding to running."""

_FINISHED = ("Succeeded", "Failed")


class UserPods:
    """Run the pods that are not in `simulated`, the uids of the simulation's own pods."""

    def __init__(self, storage: DirectStorage, hardware: Hardware, simulated: Container[str]) -> None:
        self.gpu_holders: dict[tuple[int, int], tuple[str, ...]] = {}
        """Uids of the user pods that hold a GPU, by node number and GPU index."""
        self.lease_holders: dict[tuple[int, int], dict[str, LeaseHolder]] = {}
        """The same pods with their share of the GPU."""
        self.changed_nodes: set[int] = set()
        """Numbers of the nodes whose holders have changed."""
        self.deleted_pods: set[str] = set()
        """Uids of pods of the simulation that were deleted through the API."""
        self.changed = asyncio.Event()
        self._storage = storage
        self._machines = {m.name: m for m in hardware.machines if m.source == "k8s"}
        self._simulated = simulated
        self._pods: dict[str, Json] = {}
        self._phase_since: dict[str, float] = {}
        storage.subscribe("v1", "Pod", self._on_pod)
        storage.subscribe("coordination.k8s.io/v1", "Lease", self._on_lease)

    def reconcile(self, at: float) -> float | None:
        """Do everything that is due. Return when the next step is due, or None."""
        due = [self._reconcile_pod(uid, pod, at) for uid, pod in list(self._pods.items())]
        return min((moment for moment in due if moment is not None), default=None)

    def runs(self) -> Iterator[Run]:
        """Yield user pods that run on GPUs as runs, so that their GPUs show a load."""
        for uid, pod in self._pods.items():
            if uid not in self._simulated and _phase(pod) == "Running":
                allocated = parse_allocation(pod["metadata"].get("annotations", {}).get(ALLOCATED, ""))
                machine = self._machines.get(allocated.node) if allocated else None
                if allocated is None or machine is None:
                    continue
                if gpus := tuple(sorted({gpu for gpu in allocated.gpus if gpu < machine.gpus})):
                    yield _as_run(pod, machine, gpus, self._phase_since.get(uid, 0.0))

    def blocks(self, position: SlotPosition) -> bool:
        """Return whether user pods hold what a run of the simulation needs."""
        holders = [
            holder
            for gpu in position.gpus
            for holder in self.lease_holders.get((position.node, gpu), {}).values()
        ]
        if position.part is None:
            return bool(holders)
        return any(holder.milli or str(position.part.id) in holder.instances for holder in holders)

    def _on_pod(self, pod: Json, deleted: bool) -> None:
        meta = pod["metadata"]
        uid, simulated = meta["uid"], meta["uid"] in self._simulated
        if deleted:
            self._pods.pop(uid, None)
            self._phase_since.pop(uid, None)
            if simulated:
                self.deleted_pods.add(uid)
        elif pod["spec"].get("nodeName") in self._machines and (
            not simulated or meta.get("deletionTimestamp")
        ):
            self._pods[uid] = pod
        else:
            return
        self.changed.set()

    def _on_lease(self, item: Json, deleted: bool) -> None:
        holder = (item.get("spec") or {}).get("holderIdentity", "")
        if not self.gpu_holders and (deleted or holder in self._simulated):
            return  # the common case: a lease of the simulation
        lease = read_lease(msgspec.convert(item, Lease))
        machine = self._machines.get(lease.node) if lease else None
        if lease is None or machine is None:
            return
        key = (machine.number, lease.gpu)
        users = {} if deleted else {u: h for u, h in lease.holders.items() if u not in self._simulated}
        holders = tuple(users)
        if self.gpu_holders.get(key, ()) == holders:
            return
        self.gpu_holders[key], self.lease_holders[key] = holders, users
        if not holders:
            del self.gpu_holders[key], self.lease_holders[key]
        self.changed_nodes.add(machine.number)
        self.changed.set()

    def _reconcile_pod(self, uid: str, pod: Json, at: float) -> float | None:
        meta, phase = pod["metadata"], _phase(pod)
        if meta.get("deletionTimestamp"):
            if not meta.get("finalizers"):
                self._storage.remove([pod])
            return None
        if phase in _FINISHED:
            return None
        since = self._phase_since.setdefault(uid, at)
        if phase == "Pending" and at < since + IMAGE_PULL_SECONDS:
            if not pod["status"].get("containerStatuses"):
                waiting = {"waiting": {"reason": "ContainerCreating"}}
                self._write_status(pod, "Pending", waiting, at)
            return since + IMAGE_PULL_SECONDS
        if phase == "Pending":
            self._phase_since[uid] = at
            self._write_status(pod, "Running", {"running": {"startedAt": timestamp(at)}}, at)
            return at + duration if (duration := _sleep_seconds(pod)) is not None else None
        duration = _sleep_seconds(pod)
        if duration is None or at < since + duration:
            return None if duration is None else since + duration
        terminated = {
            "exitCode": 0,
            "reason": "Completed",
            "startedAt": timestamp(since),
            "finishedAt": timestamp(at),
        }
        self._write_status(pod, "Succeeded", {"terminated": terminated}, at)
        return None

    def _write_status(self, pod: Json, phase: str, state: Json, at: float) -> None:
        """Write the status that the kubelet reports."""
        before = pod["status"]
        conditions = [entry for entry in before.get("conditions") or () if entry["type"] != "Ready"]
        ready = condition("Ready", phase == "Running", timestamp(at))
        machine = self._machines[pod["spec"]["nodeName"]]
        statuses = [
            {
                "name": container["name"],
                "image": container.get("image", ""),
                "imageID": "",
                "restartCount": 0,
                "ready": phase == "Running",
                "state": state,
            }
            for container in pod["spec"]["containers"]
        ]
        status = {
            **before,
            "phase": phase,
            "hostIP": machine.address,
            "startTime": before.get("startTime", timestamp(at)),
            "conditions": [*conditions, ready],
            "containerStatuses": statuses,
        }
        self._storage.put([{**pod, "metadata": dict(pod["metadata"]), "status": status}])


def _phase(pod: Json) -> str:
    return str(pod.get("status", {}).get("phase") or "Pending")


def _sleep_seconds(pod: Json) -> float | None:
    """Return the seconds after which a `sleep N` pod that is not restarted finishes, else None."""
    spec = pod["spec"]
    container = spec["containers"][0]
    command = [*(container.get("command") or ()), *(container.get("args") or ())]
    if spec.get("restartPolicy", "Always") == "Always" or len(command) != 2 or command[0] != "sleep":
        return None
    return float(command[1]) if command[1].isascii() and command[1].isdigit() else None


def _as_run(pod: Json, machine: Machine, gpus: tuple[int, ...], started: float) -> Run:
    meta, container = pod["metadata"], pod["spec"]["containers"][0]
    namespace = meta.get("namespace", "")
    command = " ".join([*(container.get("command") or ()), *(container.get("args") or ())])
    role = ROLES["batch"]
    visible = meta.get("annotations", {}).get(VISIBLE, "").split(",")
    parts = [part for gpu in gpus for part in machine.mig_parts(gpu) if part.uuid in visible]
    position = SlotPosition(machine.number, gpus, parts[0] if parts else None)
    return Run(
        slot=Slot(0, role, machine.model, (position,), 1.0, 0.0, 0),
        number=int(meta["uid"][:8], 16),
        kind="Pod",
        team=Team(namespace, namespace, "", ("root",)),
        project=Project(
            meta["name"],
            role.load,
            container.get("image", ""),
            command if command.strip() else container["name"],
        ),
        name=meta["name"],
        uid=meta["uid"],
        created=started,
        bound=started - STARTUP,
        ended=math.inf,
        fails=False,
        memory_share=0.4,
        level=0.8,
    )
