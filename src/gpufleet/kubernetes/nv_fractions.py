"""Read the annotations of NvFractions, with which KAI 0.18 and Run:ai 3 share GPUs by memory.

| annotation | says |
| --- | --- |
| `nvidia.com/container.NAME.gpu-memory.request` | memory of each GPU; without it, the limit |
| `nvidia.com/container.NAME.gpu-memory.limit` | memory of each GPU that the container may use at most |
| `gpu-fraction-num-devices` | number of GPUs, 1 by default |
| `nvidia.com/container.NAME.gpus.devices` | UUIDs or ids of the GPUs, written by KAI before it binds the pod |
"""

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from gpufleet.kubernetes.annotations import KAI_DEVICES, NV_FRACTION
from gpufleet.kubernetes.crds.gpu_claim import MOST_GPUS
from gpufleet.kubernetes.crds.gpu_node_status import DeviceStatus
from gpufleet.kubernetes.quantities import parse_count, parse_quantity

_DEVICES = "gpus.devices"
_LONGEST = 4096
"""Characters of a value that is read: the UUIDs of 64 GPUs have about 2,600."""


class NvFraction(NamedTuple):
    """What a pod requests of each of its GPUs, and which GPUs it has, as far as known."""

    gpus: int
    memory_mib: float
    """0 if only the GPUs are known."""
    devices: frozenset[str]

    def share(self, memory_mib: int) -> float:
        """Return the part of a GPU with this memory, rounded up to a thousandth; 1 if either is not known."""
        share = self.memory_mib / memory_mib if self.memory_mib and memory_mib else 1.0
        return min(1.0, math.ceil(share * 1000 - 1e-6) / 1000)

    def ids(self, devices: Iterable[DeviceStatus]) -> frozenset[int]:
        """Return the ids of the pod's GPUs, given the GPUs of its node."""
        return frozenset(
            each.id for each in devices if each.uuid in self.devices or str(each.id) in self.devices
        )


def nv_fraction(annotations: Mapping[str, str]) -> NvFraction | None:
    """Return the fraction of a pod; None for pods without NvFractions."""
    memory: dict[str, float] = {}
    devices: set[str] = set()
    for key, value in sorted(relevant(annotations).items()):
        match = NV_FRACTION.fullmatch(key)
        if match is None:
            continue
        if match[2] == _DEVICES:
            devices.update(filter(None, map(str.strip, value.split(","))))
        elif amount := parse_quantity(value):
            memory[match[1]] = amount  # the request comes after the limit
    if not memory and not devices:
        return None
    gpus = max(number_of_gpus(annotations), min(MOST_GPUS, len(devices)))
    return NvFraction(gpus, sum(memory.values()) / 2**20, frozenset(devices))


def relevant(annotations: Mapping[str, str]) -> dict[str, str]:
    """Return the annotations that are read, if the pod has NvFractions."""
    found = {
        key: value
        for key, value in annotations.items()
        if len(value) <= _LONGEST and NV_FRACTION.fullmatch(key)
    }
    number = annotations.get(KAI_DEVICES, "")
    return {**found, KAI_DEVICES: number[:_LONGEST]} if found and number else found


def number_of_gpus(annotations: Mapping[str, str]) -> int:
    """Return of how many GPUs KAI gives a pod a fraction."""
    return min(MOST_GPUS, max(1, parse_count(annotations.get(KAI_DEVICES, ""))))
