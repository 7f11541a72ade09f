"""Read what NVIDIA's fabric manager says of one GPU: whether it has joined the NVSwitches, and how its routes are."""

from collections.abc import Callable
from ctypes import byref
from typing import Any, NamedTuple

_STATES = {1: "not-started", 2: "in-progress", 3: "completed"}
_TRUE = 1


class Fabric(NamedTuple):
    """The state of a GPU in the fabric; None without NVSwitches, or with a driver before 535."""

    state: str | None = None
    problem: str | None = None


def read_fabric(nvml: Any, query: Callable[..., Any], handle: Any) -> Fabric:
    """Return the state of the GPU in the NVLink fabric."""
    info = nvml.c_nvmlGpuFabricInfo_v2_t()
    info.version = nvml.nvmlGpuFabricInfo_v2
    query(nvml.nvmlDeviceGetGpuFabricInfoV, handle, byref(info))
    state = _STATES.get(info.state & 0xFF)
    if state is None:
        return Fabric()
    if state == "completed" and info.status:
        return Fabric("failed", f"the fabric manager reports error {info.status}")
    return Fabric(state, ", ".join(_problems(nvml, info.healthMask)) or None)


def _problems(nvml: Any, mask: int) -> list[str]:
    bits = {
        "reduced bandwidth": nvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_DEGRADED_BW,
        "a route is being recovered": nvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_RECOVERY,
        "a route is unhealthy": nvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_ROUTE_UNHEALTHY,
        "access timeouts": nvml.NVML_GPU_FABRIC_HEALTH_MASK_SHIFT_ACCESS_TIMEOUT_RECOVERY,
    }
    return [text for text, shift in bits.items() if mask >> shift & 3 == _TRUE]
