"""Read the NVLinks of one GPU: which are active, their version, and the device at the other end."""

from collections.abc import Callable
from typing import Any

from gpufleet.gpus import pci
from gpufleet.model.device import Link, LinkKind


def read_links(nvml: Any, query: Callable[..., Any], handle: Any) -> tuple[Link, ...]:
    """Return the active links by number; none if the GPU has no NVLink."""
    return tuple(_link(nvml, query, handle, number) for number in active_links(nvml, query, handle))


def active_links(nvml: Any, query: Callable[..., Any], handle: Any) -> list[int]:
    """Return the numbers of the active links."""
    active = []
    for number in range(nvml.NVML_NVLINK_MAX_LINKS):
        state = query(nvml.nvmlDeviceGetNvLinkState, handle, number)
        if state is None:  # past the last link, or no NVLink at all
            break
        if state:
            active.append(number)
    return active


def _link(nvml: Any, query: Callable[..., Any], handle: Any, number: int) -> Link:
    kind = query(nvml.nvmlDeviceGetNvLinkRemoteDeviceType, handle, number)
    to_switch = kind == nvml.NVML_NVLINK_DEVICE_TYPE_SWITCH
    remote = None if to_switch else query(nvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, number)
    return Link(
        kind=LinkKind.NVLINK,
        peer=pci.bus_id(remote.busId) if remote else None,
        to_switch=to_switch,
        version=query(nvml.nvmlDeviceGetNvLinkVersion, handle, number),
    )
