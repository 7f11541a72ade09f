"""The runs of a simulated fleet as Kubernetes shows them: owners, pods, claims and leases.

Each object is what its controller would have made of it by then, with a uid and times that follow
from the run, so that it is the same object when the fleet is shown again tomorrow.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from gpufleet.model.holding import Holding
from gpufleet.sources.simulated.hardware import Hardware, new_uid
from gpufleet.sources.simulated.timeline import Place, Run

Json = dict[str, Any]
SCHEDULER = "gpu-scheduler"


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
    place: Place
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
        ids = ",".join(map(str, pod.place.gpus))
        found["gpu.scheduling/claim"] = run.name
        found["gpu.scheduling/allocated"] = f"{hardware.machines[pod.place.node].name}:{ids}"
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


def objects_of(run: Run, phase: Phase, hardware: Hardware, leases_in: str) -> list[Json]:
    """Every object of a run in a phase of its life, owners first."""
    pods = pods_of(run)
    root, middle = root_of(run), middle_of(run)
    found: list[Json] = []
    if run.kind not in ("Pod", "CronJob"):
        found.append(_owner(run, root, None, phase))
    if middle is not None:
        found.append(_owner(run, middle, root, phase))
    if uses_claims(run):
        found.append(_claim(run, phase, pods, hardware))
    found += [_pod(run, pod, phase, hardware) for pod in pods]
    if uses_claims(run) and phase in (Phase.STARTING, Phase.RUNNING):
        found += [lease for pod in pods for lease in leases(run, pod, hardware, leases_in)]
    return found


def holdings(run: Run, hardware: Hardware, end: float) -> Iterator[Holding]:
    """Which GPUs the pods of a run held, as the source of Kubernetes tells it at `end`."""
    for pod in pods_of(run):
        machine = hardware.machines[pod.place.node]
        yield Holding(
            pod_uid=pod.uid,
            pod=pod.name,
            namespace=run.team.namespace,
            node=machine.name,
            workload_uid=pod.root.uid,
            workload_kind=pod.root.kind,
            workload_name=pod.root.name,
            source="k8s",
            gpus=len(pod.place.gpus),
            share=1.0,
            model=machine.model.name.replace(" ", "_"),
            held=pod.place.gpus,
            labels=labels_of(run),
            annotations=annotations_of_pod(run, pod, hardware),
            start=run.bound,
            end=run.ended if run.ended <= end else 0.0,
        )


def cron_job(run: Run) -> Json:
    """The CronJob over a nightly run and all others of its slot."""
    root = root_of(run)
    labels = {name: value for name, value in labels_of(run).items() if name != "user"}
    template = {**_template(run), "metadata": {"labels": labels}}
    return {
        "apiVersion": root.api_version,
        "kind": "CronJob",
        "metadata": {
            "name": root.name,
            "namespace": run.team.namespace,
            "uid": root.uid,
            "creationTimestamp": stamp(run.slot.begin(0)),
            "labels": labels,
            "annotations": annotations_of(run),
        },
        "spec": {"schedule": "0 */6 * * *", "jobTemplate": {"spec": {"template": template}}},
    }


def leases(run: Run, pod: PodOfRun, hardware: Hardware, namespace: str) -> list[Json]:
    """The scheduler's leases of the GPUs that a pod holds."""
    machine = hardware.machines[pod.place.node]
    return [
        {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {
                "name": f"gpu-{machine.name}-{gpu}",
                "namespace": namespace,
                "uid": new_uid(random.Random(f"{pod.uid}/{gpu}")),  # noqa: S311  (a simulation, no secret)
                "creationTimestamp": stamp(run.bound),
                "labels": {"gpu.scheduling/node": machine.name},
                "annotations": {"gpu.scheduling/pod": f"{run.team.namespace}/{pod.name}"},
            },
            "spec": {"holderIdentity": pod.uid, "acquireTime": stamp(run.bound)[:-1] + ".000000Z"},
        }
        for gpu in pod.place.gpus
    ]


def stamp(at: float) -> str:
    """A time as Kubernetes writes it."""
    return datetime.fromtimestamp(int(at), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


_API = {
    "PyTorchJob": "kubeflow.org/v1",
    "Job": "batch/v1",
    "Deployment": "apps/v1",
    "StatefulSet": "apps/v1",
    "DaemonSet": "apps/v1",
    "Pod": "v1",
}


def _meta(run: Run, me: Identity, parent: Identity | None, created: float) -> Json:
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


def _template(run: Run) -> Json:
    asked = str(len(run.slot.places[0].gpus))
    container = {
        "name": "main",
        "image": run.project.image,
        "command": run.project.command.split(),
        "resources": {"limits": {run.slot.model.resource: asked}},
    }
    spec: Json = {"containers": [container]}
    if run.slot.role.finishes:
        spec["restartPolicy"] = "Never"
    if uses_claims(run):
        spec["schedulerName"] = SCHEDULER
    return {"metadata": {"labels": labels_of(run)}, "spec": spec}


def _owner(run: Run, me: Identity, parent: Identity | None, phase: Phase) -> Json:
    spec, status = _OWNERS[me.kind](run, phase)
    meta = _meta(run, me, parent, run.created)
    return {"apiVersion": me.api_version, "kind": me.kind, "metadata": meta, "spec": spec, "status": status}


def _job(run: Run, phase: Phase) -> tuple[Json, Json]:
    pods = len(run.slot.places)
    spec = {
        "parallelism": pods,
        "completions": pods,
        "backoffLimit": 0,
        "template": _template(run),
        "manualSelector": True,
        "selector": {"matchLabels": labels_of(run)},
    }
    status: Json = {"startTime": stamp(run.created)}
    if phase is not Phase.FINISHED:
        return spec, {**status, "active": pods, "ready": pods if phase is Phase.RUNNING else 0}
    ended = stamp(run.ended)
    if run.fails:
        reason, message = "BackoffLimitExceeded", "Job has reached the specified backoff limit"
        return spec, {
            **status,
            "failed": pods,
            "conditions": [_condition("Failed", True, ended, reason, message)],
        }
    done = [_condition("Complete", True, ended, "CompletionsReached")]
    return spec, {**status, "succeeded": pods, "completionTime": ended, "conditions": done}


def _pytorch_job(run: Run, phase: Phase) -> tuple[Json, Json]:
    workers = len(run.slot.places) - 1
    replicas: Json = {"Master": {"replicas": 1, "template": _template(run)}}
    if workers:
        replicas["Worker"] = {"replicas": workers, "template": _template(run)}
    conditions = [_condition("Created", True, stamp(run.created), "PyTorchJobCreated")]
    status: Json = {"conditions": conditions}
    if phase in (Phase.RUNNING, Phase.FINISHED):
        status["startTime"] = stamp(run.created)
        running = phase is Phase.RUNNING
        conditions.append(_condition("Running", running, stamp(run.started), "PyTorchJobRunning"))
    if phase is Phase.FINISHED:
        word = "Failed" if run.fails else "Succeeded"
        conditions.append(_condition(word, True, stamp(run.ended), f"PyTorchJob{word}"))
        status["completionTime"] = stamp(run.ended)
    return {"pytorchReplicaSpecs": replicas, "runPolicy": {"cleanPodPolicy": "None"}}, status


def _replicated(run: Run, phase: Phase) -> tuple[Json, Json]:
    pods = len(run.slot.places)
    ready = pods if phase is Phase.RUNNING else 0
    spec = {"replicas": pods, "selector": {"matchLabels": labels_of(run)}, "template": _template(run)}
    status = {"replicas": pods, "readyReplicas": ready, "availableReplicas": ready, "updatedReplicas": pods}
    return spec, status


def _replica_set(run: Run, phase: Phase) -> tuple[Json, Json]:
    spec, status = _replicated(run, phase)
    return spec, {name: value for name, value in status.items() if name != "updatedReplicas"}


def _stateful_set(run: Run, phase: Phase) -> tuple[Json, Json]:
    spec, status = _replicated(run, phase)
    return {**spec, "serviceName": run.name}, status


def _daemon_set(run: Run, phase: Phase) -> tuple[Json, Json]:
    pods = len(run.slot.places)
    ready = pods if phase is Phase.RUNNING else 0
    status = {
        "desiredNumberScheduled": pods,
        "currentNumberScheduled": pods,
        "numberMisscheduled": 0,
        "numberReady": ready,
        "numberAvailable": ready,
        "updatedNumberScheduled": pods,
    }
    return {"selector": {"matchLabels": labels_of(run)}, "template": _template(run)}, status


_OWNERS: dict[str, Callable[[Run, Phase], tuple[Json, Json]]] = {
    "Job": _job,
    "PyTorchJob": _pytorch_job,
    "Deployment": _replicated,
    "ReplicaSet": _replica_set,
    "StatefulSet": _stateful_set,
    "DaemonSet": _daemon_set,
}


def _pod(run: Run, pod: PodOfRun, phase: Phase, hardware: Hardware) -> Json:
    me = Identity("v1", "Pod", pod.name, pod.uid)
    meta = _meta(run, me, pod.parent, run.created)
    spec = _template(run)["spec"]
    machine = hardware.machines[pod.place.node]
    if phase is not Phase.WAITING:
        meta["annotations"] = annotations_of_pod(run, pod, hardware)
    elif uses_claims(run):
        meta["annotations"]["gpu.scheduling/claim"] = run.name
    if phase is not Phase.WAITING:
        spec = {**spec, "nodeName": machine.name}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": meta,
        "spec": spec,
        "status": _pod_status(run, phase, machine.address, len(hardware.machines)),
    }


def _pod_status(run: Run, phase: Phase, address: str, nodes: int) -> Json:
    if phase is Phase.WAITING:
        why = f"0/{nodes} nodes are available: {_wish(run)} must be free at once."
        unscheduled = _condition("PodScheduled", False, stamp(run.created), "Unschedulable", why)
        return {"phase": "Pending", "conditions": [unscheduled]}
    conditions = [_condition("PodScheduled", True, stamp(run.bound))]
    status: Json = {"hostIP": address, "startTime": stamp(run.bound), "conditions": conditions}
    container = {"name": "main", "image": run.project.image, "imageID": "", "restartCount": 0}
    if phase is Phase.STARTING:
        waiting = {"waiting": {"reason": "ContainerCreating"}}
        return {
            **status,
            "phase": "Pending",
            "containerStatuses": [{**container, "ready": False, "state": waiting}],
        }
    if phase is Phase.RUNNING:
        conditions.append(_condition("Ready", True, stamp(run.started)))
        state: Json = {"running": {"startedAt": stamp(run.started)}}
        return {
            **status,
            "phase": "Running",
            "containerStatuses": [{**container, "ready": True, "state": state}],
        }
    conditions.append(_condition("Ready", False, stamp(run.ended), "PodCompleted"))
    state = {
        "terminated": {
            "exitCode": 1 if run.fails else 0,
            "reason": "Error" if run.fails else "Completed",
            "startedAt": stamp(run.started),
            "finishedAt": stamp(run.ended),
        }
    }
    word = "Failed" if run.fails else "Succeeded"
    return {**status, "phase": word, "containerStatuses": [{**container, "ready": False, "state": state}]}


def _wish(run: Run) -> str:
    places = run.slot.places
    each = f"{len(places[0].gpus)} {run.slot.model.name} GPUs of one node"
    return each if len(places) == 1 else f"{each}, {len(places)} times,"


def _claim(run: Run, phase: Phase, pods: Sequence[PodOfRun], hardware: Hardware) -> Json:
    count = len(run.slot.places[0].gpus)
    spec: Json = {"devices": {"count": count, "policy": "contiguous", "exclusivity": "Exclusive"}}
    if count > 1 and run.slot.model.bandwidth_gbps:
        spec["topology"] = {"mode": "Preferred", "minBandwidthGBps": run.slot.model.bandwidth_gbps}
    source = random.Random(f"{run.uid}/claim")  # noqa: S311  (a simulation, no secret)
    me = Identity("gpu.scheduling/v1", "GpuClaim", run.name, new_uid(source))
    held = phase in (Phase.STARTING, Phase.RUNNING)
    status: Json = {"phase": "Pending", "message": f"waits until {_wish(run)} are free"}
    if phase is Phase.FINISHED:
        status = {"phase": "Bound", "message": "the pods have ended and their GPUs are free again"}
    if held:
        first = hardware.machines[pods[0].place.node].name
        ids = ",".join(map(str, pods[0].place.gpus))
        status = {
            "phase": "Bound",
            "nodeName": first,
            "gpuIds": list(pods[0].place.gpus),
            "allocated": f"{first}:{ids}",
            "message": "Successfully allocated",
            "allocations": [_allocation(pod, hardware) for pod in pods],
        }
    return {
        "apiVersion": me.api_version,
        "kind": me.kind,
        "metadata": _meta(run, me, None, run.created),
        "spec": spec,
        "status": status,
    }


def _allocation(pod: PodOfRun, hardware: Hardware) -> Json:
    machine = hardware.machines[pod.place.node]
    return {
        "podUid": pod.uid,
        "podName": pod.name,
        "nodeName": machine.name,
        "gpuIds": list(pod.place.gpus),
        "uuids": [machine.uuids[gpu] for gpu in pod.place.gpus],
        "phase": "Bound",
    }


def _condition(kind: str, is_so: bool, at: str, reason: str = "", message: str = "") -> Json:
    condition: Json = {"type": kind, "status": str(is_so), "lastTransitionTime": at}
    given = {"reason": reason, "message": message}
    return {**condition, **{name: text for name, text in given.items() if text}}


def _suffix(kind: str, number: int, source: random.Random) -> str:
    if kind == "PyTorchJob":
        return "master-0" if number == 0 else f"worker-{number - 1}"
    return str(number) if kind == "StatefulSet" else _word(source, 5)


def _word(source: random.Random, length: int) -> str:
    return "".join(source.choice("bcdfghjklmnpqrstvwxz2456789") for _ in range(length))
