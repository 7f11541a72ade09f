"""Count the GPUs that the containers of a pod request, and the share of each.

| scheme | requested by | share |
| --- | --- | --- |
| MIG | `nvidia.com/mig-2g.20gb` | its slices of the seven of a GPU |
| time slices, MPS | `nvidia.com/gpu` or `.shared` on a node with the label `nvidia.com/gpu.replicas` | one replica |
| HAMi | `nvidia.com/gpu` with `gpumem`, `gpumem-percentage`, `gpucores` | the larger of memory and cores |
| KAI, Run:ai | annotation `gpu-fraction` or `gpu-memory`, `gpu-fraction-num-devices` | the fraction |
| NvFractions of KAI 0.18, Run:ai 3 | `nvidia.com/container.NAME.gpu-memory.request` or `.limit`, the same number | its part of the memory |

KAI keeps a GPU for its fractions with a pod of its own, which requests the whole GPU. That pod does not count. With
NvFractions, KAI also names the GPUs of a pod before it binds the pod (`nvidia.com/container.NAME.gpus.devices`).
"""

import math
import re
from collections.abc import Mapping
from fractions import Fraction
from typing import NamedTuple

import msgspec

from gpufleet.kubernetes.annotations import KAI_FRACTION, KAI_MEMORY
from gpufleet.kubernetes.nv_fractions import number_of_gpus, nv_fraction
from gpufleet.kubernetes.objects import ObjectMeta, Pod
from gpufleet.kubernetes.quantities import parse_count, parse_quantity, pod_request

WHOLE = ("nvidia.com/gpu", "amd.com/gpu")
TIME_SLICED = "nvidia.com/gpu.shared"
INTEL = re.compile(r"gpu\.intel\.com/(i915|xe|gpu)")
MIG = re.compile(r"nvidia\.com/mig-(\d+)g\..+")
_PROFILE = re.compile(r"(\d+)g\.")
SLICES = 7
"""Compute slices of a GPU with MIG."""


HAMI_MEMORY = "nvidia.com/gpumem"
HAMI_MEMORY_PERCENT = "nvidia.com/gpumem-percentage"
HAMI_CORES = "nvidia.com/gpucores"
_HAMI_REGISTER = "hami.io/node-nvidia-register"

KAI_RESERVATIONS = ("kai-resource-reservation", "runai-reservation")
"""Namespaces of the pods with which KAI (before 0.6: Run:ai) keeps GPUs for fractions."""


class GpuRequest(NamedTuple):
    """The requested GPUs and the share of each."""

    gpus: int
    share: float


class Sharing(NamedTuple):
    """How a node shares its GPUs."""

    replicas: int = 1
    """Pods that share one GPU by time slices or MPS."""
    memory_mib: int = 0
    """Memory of one GPU; 0 if it is not known."""


def sharing_of(node: ObjectMeta) -> Sharing:
    """Return how a node shares its GPUs, from its labels and annotations."""
    registered = hami_gpus(node.annotations)
    memory = registered[0] if registered else parse_count(node.labels.get("nvidia.com/gpu.memory", ""))
    return Sharing(max(1, parse_count(node.labels.get("nvidia.com/gpu.replicas", ""))), memory)


def hami_gpus(annotations: Mapping[str, str]) -> tuple[int, ...]:
    """Return the memory in MiB of each GPU that HAMi's device plugin registers; empty without HAMi."""
    register = annotations.get(_HAMI_REGISTER, "")
    try:
        return tuple(each.devmem for each in _hami_devices.decode(register))
    except msgspec.MsgspecError:  # an older version: fields separated by commas, devices by colons
        devices = (each.split(",") for each in register.split(":") if each.count(",") >= 6)
        return tuple(parse_count(fields[2]) for fields in devices)


class _HamiDevice(msgspec.Struct, frozen=True):
    devmem: int


_hami_devices = msgspec.json.Decoder(tuple[_HamiDevice, ...])


def counted_request(pod: Pod, sharing: Sharing) -> GpuRequest:
    """Return the GPUs that count for a pod, with fractions of KAI."""
    if pod.metadata.namespace in KAI_RESERVATIONS:
        return GpuRequest(0, 1.0)
    notes = pod.metadata.annotations
    fraction = _number(notes.get(KAI_FRACTION, ""))
    if not fraction and (memory := parse_quantity(notes.get(KAI_MEMORY, ""))):
        fraction = memory / sharing.memory_mib if sharing.memory_mib else 1.0
    by_memory = nv_fraction(notes)
    if not fraction or gpu_request(pod).gpus or (by_memory and by_memory.memory_mib):
        return device_request(pod, sharing)
    return GpuRequest(number_of_gpus(notes), min(1.0, fraction))


def device_request(pod: Pod, sharing: Sharing = Sharing()) -> GpuRequest:  # noqa: B008  (immutable)
    """Return what a pod requests from device plugins, or else by NvFractions.

    KAI refuses a pod with both; elsewhere the annotations have no effect.
    """
    requested = gpu_request(pod, sharing)
    if requested.gpus or (fraction := nv_fraction(pod.metadata.annotations)) is None:
        return requested
    return GpuRequest(fraction.gpus, fraction.share(sharing.memory_mib))


def gpu_request(pod: Pod, sharing: Sharing = Sharing()) -> GpuRequest:  # noqa: B008  (immutable)
    """Return the request of all containers of a pod to the device plugins of a node."""
    whole, parts = Fraction(0), Fraction(0)
    names = _names(pod)
    for name in sorted(names):
        amount = Fraction(pod_request(pod, name))
        if mig := MIG.fullmatch(name):
            parts += amount * Fraction(int(mig[1]), SLICES)
        elif is_gpu(name):
            whole += amount
    hami = names & {HAMI_MEMORY, HAMI_MEMORY_PERCENT, HAMI_CORES}
    if hami and not whole and not parts:
        whole = Fraction(1)  # HAMi gives one GPU to a pod that names only memory or cores
    weight = whole + parts
    gpus = math.ceil(weight)
    if not gpus:
        return GpuRequest(0, 1.0)
    share = _hami_share(pod, sharing) if hami else 1.0
    return GpuRequest(gpus, float(weight / gpus) * share / sharing.replicas)


def _hami_share(pod: Pod, sharing: Sharing) -> float:
    """Return the larger of the shares of memory and of cores; a pod that names no memory gets all of it."""
    percent, memory = pod_request(pod, HAMI_MEMORY_PERCENT), pod_request(pod, HAMI_MEMORY)
    share = percent / 100 if percent else 1.0
    if memory and not percent and sharing.memory_mib:
        share = memory / sharing.memory_mib
    return min(1.0, max(share, pod_request(pod, HAMI_CORES) / 100))


def _number(text: str) -> float:
    """Return a positive decimal number; 0 for anything else."""
    try:
        found = float(text)
    except ValueError:
        return 0.0
    return found if math.isfinite(found) and found > 0 else 0.0


def profile_share(profile: str) -> float:
    """Return the share of a GPU that an instance of a MIG profile is; 1 if the profile is not known."""
    found = _PROFILE.match(profile)
    return min(1.0, int(found[1]) / SLICES) if found else 1.0


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
        if is_gpu(name) or name in (HAMI_MEMORY, HAMI_MEMORY_PERCENT, HAMI_CORES)
    }
