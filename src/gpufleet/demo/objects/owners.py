"""What stands above the pods of a simulated run: Jobs, PyTorchJobs, Deployments and others, with their status."""

from collections.abc import Callable

from gpufleet.demo.simulation.identities import (
    Identity,
    Json,
    Phase,
    annotations_of,
    condition,
    labels_of,
    meta_of,
    root_of,
    stamp,
    uses_claims,
)
from gpufleet.demo.simulation.timeline import Run

SCHEDULER = "simulated-scheduler"
"""Not the name that the real one listens to: its pods are bound by the simulation alone."""


def owner(run: Run, me: Identity, parent: Identity | None, phase: Phase) -> Json:
    """An object above the pods, in a phase of the run's life."""
    spec, status = _OWNERS[me.kind](run, phase)
    meta = meta_of(run, me, parent, run.created)
    return {"apiVersion": me.api_version, "kind": me.kind, "metadata": meta, "spec": spec, "status": status}


def cron_job(run: Run) -> Json:
    """The CronJob over a nightly run and all others of its slot."""
    root = root_of(run)
    labels = {name: value for name, value in labels_of(run).items() if name != "user"}
    template = {**template_of(run), "metadata": {"labels": labels}}
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


def template_of(run: Run) -> Json:
    """What every pod of a run is made from."""
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


def _job(run: Run, phase: Phase) -> tuple[Json, Json]:
    pods = len(run.slot.places)
    spec = {
        "parallelism": pods,
        "completions": pods,
        "backoffLimit": 0,
        "template": template_of(run),
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
            "conditions": [condition("Failed", True, ended, reason, message)],
        }
    done = [condition("Complete", True, ended, "CompletionsReached")]
    return spec, {**status, "succeeded": pods, "completionTime": ended, "conditions": done}


def _pytorch_job(run: Run, phase: Phase) -> tuple[Json, Json]:
    workers = len(run.slot.places) - 1
    replicas: Json = {"Master": {"replicas": 1, "template": template_of(run)}}
    if workers:
        replicas["Worker"] = {"replicas": workers, "template": template_of(run)}
    conditions = [condition("Created", True, stamp(run.created), "PyTorchJobCreated")]
    status: Json = {"conditions": conditions}
    if phase in (Phase.RUNNING, Phase.FINISHED):
        status["startTime"] = stamp(run.created)
        running = phase is Phase.RUNNING
        conditions.append(condition("Running", running, stamp(run.started), "PyTorchJobRunning"))
    if phase is Phase.FINISHED:
        word = "Failed" if run.fails else "Succeeded"
        conditions.append(condition(word, True, stamp(run.ended), f"PyTorchJob{word}"))
        status["completionTime"] = stamp(run.ended)
    return {"pytorchReplicaSpecs": replicas, "runPolicy": {"cleanPodPolicy": "None"}}, status


def _replicated(run: Run, phase: Phase) -> tuple[Json, Json]:
    pods = len(run.slot.places)
    ready = pods if phase is Phase.RUNNING else 0
    spec = {"replicas": pods, "selector": {"matchLabels": labels_of(run)}, "template": template_of(run)}
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
    return {"selector": {"matchLabels": labels_of(run)}, "template": template_of(run)}, status


_OWNERS: dict[str, Callable[[Run, Phase], tuple[Json, Json]]] = {
    "Job": _job,
    "PyTorchJob": _pytorch_job,
    "Deployment": _replicated,
    "ReplicaSet": _replica_set,
    "StatefulSet": _stateful_set,
    "DaemonSet": _daemon_set,
}
