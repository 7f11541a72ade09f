"""Who has GPUs in the inventory: pods by node, and units of the queue with reservations."""

from dataclasses import dataclass

from gpufleet.placement.verdict import Fits


@dataclass(frozen=True, slots=True)
class Hold:
    """GPUs chosen for a pod but not leased yet; `until` is a monotonic time."""

    fits: Fits
    until: float
    gang: str = ""
    pinned: bool = False
    """Whether the GPUs are being written to a ResourceClaim: they stay held until the outcome is known."""


def holder_key(uid: str, node: str) -> str:
    """Return the inventory key of a pod's GPUs on one node; a pod may have two nodes while an attempt is undone."""
    return f"{uid}@{node}"


def uid_of(holder: str) -> str:
    """Return the pod's UID in an inventory key."""
    return holder.rpartition("@")[0]


def reservation_key(unit: str, at: int) -> str:
    """Return the inventory key of one place of a reservation; no pod has an empty node."""
    return f"{unit}#{at}@"


def unit_of(holder: str) -> str:
    """Return the unit in the inventory key of a reservation; an empty string for a pod's."""
    unit, _, at = holder.rpartition("#")
    return unit if at.endswith("@") else ""


def is_reservation(holder: str) -> bool:
    """Return whether an inventory key is that of a reservation."""
    return holder.endswith("@")
