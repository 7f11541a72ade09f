"""Which GPUs of a machine can talk to each other without crossing PCIe, and how fast.

GPUs joined by links form an island; every GPU with a link to a switch is on the one island of that
fabric. The bandwidth of a GPU is that of all its links together, both directions, in GB/s, as vendors
quote it: 300 for a V100, 600 for an A100, 900 for an H100, 1800 for a B200, 896 for an MI300X.

    NVML's version     1      2 to 6              7 and 8
    NVLink             1.0    2.0, 2.2 … 4.0      5.0, 6.0
    GB/s for a link    40     50                  100

XGMI links say their own rate. Islands are numbered by their first GPU (`nvlink-group-0`,
`xgmi-group-0`), so the same machine always gets the same names. Three sorts of GPU are each an
island of their own, named by PCI address, with bandwidth 0: those without links, those whose links
all end at something that is not on this machine's list, and those in MIG mode, which can't use theirs.
A lost GPU stays on its island with bandwidth 0, so that its neighbours keep their island's name.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from gpufleet.model.device import Device, Link, LinkKind

_NVLINK_GBPS = {1: 40.0, 2: 50.0, 3: 50.0, 4: 50.0, 5: 50.0, 6: 50.0, 7: 100.0, 8: 100.0}
_SLOWEST = 40.0
"""For a link that does not tell its generation: better too little promised than too much."""


@dataclass(frozen=True, slots=True)
class GpuPosition:
    """Where a GPU stands in the fabric."""

    island: str
    bandwidth_gbps: int


def places(devices: Iterable[Device]) -> dict[str, GpuPosition]:
    """The island and bandwidth of every GPU, by uuid."""
    machine = sorted(devices, key=lambda device: device.index)
    listed = {device.pci_bus_id for device in machine if device.pci_bus_id and not device.mig_enabled}
    useful = {device.uuid: _useful_links(device, listed) for device in machine}
    groups = _join(machine, useful)
    names: dict[str, str] = {}
    counts = dict.fromkeys(LinkKind, 0)
    found: dict[str, GpuPosition] = {}
    for device in machine:
        links = useful[device.uuid]
        if not links:
            found[device.uuid] = GpuPosition(f"pcie-{device.pci_bus_id or device.uuid}", 0)
            continue
        root, kind = groups[device.uuid], links[0].kind
        if root not in names:
            names[root] = f"{kind}-group-{counts[kind]}"
            counts[kind] += 1
        speed = 0 if device.fault else round(sum(map(link_gbps, links)))
        found[device.uuid] = GpuPosition(names[root], speed)
    return found


def link_gbps(link: Link) -> float:
    """What one link carries in both directions together."""
    if link.bandwidth_gbps is not None:
        return link.bandwidth_gbps
    if link.version is None:
        return _SLOWEST
    return _NVLINK_GBPS.get(link.version, _NVLINK_GBPS[max(_NVLINK_GBPS)])


def _useful_links(device: Device, listed: set[str]) -> tuple[Link, ...]:
    if device.mig_enabled:
        return ()
    return tuple(link for link in device.links if link.to_switch or link.peer in listed)


def _join(machine: list[Device], links: dict[str, tuple[Link, ...]]) -> dict[str, str]:
    """For each GPU the name of its group: the smallest set closed under links and switches."""
    parent: dict[str, str] = {}

    def root(node: str) -> str:
        while parent.setdefault(node, node) != node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    by_address = {device.pci_bus_id: device.uuid for device in machine if device.pci_bus_id}
    for device in machine:
        for link in links[device.uuid]:
            end = f"switch of {link.kind}" if link.to_switch else by_address[link.peer or ""]
            parent[root(end)] = root(device.uuid)
    return {device.uuid: root(device.uuid) for device in machine}
