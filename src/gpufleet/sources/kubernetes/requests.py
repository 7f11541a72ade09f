"""How many GPUs a pod asks for, by its containers' requests.

Whole GPUs are counted as they are; MIG instances by their share of the GPU's seven slices.
"""

import math
import re
from fractions import Fraction
from typing import NamedTuple

from gpufleet.kubernetes.objects import Pod
from gpufleet.kubernetes.quantities import pod_request

WHOLE = ("nvidia.com/gpu", "amd.com/gpu")
TIME_SLICED = "nvidia.com/gpu.shared"
INTEL = re.compile(r"gpu\.intel\.com/(i915|xe|gpu)")
MIG = re.compile(r"nvidia\.com/mig-(\d+)g\..+")
SLICES = 7
"""Compute slices of a GPU that MIG cuts."""


class GpuRequest(NamedTuple):
    """GPUs asked for, and how much of each."""

    gpus: int
    share: float


def gpu_request(pod: Pod) -> GpuRequest:
    """What the pod's containers ask for together."""
    whole, parts = Fraction(0), Fraction(0)
    for name in sorted(_names(pod)):
        amount = Fraction(pod_request(pod, name))
        if mig := MIG.fullmatch(name):
            parts += amount * Fraction(int(mig[1]), SLICES)
        else:
            whole += amount
    weight = whole + parts
    gpus = math.ceil(weight)
    return GpuRequest(gpus, float(weight / gpus) if gpus else 1.0)


def is_gpu(resource: str) -> bool:
    """Whether a resource name stands for GPUs or parts of them."""
    return (
        resource in WHOLE
        or resource == TIME_SLICED
        or INTEL.fullmatch(resource) is not None
        or MIG.fullmatch(resource) is not None
    )


def _names(pod: Pod) -> set[str]:
    containers = (*pod.spec.containers, *pod.spec.init_containers)
    return {
        name
        for container in containers
        for name in (*container.resources.limits, *container.resources.requests)
        if is_gpu(name)
    }
