"""The pods of a simulated run as their kubelets show them."""

from gpufleet.demo.objects.owners import template_of
from gpufleet.demo.simulation.hardware import Hardware
from gpufleet.demo.simulation.identities import (
    Identity,
    Json,
    Phase,
    PodOfRun,
    annotations_of_pod,
    condition,
    meta_of,
    stamp,
    uses_claims,
)
from gpufleet.demo.simulation.timeline import Run
from gpufleet.kubernetes.annotations import CLAIM


def pod_object(run: Run, pod: PodOfRun, phase: Phase, hardware: Hardware) -> Json:
    """A pod in a phase of its run's life."""
    me = Identity("v1", "Pod", pod.name, pod.uid)
    meta = meta_of(run, me, pod.parent, run.created)
    spec = template_of(run)["spec"]
    machine = hardware.machines[pod.place.node]
    if phase is not Phase.WAITING:
        meta["annotations"] = annotations_of_pod(run, pod, hardware)
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
        why = f"0/{nodes} nodes are available: {wish(run)} must be free at once."
        unscheduled = condition("PodScheduled", False, stamp(run.created), "Unschedulable", why)
        return {"phase": "Pending", "conditions": [unscheduled]}
    conditions = [condition("PodScheduled", True, stamp(run.bound))]
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
        conditions.append(condition("Ready", True, stamp(run.started)))
        state: Json = {"running": {"startedAt": stamp(run.started)}}
        return {
            **status,
            "phase": "Running",
            "containerStatuses": [{**container, "ready": True, "state": state}],
        }
    conditions.append(condition("Ready", False, stamp(run.ended), "PodCompleted"))
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


def wish(run: Run) -> str:
    """What a run waits for, in words."""
    places = run.slot.places
    each = f"{len(places[0].gpus)} {run.slot.model.name} GPUs of one node"
    return each if len(places) == 1 else f"{each}, {len(places)} times,"
