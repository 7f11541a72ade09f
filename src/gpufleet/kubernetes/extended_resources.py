"""The extended resources that stand for claims: the agent publishes them, the webhook requests them.

ResourceQuota, Kueue, kubelets and autoscalers count requests of containers; they do not read GpuClaims. Which GPUs a
pod gets is decided by the scheduler alone, so kube-scheduler is configured to ignore these resources.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

from gpufleet.kubernetes.crds.gpu_claim import DEFAULT_SHARE, ClaimDevices

GPU = "gpu.scheduling/gpu"
"""Whole GPUs: claims with exclusivity Exclusive."""

GPU_SHARE = "gpu.scheduling/gpu-share"
"""Hundredths of a GPU: claims with exclusivity Shared. An extended resource is a whole number."""

MIG_INSTANCE = "gpu.scheduling/mig"
"""MIG instances of any profile: claims with exclusivity MIG."""

NAMES = (GPU, GPU_SHARE, MIG_INSTANCE)
_PER_GPU = 100


class Amount(NamedTuple):
    """An amount of one of the resources."""

    resource: str
    number: int


def claimed(devices: ClaimDevices) -> Amount:
    """Return what one pod of a claim requests."""
    if devices.exclusivity == "MIG":
        return Amount(MIG_INSTANCE, devices.count)
    if devices.exclusivity == "Shared":
        share = DEFAULT_SHARE if devices.share is None else devices.share
        return Amount(GPU_SHARE, devices.count * math.ceil(round(share * _PER_GPU, 6)))
    return Amount(GPU, devices.count)


def capacity(mig_instances: Iterable[int]) -> dict[str, int]:
    """Return what a node has, given the number of MIG instances of each GPU.

    Unhealthy GPUs count too: a kubelet compares this number with the requests of the pods it runs, and the
    scheduler does not allocate unhealthy GPUs.
    """
    instances = list(mig_instances)
    whole = instances.count(0)
    return {GPU: whole, GPU_SHARE: whole * _PER_GPU, MIG_INSTANCE: sum(instances)}
