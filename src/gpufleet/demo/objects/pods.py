"""Pods of simulated runs."""

from gpufleet.demo.objects.identities import (
    Identity,
    Json,
    Phase,
    RunPod,
    condition,
    metadata,
    pod_annotations,
    timestamp,
    uses_claims,
)
from gpufleet.demo.objects.owners import pod_template
from gpufleet.demo.simulation.hardware import Hardware
from gpufleet.demo.simulation.timeline import Run
from gpufleet.kubernetes.annotations import CLAIM


def pod_object(run: Run, pod: RunPod, phase: Phase, hardware: Hardware) -> Json:
    """Return a pod in a phase of its run."""
    identity = Identity("v1", "Pod", pod.name, pod.uid)
    meta = metadata(run, identity, pod.parent, run.created)
    spec = pod_template(run)["spec"]
    machine = hardware.machines[pod.position.node]
    if phase is not Phase.WAITING:
        meta["annotations"] = pod_annotations(run, pod, hardware)
    elif uses_claims(run):
        meta["annotations"][CLAIM] = run.name
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
        why = f"0/{nodes} nodes are available: {requested_gpus(run)} required."
        unscheduled = condition("PodScheduled", False, timestamp(run.created), "Unschedulable", why)
        return {"phase": "Pending", "conditions": [unscheduled]}
    conditions = [condition("PodScheduled", True, timestamp(run.bound))]
    status: Json = {"hostIP": address, "startTime": timestamp(run.bound), "conditions": conditions}
    container = {"name": "main", "image": run.project.image, "imageID": "", "restartCount": 0}
    if phase is Phase.STARTING:
        waiting = {"waiting": {"reason": "ContainerCreating"}}
        return {
            **status,
            "phase": "Pending",
            "containerStatuses": [{**container, "ready": False, "state": waiting}],
        }
    if phase is Phase.RUNNING:
        conditions.append(condition("Ready", True, timestamp(run.started)))
        state: Json = {"running": {"startedAt": timestamp(run.started)}}
        return {
            **status,
            "phase": "Running",
            "containerStatuses": [{**container, "ready": True, "state": state}],
        }
    conditions.append(condition("Ready", False, timestamp(run.ended), "PodCompleted"))
    state = {
        "terminated": {
            "exitCode": 1 if run.fails else 0,
            "reason": "Error" if run.fails else "Completed",
            "startedAt": timestamp(run.started),
            "finishedAt": timestamp(run.ended),
        }
    }
    word = "Failed" if run.fails else "Succeeded"
    return {**status, "phase": word, "containerStatuses": [{**container, "ready": False, "state": state}]}


def requested_gpus(run: Run) -> str:
    """Describe the GPUs that a run requests."""
    positions = run.slot.positions
    each = f"{len(positions[0].gpus)} {run.slot.model.name} GPUs on one node"
    return each if len(positions) == 1 else f"{len(positions)} × {each}"
