"""Find the GPUs that become free first for requests that do not fit now.

Each node gives up its holders in the order of their expected ends, until a request fits. Nodes on
which that happens first are taken first. A holder without an expected end stays: nothing is gained
by waiting for it.
"""

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from gpufleet.placement.allocation import Allocation
from gpufleet.placement.inventory import Inventory
from gpufleet.placement.lone_node import LoneNode
from gpufleet.placement.request import Request
from gpufleet.placement.verdict import Fits

MOST_NODES = 1_000
"""Nodes that are compared, those with the most free GPUs first."""

Ends = Callable[[str], float | None]
"""Returns when a holder is expected to end; None if that can't be expected."""

HasRoom = Callable[[str, int, Collection[str]], bool]
"""Returns whether a node has room for a member, besides GPUs, when these holders have left."""


@dataclass(frozen=True)
class Earliest:
    """Where each request will fit, in their order, and when the last of these GPUs is expected to be free."""

    places: tuple[Fits, ...]
    ready_at: float


def earliest(
    inventory: Inventory,
    requests: Sequence[Request],
    eligible_nodes: Sequence[frozenset[str]],
    ends: Ends,
    has_room: HasRoom,
) -> Earliest | None:
    """Return the GPUs that will be free first for all requests together; None if waiting does not help."""
    found: list[Fits] = []
    drained: dict[str, _DrainedNode] = {}
    ranked: dict[tuple[Request, frozenset[str]], list[str]] = {}
    ready_at = 0.0
    for at, (request, eligible) in enumerate(zip(requests, eligible_nodes, strict=True)):
        nodes = ranked.get((request, eligible))
        if nodes is None:
            nodes = ranked[request, eligible] = _by_wait(inventory, request, eligible, ends)
        while nodes:
            name = nodes[-1]
            node = drained.get(name) or _DrainedNode(inventory, name, ends)
            drained[name] = node
            fits = node.take(request, at, has_room)
            if fits is not None:
                found.append(fits)
                ready_at = max(ready_at, node.ready_at)
                break
            nodes.pop()
        else:
            return None
    return Earliest(tuple(found), ready_at)


def _by_wait(inventory: Inventory, request: Request, eligible: Iterable[str], ends: Ends) -> list[str]:
    """Return the nodes on which the request may fit some day, the longest wait first."""
    index = inventory.index()
    places, _ = index.places(frozenset(eligible))
    places = places[index.matching(request.match_labels)[places]]
    if len(places) > MOST_NODES:
        free = inventory.states.nodes(index.state[places]).free.sum(axis=1)
        places = places[np.argsort(-free, kind="stable")[:MOST_NODES]]
    waits = []
    for name in map(index.names.__getitem__, places.tolist()):
        have = sum(max(left, 0) for left in inventory.free_milli(name).values())
        wait = 0.0
        for end, gives in sorted(_giving(inventory, name, ends)):
            if have >= request.gpu_milli:
                break
            have, wait = have + gives, end
        if have >= request.gpu_milli:
            waits.append((wait, name))
    return [name for _, name in sorted(waits, reverse=True)]


def _giving(inventory: Inventory, node: str, ends: Ends) -> Iterable[tuple[float, int]]:
    for holder in inventory.holders_on(node):
        end = ends(holder)
        if end is not None:
            held = inventory.allocations[holder]
            yield end, len(held.gpus) * held.milli


class _DrainedNode:
    """A copy of one node whose holders leave one after the other."""

    def __init__(self, inventory: Inventory, name: str, ends: Ends) -> None:
        self._node = LoneNode(inventory, name)
        self._name = name
        self._left: list[str] = []
        self.ready_at = 0.0
        known = ((ends(holder), holder) for holder in self._node.held)
        self._leaving = sorted(((end, holder) for end, holder in known if end is not None), reverse=True)

    def take(self, request: Request, member: int, has_room: HasRoom) -> Fits | None:
        """Let holders leave until the request fits, and take its GPUs; None if it never fits."""
        while True:
            fits = self._node.place(request)
            if fits is not None and has_room(self._name, member, self._left):
                self._node.held[f"member {member}"] = Allocation.of(f"member {member}", fits)
                return fits
            if not self._leaving:
                return None
            self.ready_at, holder = self._leaving.pop()
            del self._node.held[holder]
            self._left.append(holder)
