"""Owners of the pods of simulated runs: Jobs, PyTorchJobs, Deployments and others, with their status."""

from collections.abc import Callable
from typing import NamedTuple

from gpufleet.demo.objects.identities import (
    Identity,
    Json,
    Phase,
    condition,
    metadata,
    root_owner,
    run_annotations,
    run_labels,
    template_annotations,
    timestamp,
    uses_claims,
)
from gpufleet.demo.simulation.timeline import Run

_JOBS = ("Job", "CronJob", "PyTorchJob")


class Replicas(NamedTuple):
    """The pods of a workload, and how many of them are ready."""

    total: int
    ready: int


def replicas_of(run: Run, phase: Phase) -> Replicas:
    """Return the replicas of a run without those that are runs of their own."""
    pods = len(run.slot.positions)
    return Replicas(pods, pods if phase is Phase.RUNNING else 0)


def owner(run: Run, identity: Identity, parent: Identity | None, phase: Phase, replicas: Replicas) -> Json:
    """Return an owner object in a phase of its run."""
    if identity.kind in _REPLICATED:
        spec, status = _REPLICATED[identity.kind](run, replicas)
    else:
        spec, status = _OWNERS[identity.kind](run, phase)
    meta = metadata(run, identity, parent, run.created)
    return {
        "apiVersion": identity.api_version,
        "kind": identity.kind,
        "metadata": meta,
        "spec": spec,
        "status": status,
    }


def cron_job(run: Run) -> Json:
    """Return the CronJob that owns the runs of a slot."""
    root = root_owner(run)
    labels = {name: value for name, value in run_labels(run).items() if name != "user"}
    template = {**pod_template(run), "metadata": {"labels": labels, "annotations": template_annotations(run)}}
    return {
        "apiVersion": root.api_version,
        "kind": "CronJob",
        "metadata": {
            "name": root.name,
            "namespace": run.team.namespace,
            "uid": root.uid,
            "creationTimestamp": timestamp(run.slot.cell_start(0)),
            "labels": labels,
            "annotations": run_annotations(run),
        },
        "spec": {"schedule": "0 */6 * * *", "jobTemplate": {"spec": {"template": template}}},
    }


def pod_template(run: Run) -> Json:
    """Return the pod template of a run: with a claim, or with a request to the device plugin."""
    container: Json = {
        "name": "main",
        "image": run.project.image,
        "command": run.project.command.split(),
    }
    if not uses_claims(run):
        count = str(len(run.slot.positions[0].gpus))
        container["resources"] = {"limits": {run.slot.model.resource: count}}
    spec: Json = {"containers": [container]}
    if run.kind in _JOBS:
        spec["restartPolicy"] = "Never"
    return {"metadata": {"labels": run_labels(run), "annotations": template_annotations(run)}, "spec": spec}


def _job(run: Run, phase: Phase) -> tuple[Json, Json]:
    pods = len(run.slot.positions)
    spec = {
        "parallelism": pods,
        "completions": pods,
        "backoffLimit": 0,
        "template": pod_template(run),
        "manualSelector": True,
        "selector": {"matchLabels": run_labels(run)},
    }
    if not run.slot.role.finishes:
        spec["ttlSecondsAfterFinished"] = 0
    status: Json = {"startTime": timestamp(run.created)}
    if phase is not Phase.FINISHED:
        return spec, {**status, "active": pods, "ready": pods if phase is Phase.RUNNING else 0}
    ended = timestamp(run.ended)
    if run.fails:
        reason, message = "BackoffLimitExceeded", "Job has reached the specified backoff limit"
        return spec, {
            **status,
            "failed": pods,
            "conditions": [condition("Failed", True, ended, reason, message)],
        }
    done = [condition("Complete", True, ended, "CompletionsReached")]
    return spec, {**status, "succeeded": pods, "completionTime": ended, "conditions": done}


def _pytorch_job(run: Run, phase: Phase) -> tuple[Json, Json]:
    workers = len(run.slot.positions) - 1
    replicas: Json = {"Master": {"replicas": 1, "template": pod_template(run)}}
    if workers:
        replicas["Worker"] = {"replicas": workers, "template": pod_template(run)}
    conditions = [condition("Created", True, timestamp(run.created), "PyTorchJobCreated")]
    status: Json = {"conditions": conditions}
    if phase in (Phase.RUNNING, Phase.FINISHED):
        status["startTime"] = timestamp(run.created)
        running = phase is Phase.RUNNING
        conditions.append(condition("Running", running, timestamp(run.started), "PyTorchJobRunning"))
    if phase is Phase.FINISHED:
        word = "Failed" if run.fails else "Succeeded"
        conditions.append(condition(word, True, timestamp(run.ended), f"PyTorchJob{word}"))
        status["completionTime"] = timestamp(run.ended)
    return {"pytorchReplicaSpecs": replicas, "runPolicy": {"cleanPodPolicy": "None"}}, status


def _deployment(run: Run, replicas: Replicas) -> tuple[Json, Json]:
    total, ready = replicas
    spec = {"replicas": total, "selector": {"matchLabels": run_labels(run)}, "template": pod_template(run)}
    status = {"replicas": total, "readyReplicas": ready, "availableReplicas": ready, "updatedReplicas": total}
    return spec, status


def _replica_set(run: Run, replicas: Replicas) -> tuple[Json, Json]:
    spec, status = _deployment(run, replicas)
    return spec, {name: value for name, value in status.items() if name != "updatedReplicas"}


def _stateful_set(run: Run, replicas: Replicas) -> tuple[Json, Json]:
    spec, status = _deployment(run, replicas)
    return {**spec, "serviceName": run.name}, status


def _daemon_set(run: Run, phase: Phase) -> tuple[Json, Json]:
    pods = len(run.slot.positions)
    ready = pods if phase is Phase.RUNNING else 0
    status = {
        "desiredNumberScheduled": pods,
        "currentNumberScheduled": pods,
        "numberMisscheduled": 0,
        "numberReady": ready,
        "numberAvailable": ready,
        "updatedNumberScheduled": pods,
    }
    return {"selector": {"matchLabels": run_labels(run)}, "template": pod_template(run)}, status


_REPLICATED: dict[str, Callable[[Run, Replicas], tuple[Json, Json]]] = {
    "Deployment": _deployment,
    "ReplicaSet": _replica_set,
    "StatefulSet": _stateful_set,
}
_OWNERS: dict[str, Callable[[Run, Phase], tuple[Json, Json]]] = {
    "Job": _job,
    "PyTorchJob": _pytorch_job,
    "DaemonSet": _daemon_set,
}
