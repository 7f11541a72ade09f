"""Which GPUs a container has, by the first of these that says:

1. its label `gpufleet.gpus` (`all`, `0,1`, uuids), the operator's own word;
2. its device requests (`--gpus`, CDI): Count -1 is all; a number is the first so many, as the
   engine hands them out; ids are indices, uuids or CDI names;
3. the device files it was given: /dev/nvidia0; /dev/kfd with /dev/dri (all) or renderD129 (the second);
4. the variables that NVIDIA's and AMD's runtimes read, where such a runtime, or Podman, runs it.
   (Images of NVIDIA set NVIDIA_VISIBLE_DEVICES=all for everybody: elsewhere it means nothing.)

Containers don't exclude each other: those on one GPU share it in equal parts.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from gpufleet.model.node import FleetGpu
from gpufleet.sources.docker.engine import Container, DeviceRequest

LABEL = "gpufleet.gpus"
MOST_GPUS = 256
"""No machine has more; a label that says so is a slip."""

_NVIDIA_FILE = re.compile(r"/dev/nvidia(\d+)")
_RENDER_FILE = re.compile(r"/dev/dri/renderD(\d+)")
_FIRST_RENDER = 128
_NOTHING = {"", "none", "void", "no"}
_VARIABLES = {
    "nvidia": ("NVIDIA_VISIBLE_DEVICES",),
    "amd": ("AMD_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
}

VENDORS = frozenset(_VARIABLES)


class GpuClaimOfContainer(NamedTuple):
    """What a container says that it has: all GPUs, or those that it names."""

    names: tuple[str, ...] = ()
    """Indices and uuids."""
    everything: bool = False

    def __bool__(self) -> bool:
        return self.everything or bool(self.names)


class ContainerGpus(NamedTuple):
    """How many GPUs a container has, and which, as far as that is known."""

    gpus: int
    indices: tuple[int, ...]


def claim_of(container: Container, believed: Iterable[str]) -> GpuClaimOfContainer:
    """What the container has; `believed` are the vendors whose variables mean something here."""
    labels = container.config.labels or {}
    if LABEL in labels:
        return _named(labels[LABEL])
    host = container.host_config
    requested = _joined(_requested(request) for request in host.device_requests or () if _is_gpu(request))
    if requested:
        return requested
    variables = dict(entry.partition("=")[::2] for entry in container.config.env or () if "=" in entry)
    files = [device.path_on_host for device in host.devices or ()]
    if any(path == "/dev/kfd" for path in files):
        return _variable(variables, "amd") or _amd_files(files)
    nvidia = [match[1] for path in files if (match := _NVIDIA_FILE.fullmatch(path))]
    if nvidia:
        return GpuClaimOfContainer(tuple(nvidia))
    vendors = {*believed} | ({host.runtime} if host.runtime in _VARIABLES else set())
    return next(
        (claim for vendor in sorted(vendors) if (claim := _variable(variables, vendor))),
        GpuClaimOfContainer(),
    )


def holding(claim: GpuClaimOfContainer, gpus: Sequence[FleetGpu]) -> ContainerGpus:
    """The GPUs of the machine that are meant. A name that fits none still counts as one GPU."""
    if claim.everything:
        return ContainerGpus(max(1, len(gpus)), tuple(gpu.index for gpu in gpus))
    found: set[int] = set()
    strange = 0
    for name in claim.names:
        if (number := _number(name)) is not None:
            found.add(number)
        elif (index := _by_uuid(name, gpus)) is not None:
            found.add(index)
        else:
            strange += 1
    return ContainerGpus(len(found) + strange, tuple(sorted(found)))


def highest(claims: Iterable[GpuClaimOfContainer]) -> int:
    """How many GPUs the machine must have at least, by what its containers name."""
    least = 0
    for claim in claims:
        numbers = [number + 1 for name in claim.names if (number := _number(name)) is not None]
        least = max(least, *numbers, min(len(set(claim.names)), MOST_GPUS), int(claim.everything))
    return least


def _number(name: str) -> int | None:
    """The index that a name stands for (`1`, or `1:0` for a MIG device of GPU 1), if it is one."""
    number = name.partition(":")[0]
    return int(number) if number.isdecimal() and len(number) < 4 and int(number) < MOST_GPUS else None


def _is_gpu(request: DeviceRequest) -> bool:
    words = {word for group in request.capabilities or () for word in group}
    ids = request.device_ids or ()
    return "gpu" in words or request.driver == "nvidia" or any("/gpu=" in name for name in ids)


def _requested(request: DeviceRequest) -> GpuClaimOfContainer:
    if request.device_ids:
        return _named(",".join(request.device_ids))
    count = min(request.count or 0, MOST_GPUS)
    return (
        GpuClaimOfContainer(everything=True)
        if count < 0
        else GpuClaimOfContainer(tuple(map(str, range(count))))
    )


def _named(text: str) -> GpuClaimOfContainer:
    """`all`, or a list of indices, uuids and CDI names."""
    names = [word.strip().rpartition("/gpu=")[2] for word in text.split(",")]
    names = [name for name in names if name.lower() not in _NOTHING]
    return GpuClaimOfContainer(everything=True) if "all" in names else GpuClaimOfContainer(tuple(names))


def _variable(variables: Mapping[str, str], vendor: str) -> GpuClaimOfContainer:
    return next(
        (_named(variables[name]) for name in _VARIABLES[vendor] if name in variables), GpuClaimOfContainer()
    )


def _amd_files(files: list[str]) -> GpuClaimOfContainer:
    cards = sorted(int(match[1]) - _FIRST_RENDER for path in files if (match := _RENDER_FILE.fullmatch(path)))
    if cards:
        return GpuClaimOfContainer(tuple(map(str, cards)))
    return GpuClaimOfContainer(everything="/dev/dri" in files)


def _joined(claims: Iterable[GpuClaimOfContainer]) -> GpuClaimOfContainer:
    all_of_them = list(claims)
    names = tuple(dict.fromkeys(name for claim in all_of_them for name in claim.names))
    return GpuClaimOfContainer(names, any(claim.everything for claim in all_of_them))


def _by_uuid(name: str, gpus: Sequence[FleetGpu]) -> int | None:
    found = [gpu.index for gpu in gpus if gpu.uuid and gpu.uuid.startswith(name)]
    return found[0] if len(found) == 1 else None
