"""Index the leases of GPUs by name and by the pods that hold them."""

from collections.abc import Iterator

from gpufleet.kubernetes.leases import GpuLease, LeaseHolder, read_lease
from gpufleet.kubernetes.objects import Lease
from gpufleet.scheduler.state.versions import Tombstones, is_stale


class LeaseIndex:
    """The leases of GPUs; `put` and `drop` return the (pod, node) pairs whose GPUs may have changed."""

    def __init__(self) -> None:
        self.by_name: dict[str, GpuLease] = {}
        self.foreign: set[str] = set()
        """Names of the leases made by hand or by another program."""
        self._by_pod: dict[str, dict[str, dict[int, LeaseHolder]]] = {}
        self._deleted = Tombstones()

    def put(self, lease: Lease) -> tuple[GpuLease, list[tuple[str, str]]] | None:
        """Store a lease; return None if it is known, older than the known one, deleted, or not of a GPU."""
        known = self.by_name.get(lease.metadata.name)
        if known is not None and is_stale(lease, known.object):
            return None
        parsed = read_lease(lease)
        if parsed is None or self._deleted.has(parsed.name, lease.metadata.uid):
            return None
        before = self._remove_holders(known)
        self.by_name[parsed.name] = parsed
        if parsed.foreign:
            self.foreign.add(parsed.name)
        for uid, holder in parsed.holders.items():
            self._by_pod.setdefault(uid, {}).setdefault(parsed.node, {})[parsed.gpu] = holder
        return parsed, list(dict.fromkeys((*before, *((uid, parsed.node) for uid in parsed.holders))))

    def drop(self, name: str, uid: str = "") -> tuple[GpuLease, list[tuple[str, str]]] | None:
        """Remove a lease, only the one with this `uid` if given; return None if it is not known."""
        known = self.by_name.get(name)
        if uid:
            self._deleted.add(name, uid)
        if known is None or (uid and known.object.metadata.uid != uid):
            return None
        del self.by_name[name]
        return known, self._remove_holders(known)

    def of_pod(self, uid: str) -> dict[str, dict[int, LeaseHolder]]:
        """Return the pod's lease entries by node and GPU id."""
        return self._by_pod.get(uid, {})

    def pods(self) -> Iterator[str]:
        """Return the UIDs of all pods with leases."""
        return iter(list(self._by_pod))

    def _remove_holders(self, lease: GpuLease | None) -> list[tuple[str, str]]:
        """Remove a lease from its holders; return the (pod, node) pairs to sync."""
        if lease is None:
            return []
        self.foreign.discard(lease.name)
        for uid in lease.holders:
            nodes = self._by_pod.get(uid, {})
            nodes.get(lease.node, {}).pop(lease.gpu, None)
            if not nodes.get(lease.node):
                nodes.pop(lease.node, None)
            if not nodes:
                self._by_pod.pop(uid, None)
        return [(uid, lease.node) for uid in lease.holders]
