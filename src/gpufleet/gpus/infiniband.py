"""InfiniBand ports of this machine, as sysfs tells them.

A port that was never up is a port that nobody uses. One that was up and is not any more cuts the
machine off from the others, so it is a finding about the whole node until the port is up again.
"""

from pathlib import Path

from gpufleet.gpus.xid import Finding, Severity

SYSFS = Path("/sys/class/infiniband")
_ACTIVE = "ACTIVE"


def read_ports(root: Path = SYSFS) -> dict[str, str]:
    """The state of each port by `device/port` (`mlx5_0/1`: `ACTIVE`, `DOWN`, …)."""
    states = {}
    for path in sorted(root.glob("*/ports/*/state")):
        try:
            states[f"{path.parts[-4]}/{path.parts[-2]}"] = path.read_text().partition(":")[2].strip()
        except OSError:  # the device went away between the two looks
            continue
    return states


class PortWatch:
    """Remembers which ports were up."""

    def __init__(self) -> None:
        self._were_up: set[str] = set()

    def look(self, ports: dict[str, str]) -> Finding | None:
        """What the present states mean for the node, for `HealthLedger.see_node`."""
        self._were_up |= {name for name, state in ports.items() if state == _ACTIVE}
        down = sorted(name for name in self._were_up if ports.get(name) != _ACTIVE)
        if not down:
            return None
        return Finding("infiniband", Severity.OUT, f"InfiniBand is down: {', '.join(down)}", whole_node=True)
