"""Normalise PCI addresses, and read the NUMA node of a device."""

import re
from pathlib import Path

_ADDRESS = re.compile(r"^(?:([0-9a-f]{1,8}):)?([0-9a-f]{1,2}):([0-9a-f]{1,2})(?:\.([0-7]))?$")


def bus_id(text: str | bytes) -> str | None:
    """Convert `00000000:3B:00.0`, `0000:3b:00` or `3b:00.0` to the form of sysfs, `0000:3b:00.0`."""
    plain = text.decode() if isinstance(text, bytes) else text
    match = _ADDRESS.match(plain.strip().lower())
    if match is None:
        return None
    domain, bus, device, function = match.groups()
    return f"{int(domain or '0', 16):04x}:{int(bus, 16):02x}:{int(device, 16):02x}.{function or '0'}"


def numa_node(address: str, root: Path = Path("/sys/bus/pci/devices")) -> int | None:
    """Return the NUMA node of a device; None if the kernel does not know it."""
    try:
        node = int((root / address / "numa_node").read_text())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None
