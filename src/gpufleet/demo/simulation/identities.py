"""What the runs of a simulated fleet are called in Kubernetes: names, uids, labels, and where in its life one is.

All of it follows from the run, so that an object is the same one when the fleet is shown again tomorrow.
"""

import random
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from gpufleet.demo.simulation.hardware import Hardware, new_uid
from gpufleet.demo.simulation.timeline import Run, SlotPosition
from gpufleet.kubernetes.allocation import format_allocation
from gpufleet.kubernetes.annotations import ALLOCATED, CLAIM

Json = dict[str, Any]


class Phase(StrEnum):
    """Where a run is in its life."""

    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(frozen=True)
class Identity:
    """What names an object."""

    api_version: str
    kind: str
    name: str
    uid: str


@dataclass(frozen=True)
class PodOfRun:
    """One pod of a run."""

    name: str
    uid: str
    place: SlotPosition
    root: Identity
    """The top of its owners, itself if it has none."""
    parent: Identity | None


def phase_at(run: Run, at: float) -> Phase:
    """Where a run is at a moment at which it exists."""
    if at < run.bound:
        return Phase.WAITING
    if at < run.started:
        return Phase.STARTING
    return Phase.RUNNING if at < run.ended else Phase.FINISHED


def labels_of(run: Run) -> dict[str, str]:
    """The labels of a run's objects."""
    return {
        "app.kubernetes.io/name": run.project.name,
        "team": run.team.name,
        "project": run.project.name,
        "user": run.user,
    }


def annotations_of(run: Run) -> dict[str, str]:
    """The annotations of a run's objects."""
    return {"finance/cost-center": run.team.cost_center}


def annotations_of_pod(run: Run, pod: PodOfRun, hardware: Hardware) -> dict[str, str]:
    """The annotations of a pod that has its GPUs."""
    found = annotations_of(run)
    if uses_claims(run):
        found[CLAIM] = run.name
        found[ALLOCATED] = format_allocation(hardware.machines[pod.place.node].name, pod.place.gpus)
    return found


def root_of(run: Run) -> Identity:
    """The object at the top."""
    if run.kind == "CronJob":
        source = random.Random(f"{run.slot.seed}/cron/{run.slot.number}")  # noqa: S311  (a simulation, no secret)
        return Identity("batch/v1", "CronJob", f"nightly-{run.slot.number}", new_uid(source))
    return Identity(_API[run.kind], run.kind, run.name, run.uid)


def uses_claims(run: Run) -> bool:
    """Whether its GPUs were handed out by our scheduler rather than by the device plugin."""
    return run.kind in ("PyTorchJob", "Job", "CronJob", "Pod")


def pods_of(run: Run) -> tuple[PodOfRun, ...]:
    """The pods of a run, one for each place."""
    source = random.Random(f"{run.uid}/pods")  # noqa: S311  (a simulation, no secret)
    root = root_of(run)
    if run.kind == "Pod":
        return (PodOfRun(run.name, run.uid, run.slot.places[0], root, None),)
    parent = middle_of(run) or root
    pods = []
    for number, place in enumerate(run.slot.places):
        uid = new_uid(source)
        name = f"{parent.name}-{_suffix(run.kind, number, source)}"
        pods.append(PodOfRun(name, uid, place, root, parent))
    return tuple(pods)


def middle_of(run: Run) -> Identity | None:
    """The object between root and pods, where a kind has one."""
    source = random.Random(f"{run.uid}/middle")  # noqa: S311  (a simulation, no secret)
    if run.kind == "Deployment":
        return Identity("apps/v1", "ReplicaSet", f"{run.name}-{_word(source, 9)}", new_uid(source))
    if run.kind == "CronJob":
        return Identity("batch/v1", "Job", f"nightly-{run.slot.number}-{run.number}", run.uid)
    return None


def stamp(at: float) -> str:
    """A time as Kubernetes writes it."""
    return datetime.fromtimestamp(int(at), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def meta_of(run: Run, me: Identity, parent: Identity | None, created: float) -> Json:
    """The metadata of an object of a run."""
    meta: Json = {
        "name": me.name,
        "namespace": run.team.namespace,
        "uid": me.uid,
        "creationTimestamp": stamp(created),
        "labels": labels_of(run),
        "annotations": annotations_of(run),
    }
    if parent is not None:
        meta["ownerReferences"] = [
            {
                "apiVersion": parent.api_version,
                "kind": parent.kind,
                "name": parent.name,
                "uid": parent.uid,
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ]
    return meta


def condition(kind: str, is_so: bool, at: str, reason: str = "", message: str = "") -> Json:
    """A condition, as all kinds have them in their status."""
    told: Json = {"type": kind, "status": str(is_so), "lastTransitionTime": at}
    given = {"reason": reason, "message": message}
    return {**told, **{name: text for name, text in given.items() if text}}


_API = {
    "PyTorchJob": "kubeflow.org/v1",
    "Job": "batch/v1",
    "Deployment": "apps/v1",
    "StatefulSet": "apps/v1",
    "DaemonSet": "apps/v1",
    "Pod": "v1",
}


def _suffix(kind: str, number: int, source: random.Random) -> str:
    if kind == "PyTorchJob":
        return "master-0" if number == 0 else f"worker-{number - 1}"
    return str(number) if kind == "StatefulSet" else _word(source, 5)


def _word(source: random.Random, length: int) -> str:
    return "".join(source.choice("bcdfghjklmnpqrstvwxz2456789") for _ in range(length))
