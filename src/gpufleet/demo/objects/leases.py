"""Leases of GPUs that simulated runs hold, as the scheduler writes them."""

import hashlib
import random
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import NamedTuple

import msgspec

from gpufleet.demo.objects.identities import Json, RunPod, claim_name, timestamp
from gpufleet.demo.simulation.hardware import Machine, new_uid
from gpufleet.demo.simulation.timeline import Run
from gpufleet.kubernetes.leases import LeaseHolder, new_lease, with_holders
from gpufleet.model.gpu_models import canonical_model
from gpufleet.placement.request import WHOLE


class Held(NamedTuple):
    """A holder of a GPU, and since when."""

    holder: LeaseHolder
    since: float


def held_by(run: Run, pod: RunPod) -> Held:
    """Return the entry of a pod in the leases of its GPUs."""
    stamp = hashlib.sha256(pod.uid.encode()).hexdigest()[:12]
    part = pod.position.part
    instances = () if part is None else (str(part.id),)
    milli = WHOLE if part is None else 0
    return Held(
        LeaseHolder(run.team.namespace, pod.name, claim_name(run), milli, instances, stamp), run.bound
    )


def gpu_lease(
    namespace: str,
    machine: Machine,
    gpu: int,
    simulated: Mapping[str, Held],
    users: Mapping[str, LeaseHolder],
) -> Json:
    """Return the lease of a GPU: its holders in the simulation by pod uid, and the pods of users."""
    ordered = sorted(simulated.items(), key=lambda pair: (pair[1].since, pair[0]))
    first, (_, acquired) = ordered[0]
    holders = {**{uid: held.holder for uid, held in ordered}, **users}
    model = canonical_model(machine.model.name)
    lease = new_lease(namespace, machine.name, gpu, holders, model, _moment(acquired))
    if len(ordered) > 1:
        lease = with_holders(lease, holders, _moment(ordered[-1][1].since))
    result: Json = msgspec.to_builtins(lease)
    result["apiVersion"], result["kind"] = "coordination.k8s.io/v1", "Lease"
    result["metadata"] |= {
        "uid": new_uid(random.Random(f"{first}/{gpu}/{acquired:.0f}")),  # noqa: S311  (a simulation, no secret)
        "creationTimestamp": timestamp(acquired),
    }
    return result


def _moment(at: float) -> datetime:
    return datetime.fromtimestamp(at, UTC)
