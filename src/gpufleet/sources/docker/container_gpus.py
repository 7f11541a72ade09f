"""Determine the GPUs of a container from the first of these that is present:

1. its label `gpufleet.gpus` (`all`, `0,1`, uuids), set by the operator;
2. its device requests (`--gpus`, CDI): Count -1 means all, another count means the first ones, as the
   engine assigns them; ids are indices, uuids or CDI names;
3. its device files: /dev/nvidia0; /dev/kfd with /dev/dri (all) or renderD129 (the second);
4. the environment variables of NVIDIA's and AMD's runtimes, if such a runtime or Podman runs the container.
   (NVIDIA's images always set NVIDIA_VISIBLE_DEVICES=all, so it means nothing with other runtimes.)

Containers do not exclude each other: those on one GPU share it in equal parts.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from gpufleet.model.node import FleetGpu
from gpufleet.sources.docker.engine import Container, DeviceRequest

LABEL = "gpufleet.gpus"
MAX_GPUS = 256
"""Larger indices and counts are mistakes."""

_NVIDIA_FILE = re.compile(r"/dev/nvidia(\d+)")
_RENDER_FILE = re.compile(r"/dev/dri/renderD(\d+)")
_FIRST_RENDER = 128
_NOTHING = {"", "none", "void", "no"}
_VARIABLES = {
    "nvidia": ("NVIDIA_VISIBLE_DEVICES",),
    "amd": ("AMD_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES"),
}

VENDORS = frozenset(_VARIABLES)


class GpuSelection(NamedTuple):
    """The GPUs that a container selects: all, or those with these names."""

    names: tuple[str, ...] = ()
    """Indices and uuids."""
    all: bool = False

    def __bool__(self) -> bool:
        return self.all or bool(self.names)


class ContainerGpus(NamedTuple):
    """The number of GPUs of a container, and their indices as far as they are known."""

    gpus: int
    indices: tuple[int, ...]


def gpu_selection(container: Container, vendors: Iterable[str]) -> GpuSelection:
    """Return the GPUs that the container selects; environment variables count only for `vendors`."""
    labels = container.config.labels or {}
    if LABEL in labels:
        return _named(labels[LABEL])
    host = container.host_config
    requested = _union([_requested(request) for request in host.device_requests or () if _is_gpu(request)])
    if requested:
        return requested
    variables = dict(entry.partition("=")[::2] for entry in container.config.env or () if "=" in entry)
    files = [device.path_on_host for device in host.devices or ()]
    if any(path == "/dev/kfd" for path in files):
        return _variable(variables, "amd") or _amd_files(files)
    nvidia = [match[1] for path in files if (match := _NVIDIA_FILE.fullmatch(path))]
    if nvidia:
        return GpuSelection(tuple(nvidia))
    active = {*vendors} | ({host.runtime} if host.runtime in _VARIABLES else set())
    return next(
        (found for vendor in sorted(active) if (found := _variable(variables, vendor))),
        GpuSelection(),
    )


def resolve(selection: GpuSelection, gpus: Sequence[FleetGpu]) -> ContainerGpus:
    """Return the selected GPUs of the machine. An unknown name still counts as one GPU."""
    if selection.all:
        return ContainerGpus(max(1, len(gpus)), tuple(gpu.index for gpu in gpus))
    found: set[int] = set()
    unknown = 0
    for name in selection.names:
        if (number := _number(name)) is not None:
            found.add(number)
        elif (index := _by_uuid(name, gpus)) is not None:
            found.add(index)
        else:
            unknown += 1
    return ContainerGpus(len(found) + unknown, tuple(sorted(found)))


def min_gpu_count(selections: Iterable[GpuSelection]) -> int:
    """Return how many GPUs the machine must have at least, judging by the selections of its containers."""
    count = 0
    for selection in selections:
        numbers = [number + 1 for name in selection.names if (number := _number(name)) is not None]
        count = max(count, *numbers, min(len(set(selection.names)), MAX_GPUS), int(selection.all))
    return count


def _number(name: str) -> int | None:
    """Return the index in a name (`1`, or `1:0` for a MIG device of GPU 1); None if it is none."""
    number = name.partition(":")[0]
    return int(number) if number.isdecimal() and len(number) < 4 and int(number) < MAX_GPUS else None


def _is_gpu(request: DeviceRequest) -> bool:
    words = {word for group in request.capabilities or () for word in group}
    ids = request.device_ids or ()
    return "gpu" in words or request.driver == "nvidia" or any("/gpu=" in name for name in ids)


def _requested(request: DeviceRequest) -> GpuSelection:
    if request.device_ids:
        return _named(",".join(request.device_ids))
    count = min(request.count or 0, MAX_GPUS)
    return GpuSelection(all=True) if count < 0 else GpuSelection(tuple(map(str, range(count))))


def _named(text: str) -> GpuSelection:
    """Parse `all`, or a list of indices, uuids and CDI names."""
    names = [word.strip().rpartition("/gpu=")[2] for word in text.split(",")]
    names = [name for name in names if name.lower() not in _NOTHING]
    return GpuSelection(all=True) if "all" in names else GpuSelection(tuple(names))


def _variable(variables: Mapping[str, str], vendor: str) -> GpuSelection:
    return next((_named(variables[name]) for name in _VARIABLES[vendor] if name in variables), GpuSelection())


def _amd_files(files: list[str]) -> GpuSelection:
    cards = sorted(int(match[1]) - _FIRST_RENDER for path in files if (match := _RENDER_FILE.fullmatch(path)))
    if cards:
        return GpuSelection(tuple(map(str, cards)))
    return GpuSelection(all="/dev/dri" in files)


def _union(selections: Sequence[GpuSelection]) -> GpuSelection:
    names = tuple(dict.fromkeys(name for selection in selections for name in selection.names))
    return GpuSelection(names, any(selection.all for selection in selections))


def _by_uuid(name: str, gpus: Sequence[FleetGpu]) -> int | None:
    found = [gpu.index for gpu in gpus if gpu.uuid and gpu.uuid.startswith(name)]
    return found[0] if len(found) == 1 else None
