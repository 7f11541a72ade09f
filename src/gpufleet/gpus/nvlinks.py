"""Compare the active NVLinks of each GPU with the number that it should have.

Bridges connect only some links of PCIe cards, so the number that NVML lists is not what a GPU must have. Expected are
the links that were active before, also according to an earlier agent, and on nodes with NVSwitches as many as on the
other GPUs of the model. GPUs in MIG mode can't use NVLink.
"""

from collections.abc import Mapping, Sequence

from gpufleet.gpus.rules import Finding, finding
from gpufleet.model.device import Device, LinkKind


class ExpectedLinks:
    """Remember how many links were active, by the UUID of the GPU."""

    def __init__(self, least: int = 0) -> None:
        """`least` is the number that every GPU must have; 0 if unknown."""
        self.most: dict[str, int] = {}
        self._least = least

    def restore(self, most: Mapping[str, int]) -> None:
        """Add what an earlier process remembered."""
        self.most |= {uuid: max(links, self.most.get(uuid, 0)) for uuid, links in most.items()}

    def check(self, devices: Sequence[Device]) -> dict[str, Finding]:
        """Return a finding for each GPU that has too few links."""
        usable = [device for device in devices if not device.fault and not device.mig_enabled]
        active = {device.uuid: _nvlinks(device) for device in usable}
        self.restore(active)
        on_switches: dict[str, int] = {}
        for device in usable:
            if any(link.to_switch for link in device.links):
                model = device.model or ""
                on_switches[model] = max(on_switches.get(model, 0), active[device.uuid])
        found = {}
        for device in usable:
            expected = max(self.most[device.uuid], on_switches.get(device.model or "", 0), self._least)
            if active[device.uuid] < expected:
                reason = f"{active[device.uuid]} of {expected} NVLinks are active"
                found[device.uuid] = finding("nvlink-down", reason)
        return found


def _nvlinks(device: Device) -> int:
    return sum(link.kind is LinkKind.NVLINK for link in device.links)
