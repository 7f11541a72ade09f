"""GpuClaims of simulated runs, with the status that the scheduler writes."""

import random
from collections.abc import Sequence

import msgspec

from gpufleet.demo.objects.identities import Identity, Json, Phase, RunPod, claim_name, metadata
from gpufleet.demo.simulation.hardware import Hardware, new_uid
from gpufleet.demo.simulation.timeline import Run
from gpufleet.kubernetes.annotations import GANG_SIZE
from gpufleet.kubernetes.crds.gpu_claim import GpuClaim
from gpufleet.scheduler.claim_status import compose_status

SCHEDULER = "simulated-scheduler"
"""Differs from the real scheduler's name: the simulation binds its own pods."""

GPU_TYPE = "gpu-type"
POOL = "node-pool"
"""Labels of nodes that claims select."""


def claim(run: Run, pods: Sequence[RunPod]) -> Json:
    """Return the claim of a run as its user creates it. It is removed when the run has finished."""
    position = run.slot.positions[0]
    devices: Json = {"count": len(position.gpus), "policy": "contiguous", "exclusivity": "Exclusive"}
    if position.part is not None:
        devices |= {"exclusivity": "MIG", "migProfile": position.part.profile}
    labels = {GPU_TYPE: run.slot.model.short}
    if run.slot.pool:
        labels[POOL] = run.slot.pool
    spec: Json = {"devices": devices, "selector": {"matchLabels": labels}, "schedulerName": SCHEDULER}
    if len(position.gpus) > 1 and run.slot.model.bandwidth_gbps:
        spec["topology"] = {"mode": "Preferred", "minBandwidthGBps": run.slot.model.bandwidth_gbps}
    rng = random.Random(f"{run.uid}/claim")  # noqa: S311  (a simulation, no secret)
    identity = Identity("gpu.scheduling/v1", "GpuClaim", claim_name(run), new_uid(rng))
    meta = metadata(run, identity, None, run.created)
    if len(pods) > 1:
        spec["gangRef"] = run.name
        meta["annotations"] |= {GANG_SIZE: str(len(pods))}
    return {
        "apiVersion": identity.api_version,
        "kind": identity.kind,
        "metadata": meta,
        "spec": spec,
        "status": {"phase": "Pending"},
    }


def parsed(claim: Json) -> GpuClaim:
    """Return a claim as scheduler and webhook read it."""
    return msgspec.convert(claim, GpuClaim)


def claim_status(phase: Phase, pods: Sequence[RunPod], hardware: Hardware, note: str) -> Json:
    """Return the status of a claim; `note` says why the pods are pending, empty if they were not tried yet."""
    if phase is Phase.WAITING and not note:
        return {"phase": "Pending"}
    entries = [] if phase is Phase.WAITING else [_allocation(pod, hardware) for pod in pods]
    status = compose_status("Pending", len(pods), entries, note)
    return {name: value for name, value in status.items() if value is not None}


def _allocation(pod: RunPod, hardware: Hardware) -> Json:
    position = pod.position
    machine = hardware.machines[position.node]
    uuids = [machine.uuids[gpu] for gpu in position.gpus]
    return {
        "podUid": pod.uid,
        "podName": pod.name,
        "nodeName": machine.name,
        "gpuIds": list(position.gpus),
        "uuids": uuids if position.part is None else [position.part.uuid],
        "phase": "Bound",
    }
