"""Group the scheduler's GPU leases by node."""

from collections.abc import Sequence

from gpufleet.fleet.state import Fleet
from gpufleet.kubernetes import CacheChange
from gpufleet.kubernetes.leases import read_lease
from gpufleet.kubernetes.objects import Lease


class LeasesByNode:
    """The lease holders of each GPU, by node."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._nodes: dict[str, dict[int, tuple[str, ...]]] = {}

    def on_leases(self, changes: Sequence[CacheChange[Lease]]) -> None:
        """Apply changes and update each affected node in the fleet."""
        affected = set()
        for change in changes:
            lease = read_lease(change.object)
            if lease is None:
                continue
            affected.add(lease.node)
            holders = holders_of(change.after)
            if holders:
                self._nodes.setdefault(lease.node, {})[lease.gpu] = holders
            else:
                self._nodes.get(lease.node, {}).pop(lease.gpu, None)
        for node in affected:
            held = self._nodes.get(node)
            self._fleet.put_leases(node, dict(held or {}))
            if not held:
                self._nodes.pop(node, None)


def holders_of(lease: Lease | None) -> tuple[str, ...]:
    """Return the pod uids in a lease."""
    if lease is None or not lease.spec.holder_identity:
        return ()
    return tuple(uid for uid in lease.spec.holder_identity.split(",") if uid)
