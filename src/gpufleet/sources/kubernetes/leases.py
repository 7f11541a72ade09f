"""Group the scheduler's GPU leases by node."""

from collections.abc import Mapping, Sequence

from gpufleet.fleet.state import Fleet
from gpufleet.kubernetes import CacheChange
from gpufleet.kubernetes.leases import LeaseHolder, read_lease
from gpufleet.kubernetes.objects import Lease


class LeasesByNode:
    """The lease holders of each GPU, by node."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._nodes: dict[str, dict[int, Mapping[str, LeaseHolder]]] = {}

    def on_leases(self, changes: Sequence[CacheChange[Lease]]) -> list[LeaseHolder]:
        """Apply changes, update each affected node in the fleet and return the holders in the changed leases."""
        affected: set[str] = set()
        named: list[LeaseHolder] = []
        for change in changes:
            lease = read_lease(change.object)
            if lease is None:
                continue
            affected.add(lease.node)
            named += lease.holders.values()
            if change.after is not None and change.after.spec.holder_identity:
                self._nodes.setdefault(lease.node, {})[lease.gpu] = lease.holders
            else:
                self._nodes.get(lease.node, {}).pop(lease.gpu, None)
        for node in affected:
            held = self._nodes.get(node)
            self._fleet.put_leases(node, {gpu: tuple(holders) for gpu, holders in (held or {}).items()})
            if not held:
                self._nodes.pop(node, None)
        return named

    def of_node(self, node: str) -> list[LeaseHolder]:
        """Return the holders in the leases of a node."""
        return [holder for holders in self._nodes.get(node, {}).values() for holder in holders.values()]

    def of_pod(self, uid: str, node: str) -> dict[int, LeaseHolder]:
        """Return the entry of a pod in the lease of each GPU of a node."""
        leases = self._nodes.get(node, {})
        return {gpu: holders[uid] for gpu, holders in leases.items() if uid in holders}
