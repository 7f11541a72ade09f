"""Find the GPUs that become free first for requests that do not fit now.

Each node gives up its holders in the order of their expected ends, until a request fits. Each request
gets the node on which that happens first. A holder without an expected end stays: nothing is gained by
waiting for it.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from operator import itemgetter
from typing import Protocol

import numpy as np

from gpufleet.placement.allocation import Allocation
from gpufleet.placement.inventory import Inventory
from gpufleet.placement.lone_node import LoneNode
from gpufleet.placement.request import Request
from gpufleet.placement.verdict import Fits

MOST_NODES = 1_000
"""Nodes that are compared, those with the most free GPUs first."""

LEAST_REMAINING_S = 600.0
"""The least remaining run time, in seconds, that is expected of a holder without a declared end."""

Ends = Callable[[str], float | None]
"""Returns when a holder is expected to end; None if that can't be expected."""


class Room(Protocol):
    """Resources of nodes besides GPUs, for members by their number."""

    def has(self, node: str, member: int, left: Collection[str]) -> bool:
        """Return whether the node has room for the member when these holders have left."""

    def take(self, node: str, member: int) -> None:
        """Count the member as placed on the node."""


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
    room: Room,
) -> Earliest | None:
    """Return the GPUs that will be free first for all requests together; None if waiting does not help."""
    found: list[Fits] = []
    drained: dict[str, _DrainedNode] = {}
    ranked: dict[tuple[Request, frozenset[str]], list[tuple[float, str]]] = {}
    ready_at = 0.0
    for at, (request, eligible) in enumerate(zip(requests, eligible_nodes, strict=True)):
        waits = ranked.get((request, eligible))
        if waits is None:
            waits = ranked[request, eligible] = _waits(inventory, request, eligible, ends)
        while waits:
            # The waits are lower bounds; only the node with the smallest is looked at closely.
            wait, name = heappop(waits)
            if (node := drained.get(name)) is None:
                node = drained[name] = _DrainedNode(inventory, name, ends)
            offer = node.offer(request, at, room)
            if offer is None:
                continue
            heappush(waits, (max(wait, offer.ready_at), name))
            if waits[0][1] == name:
                node.take(offer, at)
                room.take(name, at)
                found.append(offer.fits)
                ready_at = max(ready_at, offer.ready_at)
                break
        else:
            return None
    return Earliest(tuple(found), ready_at)


def _waits(
    inventory: Inventory, request: Request, eligible: Iterable[str], ends: Ends
) -> list[tuple[float, str]]:
    """Return the nodes on which the request may fit some day as a heap, by the earliest possible time."""
    index = inventory.index()
    places, _ = index.places(frozenset(eligible))
    places = places[index.matching(request.match_labels)[places]]
    if len(places) > MOST_NODES:
        free = inventory.states.nodes(index.state[places]).free.sum(axis=1)
        places = places[np.argsort(-free, kind="stable")[:MOST_NODES]]
    waits = []
    for name in map(index.names.__getitem__, places.tolist()):
        left, wait = inventory.free_milli(name), 0.0
        for end, held in sorted(_leaving(inventory, name, ends), key=itemgetter(0)):
            if _free(left) >= request.gpu_milli:
                break
            wait = end
            for gpu in held.gpus:
                left[gpu] = left.get(gpu, 0) + held.milli
        if _free(left) >= request.gpu_milli:
            waits.append((wait, name))
    heapify(waits)
    return waits


def _free(left: Mapping[int, int]) -> int:
    return sum(max(milli, 0) for milli in left.values())


def _leaving(inventory: Inventory, node: str, ends: Ends) -> Iterable[tuple[float, Allocation]]:
    for holder in inventory.holders_on(node):
        if (end := ends(holder)) is not None:
            yield end, inventory.allocations[holder]


@dataclass(frozen=True)
class _Offer:
    """GPUs of a node that are free when so many holders have left."""

    fits: Fits
    ready_at: float
    left: int


class _DrainedNode:
    """A copy of one node whose holders leave one after the other."""

    def __init__(self, inventory: Inventory, name: str, ends: Ends) -> None:
        self._node = LoneNode(inventory, name)
        self._name = name
        known = ((ends(holder), holder) for holder in self._node.held)
        self._leaving = sorted((end, holder) for end, holder in known if end is not None)
        self._left = 0

    def offer(self, request: Request, member: int, room: Room) -> _Offer | None:
        """Return the GPUs that are free first for the request; None if it never fits."""
        for left in range(self._left, len(self._leaving) + 1):
            gone = [holder for _, holder in self._leaving[:left]]
            fits = self._node.place(request, gone)
            if fits is not None and room.has(self._name, member, gone):
                return _Offer(fits, self._leaving[left - 1][0] if left else 0.0, left)
        return None

    def take(self, offer: _Offer, member: int) -> None:
        """Take the GPUs of an offer."""
        self._left = offer.left
        self._node.held[f"member {member}"] = Allocation.of(f"member {member}", offer.fits)
