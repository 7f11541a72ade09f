"""The scheduler's leases of GPUs, gathered by node.

A lease is named `gpu-{node}-{id}` and names the uids of its holders, separated by commas. Where the
node's name had to be cut an annotation has the whole of it.
"""

from collections.abc import Sequence

from gpufleet.fleet.state import Fleet
from gpufleet.kubernetes import CacheChange
from gpufleet.kubernetes.leases import read_lease
from gpufleet.kubernetes.objects import Lease


class LeasesByNode:
    """Who holds which GPU of each node by lease."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._nodes: dict[str, dict[int, tuple[str, ...]]] = {}

    def on_leases(self, changes: Sequence[CacheChange[Lease]]) -> None:
        """Take over changes and tell the fleet of each node that they touch."""
        touched = set()
        for change in changes:
            lease = read_lease(change.object)
            if lease is None:
                continue
            touched.add(lease.node)
            holders = holders_of(change.after)
            if holders:
                self._nodes.setdefault(lease.node, {})[lease.gpu] = holders
            else:
                self._nodes.get(lease.node, {}).pop(lease.gpu, None)
        for node in touched:
            held = self._nodes.get(node)
            self._fleet.put_leases(node, dict(held or {}))
            if not held:
                self._nodes.pop(node, None)


def holders_of(lease: Lease | None) -> tuple[str, ...]:
    """The uids that a lease names."""
    if lease is None or not lease.spec.holder_identity:
        return ()
    return tuple(uid for uid in lease.spec.holder_identity.split(",") if uid)
