"""Pods of simulated runs: as their controllers create them, the webhook admits them and the scheduler binds them."""

from gpufleet.demo.objects.identities import (
    Identity,
    Json,
    Phase,
    RunPod,
    condition,
    metadata,
    pod_annotations,
    timestamp,
)
from gpufleet.demo.objects.owners import pod_template
from gpufleet.demo.simulation.hardware import Hardware
from gpufleet.demo.simulation.timeline import Run
from gpufleet.errors import OperationRefused
from gpufleet.kubernetes.annotations import GANG_GATE
from gpufleet.kubernetes.crds.gpu_claim import GpuClaim
from gpufleet.webhook.pod_admission import PodRules, admit_create
from gpufleet.webhook.wire import AdmissionRequest
from kubelite.patch.json_patch import json_patch

_RULES = PodRules()
_GATED = "Scheduling is blocked due to non-empty scheduling gates"


def pod_object(
    run: Run, pod: RunPod, phase: Phase, hardware: Hardware, claim: GpuClaim | None, note: str
) -> Json:
    """Return a pod in a phase of its run; `note` says why it is pending, empty if it was not tried yet."""
    found = _admitted(_created(run, pod), claim)
    spec = found["spec"]
    machine = hardware.machines[pod.position.node]
    if phase is Phase.WAITING:
        return {**found, "status": _waiting_status(run, bool(spec.get("schedulingGates")), note)}
    # The scheduler removes the gate of its gangs, and the binding brings the node and the annotations.
    gates = [gate for gate in spec.pop("schedulingGates", ()) if gate["name"] != GANG_GATE]
    spec |= {"nodeName": machine.name, **({"schedulingGates": gates} if gates else {})}
    found["metadata"]["annotations"] |= pod_annotations(run, pod, hardware)
    return {**found, "status": _bound_status(run, phase, machine.address)}


def _created(run: Run, pod: RunPod) -> Json:
    """Return the pod that its controller or user sends."""
    template = pod_template(run)
    meta = metadata(run, Identity("v1", "Pod", pod.name, pod.uid), pod.parent, run.created)
    meta["annotations"] = template["metadata"]["annotations"]
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": template["spec"]}


def _admitted(pod: Json, claim: GpuClaim | None) -> Json:
    """Return the pod as the webhook changes it."""
    response = admit_create(AdmissionRequest(uid=pod["metadata"]["uid"], object=pod), claim, _RULES)
    if response.refusal:
        raise OperationRefused(f"the webhook refuses pod {pod['metadata']['name']}: {response.refusal}")
    return json_patch(pod, list(response.patch)) if response.patch else pod


def _waiting_status(run: Run, gated: bool, note: str) -> Json:
    if not gated and not note:
        return {"phase": "Pending"}
    reason, message = ("SchedulingGated", _GATED) if gated else ("Unschedulable", note)
    return {
        "phase": "Pending",
        "conditions": [condition("PodScheduled", False, timestamp(run.created), reason, message)],
    }


def _bound_status(run: Run, phase: Phase, address: str) -> Json:
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
