"""Names, uids, labels and phases of the Kubernetes objects of a run.

All of them follow from the run, so that an object keeps its identity when the demo restarts.
"""

import random
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from gpufleet.demo.simulation.hardware import Hardware, new_uid
from gpufleet.demo.simulation.timeline import Run, SlotPosition
from gpufleet.kubernetes.allocation import format_allocation
from gpufleet.kubernetes.annotations import ALLOCATED, CLAIM, VISIBLE
from gpufleet.webhook.pod_admission import KEEP_NODE

Json = dict[str, Any]


class Phase(StrEnum):
    """The phase of a run."""

    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    FINISHED = "finished"


@dataclass(frozen=True)
class Identity:
    """The identity of an object."""

    api_version: str
    kind: str
    name: str
    uid: str


@dataclass(frozen=True)
class RunPod:
    """One pod of a run."""

    name: str
    uid: str
    position: SlotPosition
    root: Identity
    """The top-level owner, or the pod itself."""
    parent: Identity | None


def phase_at(run: Run, at: float) -> Phase:
    """Return the phase of a run at a time."""
    if at < run.bound:
        return Phase.WAITING
    if at < run.started:
        return Phase.STARTING
    return Phase.RUNNING if at < run.ended else Phase.FINISHED


def run_labels(run: Run) -> dict[str, str]:
    """Return the labels of a run's objects."""
    return {
        "app.kubernetes.io/name": run.project.name,
        "team": run.team.name,
        "project": run.project.name,
        "user": run.user,
    }


COST_CENTER = "finance/cost-center"
"""The annotation that the demo's settings name, so that its servers keep it."""


def run_annotations(run: Run) -> dict[str, str]:
    """Return the annotations of a run's objects."""
    return {COST_CENTER: run.team.cost_center}


def template_annotations(run: Run) -> dict[str, str]:
    """Return the annotations of a pod when it is created."""
    return {**run_annotations(run), CLAIM: claim_name(run)} if uses_claims(run) else run_annotations(run)


def pod_annotations(run: Run, pod: RunPod, hardware: Hardware) -> dict[str, str]:
    """Return the annotations of a pod that has its GPUs, with those of the webhook and of its binding."""
    found = template_annotations(run)
    if uses_claims(run):
        found |= KEEP_NODE
        position = pod.position
        ids = ",".join(map(str, position.gpus))
        found[ALLOCATED] = format_allocation(hardware.machines[position.node].name, position.gpus)
        found[VISIBLE] = ids if position.part is None else position.part.uuid
    return found


def root_owner(run: Run) -> Identity:
    """Return the top-level object of a run."""
    run = run.base or run
    if run.kind == "CronJob":
        rng = random.Random(f"{run.slot.seed}/cron/{run.slot.number}")  # noqa: S311  (a simulation, no secret)
        return Identity("batch/v1", "CronJob", f"nightly-{run.slot.number}", new_uid(rng))
    return Identity(_API[run.kind], run.kind, run.name, run.uid)


def uses_claims(run: Run) -> bool:
    """Return whether the scheduler allocated the GPUs, rather than the device plugin."""
    return run.kind in ("PyTorchJob", "Job", "CronJob", "Pod")


def claim_name(run: Run) -> str:
    """Return the name of a run's claim; all runs of a CronJob use the same name."""
    return root_owner(run).name if run.kind == "CronJob" else run.name


def pods_of(run: Run) -> tuple[RunPod, ...]:
    """Return the pods of a run, one per position."""
    rng = random.Random(f"{run.uid}/pods")  # noqa: S311  (a simulation, no secret)
    root = root_owner(run)
    if run.kind == "Pod":
        return (RunPod(run.name, run.uid, run.slot.positions[0], root, None),)
    parent = intermediate_owner(run) or root
    pods = []
    for number, position in enumerate(run.slot.positions, start=run.slot.ordinal):
        uid = new_uid(rng)
        name = f"{parent.name}-{_suffix(run.kind, number, rng)}"
        pods.append(RunPod(name, uid, position, root, parent))
    return tuple(pods)


def intermediate_owner(run: Run) -> Identity | None:
    """Return the object between root and pods, or None if the kind has none."""
    run = run.base or run
    rng = random.Random(f"{run.uid}/middle")  # noqa: S311  (a simulation, no secret)
    if run.kind == "Deployment":
        return Identity("apps/v1", "ReplicaSet", f"{run.name}-{_random_suffix(rng, 9)}", new_uid(rng))
    if run.kind == "CronJob":
        return Identity("batch/v1", "Job", f"nightly-{run.slot.number}-{run.number}", run.uid)
    return None


def timestamp(at: float) -> str:
    """Return a time as Kubernetes writes it."""
    return datetime.fromtimestamp(int(at), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def metadata(run: Run, identity: Identity, parent: Identity | None, created: float) -> Json:
    """Return the metadata of an object of a run."""
    meta: Json = {
        "name": identity.name,
        "namespace": run.team.namespace,
        "uid": identity.uid,
        "creationTimestamp": timestamp(created),
        "labels": run_labels(run),
        "annotations": run_annotations(run),
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


def condition(kind: str, is_true: bool, at: str, reason: str = "", message: str = "") -> Json:
    """Return a status condition."""
    result: Json = {"type": kind, "status": str(is_true), "lastTransitionTime": at}
    optional = {"reason": reason, "message": message}
    return {**result, **{name: text for name, text in optional.items() if text}}


_API = {
    "PyTorchJob": "kubeflow.org/v1",
    "Job": "batch/v1",
    "Deployment": "apps/v1",
    "StatefulSet": "apps/v1",
    "DaemonSet": "apps/v1",
    "Pod": "v1",
}


def _suffix(kind: str, number: int, rng: random.Random) -> str:
    if kind == "PyTorchJob":
        return "master-0" if number == 0 else f"worker-{number - 1}"
    return str(number) if kind == "StatefulSet" else _random_suffix(rng, 5)


def _random_suffix(rng: random.Random, length: int) -> str:
    return "".join(rng.choice("bcdfghjklmnpqrstvwxz2456789") for _ in range(length))
