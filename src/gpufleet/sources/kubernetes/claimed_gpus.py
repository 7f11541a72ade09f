"""Find the GPUs that a pod with a GpuClaim holds, and its share of each.

The claim says how much the pod asked for, the allocation annotation on which GPUs. The leases say how many
MIG instances it has on each GPU. They also say how much of a GPU it holds after its claim was deleted: the
pod keeps what it holds until it ends.
"""

from collections.abc import Mapping
from typing import NamedTuple

from gpufleet.kubernetes.allocation import allocated_gpus
from gpufleet.kubernetes.crds.gpu_claim import DEFAULT_SHARE, GpuClaim
from gpufleet.kubernetes.gpu_requests import SLICES, GpuRequest, profile_share
from gpufleet.kubernetes.leases import LeaseHolder
from gpufleet.kubernetes.objects import Pod


class PodLeases(NamedTuple):
    """A pod's entries in the leases of its node by GPU, and the MIG profiles of that node by GPU and instance."""

    holders: Mapping[int, LeaseHolder] = {}
    profiles: Mapping[tuple[int, str], str] = {}


def claimed_request(claim: GpuClaim) -> GpuRequest:
    """Return what a claim asks for; MIG instances count one by one, each as its share of a GPU."""
    devices = claim.spec.devices
    if devices.exclusivity == "Shared":
        return GpuRequest(devices.count, devices.share if devices.share is not None else DEFAULT_SHARE)
    if devices.exclusivity == "MIG":
        return GpuRequest(devices.count, profile_share(devices.mig_profile))
    return GpuRequest(devices.count, 1.0)


def instances_request(claim: GpuClaim, leases: PodLeases) -> GpuRequest:
    """Return what a pod has whose claim is for MIG instances of any profile; before it has any, the smallest."""
    shares = [
        profile_share(leases.profiles.get((gpu, each), ""))
        for gpu, holder in leases.holders.items()
        for each in holder.instances
    ]
    if not shares:
        return GpuRequest(claim.spec.devices.count, 1 / SLICES)
    return GpuRequest(len(shares), sum(shares) / len(shares))


def leased_request(pod: Pod, leases: PodLeases) -> GpuRequest:
    """Return what a pod holds whose claim was deleted or cannot be read; whole GPUs if its leases are gone too."""
    shares = [
        profile_share(leases.profiles.get((gpu, holder.instances[0]), ""))
        if holder.instances
        else holder.milli / 1000
        for gpu, holder in leases.holders.items()
        if gpu in allocated_gpus(pod)
    ]
    return GpuRequest(len(held_gpus(pod, None, leases)), next(filter(None, shares), 1.0))


def held_gpus(pod: Pod, claim: GpuClaim | None, leases: PodLeases) -> tuple[int, ...]:
    """Return the GPUs of a pod in order, one entry for each MIG instance; empty if they are not known."""
    gpus = sorted(set(allocated_gpus(pod))) or _allocated_by_claim(pod, claim)
    if claim is not None and claim.spec.devices.exclusivity == "MIG" and len(gpus) == 1:
        return tuple(gpus) * min(SLICES, claim.spec.devices.count)
    return tuple(gpu for gpu in gpus for _ in _instances(leases.holders.get(gpu)))


def _instances(holder: LeaseHolder | None) -> tuple[str, ...]:
    return (holder.instances if holder else ()) or ("",)


def _allocated_by_claim(pod: Pod, claim: GpuClaim | None) -> list[int]:
    """Return the GPU ids in the status of the claim."""
    for allocation in claim.status.allocations if claim is not None else ():
        if allocation.pod_uid == pod.metadata.uid and allocation.node_name == pod.spec.node_name:
            return sorted(set(allocation.gpu_ids))
    return []
