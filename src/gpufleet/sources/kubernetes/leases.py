"""The scheduler's leases of GPUs, gathered by node.

A lease is named `gpu-{node}-{id}` and names the uids of its holders, separated by commas.
"""

import re
from collections.abc import Sequence

from gpufleet.fleet.picture import Fleet
from gpufleet.kube import Change
from gpufleet.model.kube_objects import Lease

_NAME = re.compile(r"gpu-(?P<node>.+)-(?P<gpu>\d{1,2})")


class LeaseBook:
    """Who holds which GPU of each node by lease."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._nodes: dict[str, dict[int, tuple[str, ...]]] = {}

    def on_leases(self, changes: Sequence[Change[Lease]]) -> None:
        """Take over changes and tell the fleet of each node that they touch."""
        touched = set()
        for change in changes:
            named = _NAME.fullmatch(change.object.metadata.name)
            if named is None:
                continue
            node, gpu = named["node"], int(named["gpu"])
            touched.add(node)
            holders = holders_of(change.after)
            if holders:
                self._nodes.setdefault(node, {})[gpu] = holders
            else:
                self._nodes.get(node, {}).pop(gpu, None)
        for node in touched:
            self._fleet.put_leases(node, dict(self._nodes.get(node, {})))


def holders_of(lease: Lease | None) -> tuple[str, ...]:
    """The uids that a lease names."""
    if lease is None or not lease.spec.holder_identity:
        return ()
    return tuple(uid for uid in lease.spec.holder_identity.split(",") if uid)
