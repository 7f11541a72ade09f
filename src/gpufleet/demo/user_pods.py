"""Pods that users bring to a simulated fleet, and the kubelets of its nodes.

The real scheduler binds such pods. What a kubelet would do then is done here: a bound pod starts, runs,
ends, and goes once it is deleted. GPUs whose lease such a pod has are its own: the simulation keeps off.
"""

import asyncio
import math
from collections.abc import Callable, Container, Iterable, Iterator
from typing import Protocol

import msgspec

from gpufleet.demo.simulation.hardware import Hardware, Machine
from gpufleet.demo.simulation.identities import Json, condition, stamp
from gpufleet.demo.simulation.teams import Project, Team
from gpufleet.demo.simulation.timeline import ROLES, STARTUP, Run, Slot, SlotPosition
from gpufleet.kubernetes.allocation import parse_allocation
from gpufleet.kubernetes.annotations import ALLOCATED
from gpufleet.kubernetes.leases import read_lease
from gpufleet.kubernetes.objects import Lease

PULLING = 3.0
"""Seconds from binding to running."""

_OVER = ("Succeeded", "Failed")


class DirectStorage(Protocol):
    """Where an API keeps its objects."""

    def put(self, objects: Iterable[Json]) -> None:
        """Add or replace objects."""

    def remove(self, objects: Iterable[Json]) -> None:
        """Remove objects; one that is not there is no fault."""

    def subscribe(self, api_version: str, kind: str, told: Callable[[Json, bool], None]) -> None:
        """Tell of every object of a kind, now and at each change; and whether it is gone."""


class UserPods:
    """Tends the pods that are not the simulation's own; `ours` has the uids of those that are."""

    def __init__(self, storage: DirectStorage, hardware: Hardware, ours: Container[str]) -> None:
        self.leased: dict[tuple[int, int], tuple[str, ...]] = {}
        """Who has which GPU of which node, by the leases of guests."""
        self.touched: set[int] = set()
        """Nodes on which that has changed."""
        self.lost: set[str] = set()
        """Pods of the simulation that somebody deleted."""
        self.changed = asyncio.Event()
        self._storage = storage
        self._machines = {m.name: m for m in hardware.machines if m.source == "k8s"}
        self._ours = ours
        self._pods: dict[str, Json] = {}
        self._since: dict[str, float] = {}
        storage.subscribe("v1", "Pod", self._see_pod)
        storage.subscribe("coordination.k8s.io/v1", "Lease", self._see_lease)

    def step(self, at: float) -> float | None:
        """Do what is due by now; when the next thing is, if anything is."""
        due = [self._tend(uid, pod, at) for uid, pod in list(self._pods.items())]
        return min((moment for moment in due if moment is not None), default=None)

    def runs(self) -> Iterator[Run]:
        """The guests that run on GPUs, in the simulation's terms, so that these show a load."""
        for uid, pod in self._pods.items():
            if uid not in self._ours and _phase(pod) == "Running":
                allocated = parse_allocation(pod["metadata"].get("annotations", {}).get(ALLOCATED, ""))
                machine = self._machines.get(allocated.node) if allocated else None
                if allocated is None or machine is None:
                    continue
                if gpus := tuple(sorted({gpu for gpu in allocated.gpus if gpu < machine.gpus})):
                    yield _as_run(pod, machine, gpus, self._since.get(uid, 0.0))

    def _see_pod(self, pod: Json, gone: bool) -> None:
        meta = pod["metadata"]
        uid, ours = meta["uid"], meta["uid"] in self._ours
        if gone:
            self._pods.pop(uid, None)
            self._since.pop(uid, None)
            if ours:
                self.lost.add(uid)
        elif pod["spec"].get("nodeName") in self._machines and (not ours or meta.get("deletionTimestamp")):
            self._pods[uid] = pod
        else:
            return
        self.changed.set()

    def _see_lease(self, item: Json, gone: bool) -> None:
        holder = (item.get("spec") or {}).get("holderIdentity", "")
        if not self.leased and (gone or holder in self._ours):
            return  # by far the most of them: nothing to read closely
        lease = read_lease(msgspec.convert(item, Lease))
        machine = self._machines.get(lease.node) if lease else None
        if lease is None or machine is None:
            return
        key = (machine.number, lease.gpu)
        holders = () if gone else tuple(uid for uid in lease.holders if uid not in self._ours)
        if self.leased.get(key, ()) == holders:
            return
        self.leased[key] = holders
        if not holders:
            del self.leased[key]
        self.touched.add(machine.number)
        self.changed.set()

    def _tend(self, uid: str, pod: Json, at: float) -> float | None:
        meta, phase = pod["metadata"], _phase(pod)
        if meta.get("deletionTimestamp"):
            if not meta.get("finalizers"):
                self._storage.remove([pod])
            return None
        if phase in _OVER:
            return None
        since = self._since.setdefault(uid, at)
        if phase == "Pending" and at < since + PULLING:
            if not pod["status"].get("containerStatuses"):
                waiting = {"waiting": {"reason": "ContainerCreating"}}
                self._put(pod, "Pending", waiting, at)
            return since + PULLING
        if phase == "Pending":
            self._since[uid] = at
            self._put(pod, "Running", {"running": {"startedAt": stamp(at)}}, at)
            return at + lasting if (lasting := _lasts(pod)) is not None else None
        lasting = _lasts(pod)
        if lasting is None or at < since + lasting:
            return None if lasting is None else since + lasting
        done = {"exitCode": 0, "reason": "Completed", "startedAt": stamp(since), "finishedAt": stamp(at)}
        self._put(pod, "Succeeded", {"terminated": done}, at)
        return None

    def _put(self, pod: Json, phase: str, state: Json, at: float) -> None:
        """Write what the kubelet sees."""
        before = pod["status"]
        kept = [each for each in before.get("conditions") or () if each["type"] != "Ready"]
        ready = condition("Ready", phase == "Running", stamp(at))
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
            "startTime": before.get("startTime", stamp(at)),
            "conditions": [*kept, ready],
            "containerStatuses": statuses,
        }
        self._storage.put([{**pod, "metadata": dict(pod["metadata"]), "status": status}])


def _phase(pod: Json) -> str:
    return str(pod.get("status", {}).get("phase") or "Pending")


def _lasts(pod: Json) -> float | None:
    """Seconds after which the pod ends by itself: `sleep 60` does, if it is not to be restarted."""
    spec = pod["spec"]
    container = spec["containers"][0]
    words = [*(container.get("command") or ()), *(container.get("args") or ())]
    if spec.get("restartPolicy", "Always") == "Always" or len(words) != 2 or words[0] != "sleep":
        return None
    return float(words[1]) if words[1].isascii() and words[1].isdigit() else None


def _as_run(pod: Json, machine: Machine, gpus: tuple[int, ...], started: float) -> Run:
    meta, container = pod["metadata"], pod["spec"]["containers"][0]
    namespace = meta.get("namespace", "")
    command = " ".join([*(container.get("command") or ()), *(container.get("args") or ())])
    role = ROLES["batch"]
    return Run(
        slot=Slot(0, role, machine.model, (SlotPosition(machine.number, gpus),), 1.0, 0.0, 0),
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
