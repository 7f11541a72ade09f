"""GpuClaims of simulated runs and leases of their GPUs, as the scheduler writes them."""

import hashlib
import random
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

import msgspec

from gpufleet.demo.objects.identities import Identity, Json, Phase, RunPod, metadata, timestamp
from gpufleet.demo.objects.pods import requested_gpus
from gpufleet.demo.simulation.hardware import Hardware, new_uid
from gpufleet.demo.simulation.timeline import Run
from gpufleet.kubernetes.allocation import format_allocation
from gpufleet.kubernetes.annotations import GANG_SIZE
from gpufleet.kubernetes.leases import LeaseHolder, new_lease
from gpufleet.placement.request import WHOLE


def claim(run: Run, phase: Phase, pods: Sequence[RunPod], hardware: Hardware) -> Json:
    """Return the claim of a run. It is removed when the run has finished."""
    count = len(run.slot.positions[0].gpus)
    spec: Json = {"devices": {"count": count, "policy": "contiguous", "exclusivity": "Exclusive"}}
    if count > 1 and run.slot.model.bandwidth_gbps:
        spec["topology"] = {"mode": "Preferred", "minBandwidthGBps": run.slot.model.bandwidth_gbps}
    if len(pods) > 1:
        spec["gangRef"] = run.name
    rng = random.Random(f"{run.uid}/claim")  # noqa: S311  (a simulation, no secret)
    identity = Identity("gpu.scheduling/v1", "GpuClaim", run.name, new_uid(rng))
    status: Json = {"phase": "Pending", "message": f"Waiting for {requested_gpus(run)}"}
    if phase in (Phase.STARTING, Phase.RUNNING):
        first = hardware.machines[pods[0].position.node].name
        status = {
            "phase": "Bound",
            "nodeName": first,
            "gpuIds": list(pods[0].position.gpus),
            "allocated": format_allocation(first, pods[0].position.gpus),
            "message": "Successfully allocated"
            if len(pods) == 1
            else f"Successfully allocated for {len(pods)} pods",
            "allocations": [_allocation(pod, hardware) for pod in pods],
        }
    meta = metadata(run, identity, None, run.created)
    if len(pods) > 1:
        meta["annotations"] |= {GANG_SIZE: str(len(pods))}
    return {
        "apiVersion": identity.api_version,
        "kind": identity.kind,
        "metadata": meta,
        "spec": spec,
        "status": status,
    }


def _allocation(pod: RunPod, hardware: Hardware) -> Json:
    machine = hardware.machines[pod.position.node]
    return {
        "podUid": pod.uid,
        "podName": pod.name,
        "nodeName": machine.name,
        "gpuIds": list(pod.position.gpus),
        "uuids": [machine.uuids[gpu] for gpu in pod.position.gpus],
        "phase": "Bound",
    }


def leases(run: Run, pod: RunPod, hardware: Hardware, namespace: str) -> Iterator[Json]:
    """Yield the leases of the GPUs that a pod holds."""
    machine = hardware.machines[pod.position.node]
    holder_stamp = hashlib.sha256(pod.uid.encode()).hexdigest()[:12]
    holder = LeaseHolder(run.team.namespace, pod.name, run.name, WHOLE, stamp=holder_stamp)
    bound = datetime.fromtimestamp(run.bound, UTC)
    for gpu in pod.position.gpus:
        lease = new_lease(namespace, machine.name, gpu, {pod.uid: holder}, machine.model.name, bound)
        result: Json = msgspec.to_builtins(lease)
        result["apiVersion"], result["kind"] = "coordination.k8s.io/v1", "Lease"
        result["metadata"] |= {
            "uid": new_uid(random.Random(f"{pod.uid}/{gpu}/{run.bound:.0f}")),  # noqa: S311  (a simulation, no secret)
            "creationTimestamp": timestamp(run.bound),
        }
        yield result
