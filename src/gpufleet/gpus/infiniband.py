"""Monitor the InfiniBand and RoCE ports (rails) of this machine in sysfs.

A port that was never active is unused. A port that was active and went down degrades the machine until it is active
again; if fewer than a share of the ports are active, the machine is unhealthy. Which ports were active outlives the
process, because the agent publishes them.
"""

from collections.abc import Iterable
from pathlib import Path

from gpufleet.gpus.rules import Finding, Severity, finding
from gpufleet.gpus.xid import HealthRules

SYSFS = Path("/sys/class/infiniband")
_ACTIVE = "ACTIVE"


def read_ports(root: Path = SYSFS) -> dict[str, str]:
    """Return the state of each port by `device/port` (`mlx5_0/1`: `ACTIVE`, `DOWN`, …)."""
    states = {}
    for path in sorted(root.glob("*/ports/*/state")):
        try:
            states[f"{path.parts[-4]}/{path.parts[-2]}"] = path.read_text().partition(":")[2].strip()
        except OSError:  # the device was removed in the meantime
            continue
    return states


class PortMonitor:
    """Remember which ports were active; `least` is the percentage that must be."""

    def __init__(self, least: float = HealthRules.least_rails) -> None:
        self.used: set[str] = set()
        self._least = least

    def restore(self, ports: Iterable[str]) -> None:
        """Add ports that were active while an earlier agent ran."""
        self.used |= set(ports)

    def check(self, ports: dict[str, str]) -> Finding | None:
        """Return a finding if a used port is down, for `HealthTracker.set_node_finding`."""
        self.used |= {name for name, state in ports.items() if state == _ACTIVE}
        down = sorted(name for name in self.used if ports.get(name) != _ACTIVE)
        if not down:
            return None
        few = 100 * (len(self.used) - len(down)) < self._least * len(self.used)
        reason = f"{len(down)} of {len(self.used)} network ports are down: {', '.join(down)}"
        return finding("rails", reason, severity=Severity.UNHEALTHY if few else Severity.DEGRADED)
