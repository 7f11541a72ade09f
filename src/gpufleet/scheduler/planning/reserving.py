"""Reservations: GPUs that are kept for the first units of the queue that do not fit.

A reservation names the GPUs that are expected to become free first for all pods of the unit. It holds
no leases. Units behind may use these GPUs (backfill) only if they declare a run time that ends before
the GPUs are needed. Units ahead ignore the reservation; it is then made again elsewhere. If a unit
declares its run time, it is known when its GPUs will be free again, and units behind reserve them for then.
"""

from collections.abc import Callable, Collection, Sequence
from datetime import datetime
from functools import cache

from gpufleet.kubernetes import Timing
from gpufleet.kubernetes.objects import Pod
from gpufleet.placement import Fits, Request, earliest
from gpufleet.scheduler.planning.plan import Reservation
from gpufleet.scheduler.planning.queue import Entry, Queue
from gpufleet.scheduler.state.holders import uid_of, unit_of
from gpufleet.scheduler.state.ledger import Ledger
from gpufleet.scheduler.state.node_resources import Room
from gpufleet.scheduler.state.run_times import declared_end, expected_end, max_runtime

RECHOOSE_S = 60.0
"""Seconds after which GPUs that become free much earlier may replace a reservation."""


MOST_UNKNOWN = 1
"""Reservations of which it is unknown when the GPUs are needed: no unit behind may use them meanwhile."""


class Reserver:
    """Makes reservations for the first `most` units that do not fit; 0 turns them off."""

    def __init__(self, ledger: Ledger, queue: Queue, timing: Timing, most: int) -> None:
        self._ledger = ledger
        self._queue = queue
        self._timing = timing
        self._most = most

    def ignored(self, entry: Entry, pods: Sequence[Pod]) -> list[str]:
        """Return the reservations that a unit may use: its own, those behind it, and those for backfill."""
        if not self._ledger.reservations:
            return []
        runtime = _runtime(pods)
        ends_at = self._now() + runtime if runtime is not None else None
        return [
            other.key
            for other in self._queue.reserving()
            if other.order >= entry.order or _ends_before(ends_at, other.reservation)
        ]

    def reserve(
        self, entry: Entry, pods: Sequence[Pod], requests: Sequence[Request], nodes: Sequence[frozenset[str]]
    ) -> tuple[Fits, ...]:
        """Keep, make or drop the reservation of a unit that does not fit; return its GPUs."""
        reserving = self._queue.reserving()
        if self._is_full([other for other in reserving if other.order < entry.order]):
            self._queue.unreserve(entry)
            return ()
        now = self._now()
        known = entry.reservation
        if known is not None and self._is_valid(known, requests, nodes):
            if now - known.made_at < RECHOOSE_S:
                return known.places
            remaining = self._expected(entry, known.places) - now
        else:
            known, remaining = None, float("inf")
        if known is None and entry.unreservable == self._ledger.freed:
            return ()
        behind = [other for other in reserving if other.order > entry.order]
        room = _DrainedRoom(self._ledger, pods)
        with self._ledger.reservations.ignoring([entry.key, *(other.key for other in behind)]):
            found = earliest(self._ledger.cluster, requests, nodes, self._ends(), room)
        if found is None or (known is not None and (found.ready_at - now) * 2 > remaining):
            places = known.places if known is not None else ()
        else:
            places = found.places
        if not places:
            self._queue.unreserve(entry)
            entry.unreservable = self._ledger.freed
            return ()
        if known is None or known.places != places:
            self._drop(behind, places)
        self._ledger.reservations.put(entry.key, places)
        needed_at, runtime = self._needed_at(entry, places), _runtime(pods)
        free_at = None if needed_at is None or runtime is None else needed_at + runtime
        entry.reservation = Reservation(places, now, needed_at, free_at)
        kept = self._queue.reserving()
        self._drop([other for at, other in enumerate(kept) if self._is_full(kept[:at])], ())
        return places

    def _is_full(self, ahead: Sequence[Entry]) -> bool:
        """Return whether a unit behind these reservations gets none."""
        unknown = sum(
            other.reservation is not None and other.reservation.needed_at is None for other in ahead
        )
        return len(ahead) >= self._most or unknown >= MOST_UNKNOWN

    def yielded(self, entry: Entry, places: Sequence[Fits]) -> None:
        """Make reservations behind a unit again whose nodes the unit has taken GPUs of."""
        self._drop([other for other in self._queue.reserving() if other.order > entry.order], places)

    def _drop(self, entries: Sequence[Entry], places: Sequence[Fits]) -> None:
        """Drop these reservations, or those on the nodes of `places`, to be made again."""
        nodes = {fits.node for fits in places}
        for entry in entries:
            reserved = entry.reservation.places if entry.reservation else ()
            if not places or any(fits.node in nodes for fits in reserved):
                self._queue.unreserve(entry)
                entry.planned = -1

    def _is_valid(
        self, known: Reservation, requests: Sequence[Request], nodes: Sequence[frozenset[str]]
    ) -> bool:
        return len(known.places) == len(requests) and all(
            fits.request == request and fits.node in allowed and self._ledger.cluster.offers(fits)
            for fits, request, allowed in zip(known.places, requests, nodes, strict=True)
        )

    def _ends(self) -> Callable[[str], float | None]:
        """Return a function that tells when holders are expected to end, as of now.

        It gives the same answer for a holder every time. If the ends grew with the clock during a search, each node
        would seem later than the others as soon as it is looked at closely, and all nodes would be.
        """
        now = self._timing.now()
        return cache(lambda holder: self._end_of(holder, now))

    def _end_of(self, holder: str, now: datetime) -> float | None:
        """Return when a pod, or a unit with a reservation, is expected to leave its GPUs; None if never."""
        pod = self._ledger.pods.get(uid_of(holder))
        if pod is not None:
            end = expected_end(pod, now)
            return end.timestamp() if end is not None else None
        entry = self._reserving(holder)
        return entry.reservation.free_at if entry is not None and entry.reservation is not None else None

    def _declared_end_of(self, holder: str) -> float | None:
        """Return when a pod, or a unit with a reservation, leaves its GPUs at the latest; None if that is unknown."""
        pod = self._ledger.pods.get(uid_of(holder))
        if pod is None:
            return self._end_of(holder, self._timing.now())
        end = declared_end(pod, self._timing.now())
        return end.timestamp() if end is not None else None

    def _expected(self, entry: Entry, places: Sequence[Fits]) -> float:
        """Return when all of these GPUs are expected to be free."""
        ends = map(self._ends(), self._holders(entry, places))
        return max((float("inf") if end is None else end for end in ends), default=self._now())

    def _needed_at(self, entry: Entry, places: Sequence[Fits]) -> float | None:
        """Return when these GPUs will be free at the latest; None if a pod on them does not say."""
        needed = self._now()
        for holder in self._holders(entry, places):
            end = self._declared_end_of(holder)
            if end is None:
                return None
            needed = max(needed, end)
        return needed

    def _holders(self, entry: Entry, places: Sequence[Fits]) -> list[str]:
        """Return the pods, and the reservations ahead of the unit, that have some of these GPUs."""
        cluster, gpus = self._ledger.cluster, dict[str, set[int]]()
        for fits in places:
            gpus.setdefault(fits.node, set()).update(fits.gpus)
        return [
            holder
            for node, wanted in gpus.items()
            for holder in cluster.holders_on(node)
            if self._is_ahead(entry, holder) and wanted.intersection(cluster.allocations[holder].gpus)
        ]

    def _is_ahead(self, entry: Entry, holder: str) -> bool:
        other = self._reserving(holder)
        return uid_of(holder) in self._ledger.pods or (other is not None and other.order < entry.order)

    def _reserving(self, holder: str) -> Entry | None:
        """Return the unit whose reservation this holder is, if it is one."""
        return self._queue.get(unit_of(holder))

    def _now(self) -> float:
        return self._timing.now().timestamp()


class _DrainedRoom:
    """The resources of nodes when the pods on reserved GPUs have left."""

    def __init__(self, ledger: Ledger, pods: Sequence[Pod]) -> None:
        self._ledger = ledger
        self._pods = pods
        self._taken: dict[str, list[int]] = {}

    def has(self, node: str, member: int, left: Collection[str]) -> bool:
        """Return whether the node has room for one more member when these holders have left."""
        pods = (self._ledger.pods.get(uid_of(holder)) for holder in left)
        room = Room(self._ledger.resources, [(node, pod) for pod in pods if pod is not None])
        for other in self._taken.get(node, ()):
            room.take(node, self._pods[other])
        return not room.shortage(node, self._pods[member])

    def take(self, node: str, member: int) -> None:
        """Count the member as placed on the node."""
        self._taken.setdefault(node, []).append(member)


def _runtime(pods: Sequence[Pod]) -> float | None:
    """Return the longest run time of these pods; None if one does not declare it."""
    runtimes = [runtime for pod in pods if (runtime := max_runtime(pod)) is not None]
    return max(runtimes) if len(runtimes) == len(pods) else None


def _ends_before(ends_at: float | None, other: Reservation | None) -> bool:
    needed_at = other.needed_at if other is not None else None
    return ends_at is not None and needed_at is not None and ends_at <= needed_at
