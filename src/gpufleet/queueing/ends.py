"""Find the GPUs that become free first for members that do not fit now.

Each node gives up its holders in the order of their expected ends, until a member fits. Each member gets the node on
which that happens first. A holder that is not expected to leave stays. From a matrix of ends follows for each node the
earliest time at which a member could fit there; only nodes with the smallest are looked at closely.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from gpufleet.placement.earliest import LEAST_REMAINING_S
from gpufleet.placement.pick import Pick
from gpufleet.placement.reasons import Reason
from gpufleet.placement.request import WHOLE
from gpufleet.queueing.needs import Amounts, more
from gpufleet.queueing.placing import Sizes
from gpufleet.queueing.snapshot import Snapshot, bits
from gpufleet.queueing.units import NEVER, Holder, Place

Times = NDArray[np.float64]


class Ends:
    """When the GPUs of each node are expected to be free, kept for a snapshot that changes."""

    def __init__(self, snapshot: Snapshot) -> None:
        self._snapshot = snapshot
        nodes = len(snapshot)
        width = max((len(snapshot.tables.shapes[each].gpus) for each in snapshot.shapes), default=0)
        self._declared: Times = np.full((nodes, width), NEVER)
        """When the holders of each GPU have left, as far as they declare it."""
        self._since: Times = np.full((nodes, width), np.nan)
        """Since when the holder that declares nothing has the GPU, the oldest of them."""
        self._first: Times = np.full(nodes, NEVER)
        """The first declared end of a holder on the node."""
        self._youngest: Times = np.full(nodes, np.nan)
        self._stale = set(range(nodes))
        snapshot.changed = self._stale.add

    def copy(self, snapshot: Snapshot) -> "Ends":
        """Return the same times for a copy of the snapshot."""
        twin = Ends.__new__(Ends)
        twin._snapshot = snapshot
        twin._declared, twin._since = self._declared.copy(), self._since.copy()
        twin._first, twin._youngest = self._first.copy(), self._youngest.copy()
        twin._stale = self._stale.copy()
        snapshot.changed = twin._stale.add
        return twin

    def gpus(self, now: float) -> Times:
        """Return when each GPU is expected to be free."""
        self._update()
        return np.fmax(self._declared, now + np.maximum(now - self._since, LEAST_REMAINING_S))

    def first(self, now: float) -> Times:
        """Return when the first holder of each node is expected to leave."""
        self._update()
        return np.fmin(self._first, now + np.maximum(now - self._youngest, LEAST_REMAINING_S))

    def _update(self) -> None:
        for node in self._stale:
            self._read(node)
        self._stale.clear()

    def _read(self, node: int) -> None:
        snapshot = self._snapshot
        shape = snapshot.tables.shapes[snapshot.shapes[node]]
        declared, since = [NEVER] * self._declared.shape[1], [np.nan] * self._declared.shape[1]
        first, youngest = NEVER, np.nan
        for position, gpu in enumerate(shape.gpus):
            if shape.usable >> gpu.id & 1 and not gpu.taken:
                declared[position] = -NEVER
        for holder, place in snapshot.on[node]:
            end = holder.declared_end
            if end is None and not holder.stays:
                youngest = np.fmax(youngest, holder.since)
            first = min(first, NEVER if end is None else end)
            for position in (shape.position[gpu] for gpu in place.gpus if gpu in shape.position):
                if end is not None or holder.stays:
                    declared[position] = max(declared[position], NEVER if end is None else end)
                else:
                    since[position] = np.fmin(since[position], holder.since)
        self._declared[node], self._since[node] = declared, since
        self._first[node], self._youngest[node] = first, youngest


@dataclass(frozen=True, slots=True)
class Kept:
    """GPUs that a reservation ahead keeps, and when they are free again; NEVER if that is unknown."""

    key: str
    place: Place
    free_at: float


@dataclass(frozen=True, slots=True)
class Soonest:
    """Where each member will fit, in order, and when."""

    places: tuple[Place, ...]
    times: tuple[float, ...]

    @property
    def ready_at(self) -> float:
        """Return when the last of the GPUs is expected to be free."""
        return max(self.times)


def soonest(
    snapshot: Snapshot,
    ends: Ends,
    sizes: Sizes,
    now: float,
    kept: Sequence[Kept] = (),
    within: int | None = None,
    *,
    partly: bool = False,
) -> Soonest | None:
    """Return the GPUs that are free first for all members together; with `partly` for as many as possible.

    Members respect the reservations ahead (`kept`). None if waiting does not help.
    """
    drained: dict[int, _DrainedNode] = {}
    places, times = list[Place](), list[float]()
    kept_on: dict[int, list[Kept]] = {}
    for reserved in kept:
        kept_on.setdefault(reserved.place.node, []).append(reserved)
    for need, members in sizes:
        candidates = _by_bound(snapshot, ends, need, now, within)
        coming, again = next(candidates, _NONE), list[tuple[float, int]]()
        left = members
        while left:
            if again and again[0] < coming:
                bound, node = heappop(again)
            else:
                (bound, node), coming = coming, next(candidates, _NONE)
            if node < 0:
                break
            if node not in drained:
                drained[node] = _DrainedNode(snapshot, node, now, kept_on.get(node, ()))
            offer = drained[node].offer(need)
            if offer is None:
                continue
            ready_at = max(bound, offer.ready_at)
            if (ready_at, node) > min(coming, again[0] if again else coming):
                heappush(again, (ready_at, node))
                continue
            places.append(drained[node].take(offer))
            times.append(max(offer.ready_at, now))
            heappush(again, (ready_at, node))
            left -= 1
        if left and not partly:
            return None
    return Soonest(tuple(places), tuple(times)) if places else None


_NONE = (NEVER, -1)


def _by_bound(
    snapshot: Snapshot, ends: Ends, need: int, now: float, within: int | None
) -> Iterator[tuple[float, int]]:
    """Yield nodes by the earliest time at which a member could fit there."""
    tables, request = snapshot.tables, snapshot.tables.needs[need].request
    if request.milli_per_gpu == WHOLE:
        gpus = ends.gpus(now)
        if request.count > gpus.shape[1]:
            return
        bounds = np.partition(gpus, request.count - 1, axis=1)[:, request.count - 1]
    else:
        fits = np.fromiter((count[need] > 0 for count in snapshot.counts), np.bool_, len(snapshot))
        bounds = np.where(fits, now, ends.first(now))
    admits = [tables.exclusion(each, need) is Reason.NONE for each in range(tables.class_count)]
    allowed = np.array(admits, np.bool_)[snapshot.classes]
    named = tables.needs[need].nodes
    if named is not None or within is not None:
        mask = np.zeros(len(snapshot), np.bool_)
        area = snapshot.all_nodes if named is None else named & snapshot.all_nodes
        mask[list(bits(area if within is None else area & within))] = True
        allowed &= mask
    bounds = np.where(allowed, np.maximum(bounds, now), NEVER)
    for node in np.argsort(bounds, kind="stable").tolist():
        if bounds[node] == NEVER:
            return
        yield float(bounds[node]), node


@dataclass(frozen=True, slots=True)
class _Offer:
    need: int
    chosen: Pick
    ready_at: float
    left: int


class _DrainedNode:
    """One node whose holders leave one after the other."""

    def __init__(self, snapshot: Snapshot, node: int, now: float, kept: Sequence[Kept]) -> None:
        self._snapshot, self._node = snapshot, node
        self._taken: list[Place] = []
        self._left = 0
        self._at = now
        here = [
            (holder.expected_end(now, LEAST_REMAINING_S), holder.key, place)
            for holder, place in snapshot.on[node]
        ]
        # Kept GPUs are among those of holders that have not left yet, so they may be overbooked until then.
        here += [(reserved.free_at, reserved.key, reserved.place) for reserved in kept]
        self._leaving = sorted(here, key=_by_end)
        self._kept = [reserved.place for reserved in kept]

    def offer(self, need: int) -> _Offer | None:
        """Return the GPUs that are free first for a member; None if it never fits."""
        left, ready_at = self._left, self._at
        while True:
            occupancy, free = self._after(left)
            chosen = self._snapshot.fits(need, self._node, occupancy, free)
            if chosen is not None:
                return _Offer(need, chosen, ready_at, left)
            if left == len(self._leaving) or self._leaving[left][0] == NEVER:
                return None
            ready_at = max(ready_at, self._leaving[left][0])
            left += 1

    def take(self, offer: _Offer) -> Place:
        """Take the GPUs of an offer and return them."""
        place = self._snapshot.tables.place(offer.need, self._node, offer.chosen)
        self._left, self._at = offer.left, offer.ready_at
        self._taken.append(place)
        return place

    def _after(self, left: int) -> tuple[int, Amounts]:
        """Return occupancy and free resources when so many have left."""
        snapshot, tables, node = self._snapshot, self._snapshot.tables, self._node
        gone, free = [place for *_, place in self._leaving[:left]], snapshot.free[node]
        if any(place.instances for place in gone):
            occupancy = tables.idle(snapshot.shapes[node])
            for *_, place in self._leaving[left:]:
                occupancy = tables.taken(occupancy, place)
        else:
            occupancy = snapshot.occupancy[node]
            for place in self._kept:
                occupancy = tables.taken(occupancy, place)
            for place in gone:
                occupancy = tables.returned(occupancy, place)
        for place in gone:
            free = more(free, place.amounts) if place not in self._kept else free
        for place in self._taken:
            occupancy = tables.taken(occupancy, place)
            free = tuple(have - ask for have, ask in zip(free, place.amounts, strict=True))
        return occupancy, free


def _by_end(each: tuple[float, str, Place]) -> tuple[float, str]:
    return each[0], each[1]


def held_by(snapshot: Snapshot, places: Sequence[Place]) -> list[Holder]:
    """Return the holders that have some of the GPUs of these places."""
    holders: dict[str, Holder] = {}
    for place in places:
        for holder, taken in snapshot.on[place.node]:
            if taken.overlaps(place):
                holders[holder.key] = holder
    return list(holders.values())
