"""Which GPUs of a machine are connected without PCIe, and how fast.

GPUs connected by links form an island; all GPUs with a link to a switch are on the island of that fabric.
The bandwidth of a GPU is the sum of its links in both directions in GB/s, as vendors quote it: 300 for a
V100, 600 for an A100, 900 for an H100, 1800 for a B200, 896 for an MI300X.

    NVML version       1      2 to 6              7 and 8
    NVLink             1.0    2.0, 2.2 … 4.0      5.0, 6.0
    GB/s per link      40     50                  100

XGMI links report their own rate. Islands are numbered by their first GPU (`nvlink-group-0`,
`xgmi-group-0`), so a machine always gets the same names. A GPU is an island of its own, named by its PCI
address and with bandwidth 0, if it has no links, if all its links end outside of this machine, or in MIG
mode, which disables links. A lost GPU stays on its island with bandwidth 0, so that the island keeps its
name.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from gpufleet.model.device import Device, Link, LinkKind

_NVLINK_GBPS = {1: 40.0, 2: 50.0, 3: 50.0, 4: 50.0, 5: 50.0, 6: 50.0, 7: 100.0, 8: 100.0}
_SLOWEST = 40.0
"""For a link of unknown version: a low estimate is safer than a high one."""


@dataclass(frozen=True, slots=True)
class GpuPosition:
    """The island and bandwidth of a GPU."""

    island: str
    bandwidth_gbps: int


def gpu_positions(devices: Iterable[Device]) -> dict[str, GpuPosition]:
    """Return the island and bandwidth of every GPU by uuid."""
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
        bandwidth = 0 if device.fault else round(sum(map(link_gbps, links)))
        found[device.uuid] = GpuPosition(names[root], bandwidth)
    return found


def link_gbps(link: Link) -> float:
    """Return the bandwidth of a link, both directions together."""
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
    """Return the group of each GPU: the connected components over links and switches."""
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
