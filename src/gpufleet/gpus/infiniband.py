"""Monitor the InfiniBand ports of this machine in sysfs.

A port that was never active is unused. A port that was active and went down disconnects the machine from
others, so it is a finding about the whole node until the port is active again.
"""

from pathlib import Path

from gpufleet.gpus.xid import Finding, Severity

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
    """Remember which ports were active."""

    def __init__(self) -> None:
        self._used: set[str] = set()

    def check(self, ports: dict[str, str]) -> Finding | None:
        """Return a finding if a used port is down, for `HealthTracker.set_node_finding`."""
        self._used |= {name for name, state in ports.items() if state == _ACTIVE}
        down = sorted(name for name in self._used if ports.get(name) != _ACTIVE)
        if not down:
            return None
        return Finding(
            "infiniband", Severity.UNHEALTHY, f"InfiniBand is down: {', '.join(down)}", whole_node=True
        )
