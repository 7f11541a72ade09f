"""Count the GPUs that the containers of a pod request.

MIG instances count by their share of the seven slices of a GPU.
"""

import math
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import NamedTuple

from gpufleet.kubernetes.objects import Pod
from gpufleet.kubernetes.quantities import parse_count, pod_request

WHOLE = ("nvidia.com/gpu", "amd.com/gpu")
TIME_SLICED = "nvidia.com/gpu.shared"
INTEL = re.compile(r"gpu\.intel\.com/(i915|xe|gpu)")
MIG = re.compile(r"nvidia\.com/mig-(\d+)g\..+")
SLICES = 7
"""Compute slices of a GPU with MIG."""


class GpuRequest(NamedTuple):
    """The requested GPUs and the share of each."""

    gpus: int
    share: float


class Sharing(NamedTuple):
    """How a node shares its GPUs."""

    replicas: int = 1
    """Pods that share one GPU by time slices or MPS."""


def sharing_of(labels: Mapping[str, str]) -> Sharing:
    """Return how a node shares its GPUs, from its labels."""
    return Sharing(max(1, parse_count(labels.get("nvidia.com/gpu.replicas", ""))))


def gpu_request(pod: Pod, sharing: Sharing = Sharing()) -> GpuRequest:  # noqa: B008  (immutable)
    """Return the request of all containers of a pod to the device plugins of a node."""
    whole, parts = Fraction(0), Fraction(0)
    for name in sorted(_names(pod)):
        amount = Fraction(pod_request(pod, name))
        if mig := MIG.fullmatch(name):
            parts += amount * Fraction(int(mig[1]), SLICES)
        else:
            whole += amount
    weight = whole + parts
    gpus = math.ceil(weight)
    return GpuRequest(gpus, float(weight / gpus) / sharing.replicas if gpus else 1.0)


def is_gpu(resource: str) -> bool:
    """Return whether a resource name stands for GPUs or slices of them."""
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
