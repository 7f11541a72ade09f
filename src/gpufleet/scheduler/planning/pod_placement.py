"""Find GPUs for one pod, among the nodes that admit it and past the reservations that it may not use."""

from collections.abc import Collection, Iterable

from gpufleet.kubernetes.objects import Pod
from gpufleet.kubernetes.resource_claims import is_delivered_by_claim
from gpufleet.placement import Fits, Refused, Request, Verdict
from gpufleet.scheduler.planning.queue import Entry
from gpufleet.scheduler.planning.reserving import Reserver
from gpufleet.scheduler.state import Hold, Ledger
from gpufleet.scheduler.state.allocations import leased_places, unblocked
from gpufleet.scheduler.state.node_resources import Room, requested


class PodPlacement:
    """Places pods in the ledger's inventory; nothing is allocated."""

    def __init__(self, ledger: Ledger, reserver: Reserver) -> None:
        self._ledger = ledger
        self._reserver = reserver
        self._refused: dict[object, Refused] = {}
        self._refused_at = -1

    def current(self, uid: str, request: Request, nodes: Collection[str]) -> Fits | None:
        """Return the GPUs that the pod already has, if they still fit the request."""
        for fits in leased_places(self._ledger, uid, request):
            if fits.node in nodes and self._ledger.cluster.offers(fits):
                return fits
        hold = self.usable_hold(uid, request, nodes)
        return hold.fits if hold and unblocked(self._ledger, uid, hold.fits) else None

    def usable_hold(self, uid: str, request: Request, nodes: Collection[str]) -> Hold | None:
        """Return the hold of the pod, if it fits the request and is on one of these nodes."""
        hold = self._ledger.holds.get(uid)
        if hold is None or hold.fits.request != request or hold.fits.node not in nodes:
            return None
        return hold if self._ledger.cluster.offers(hold.fits) else None

    def nodes_of(self, entry: Entry, pod: Pod) -> frozenset[str]:
        """Return the nodes that may take the pod, as far as known here."""
        admitted, excluded = self._ledger.eligible.of(pod), entry.excluded.get(pod.metadata.uid)
        if is_delivered_by_claim(pod):
            admitted &= self._ledger.resource_claims.nodes()
        return admitted - excluded if excluded else admitted

    def place(self, entry: Entry, pod: Pod, request: Request, nodes: Iterable[str]) -> Verdict:
        """Place a pod as if it had no GPUs yet."""
        ignored = self._reserver.ignored(entry, [pod])
        with self._ledger.excluding(pod.metadata.uid), self._ledger.reservations.ignoring(ignored):
            return self._ledger.cluster.place(request, nodes)

    def place_with_room(self, entry: Entry, pod: Pod, request: Request, nodes: frozenset[str]) -> Verdict:
        """Place a pod on a node that also has the CPU, memory and so on that it requests.

        While no GPUs become free, what one pod was refused is refused to all equal pods.
        """
        if entry.asks is None:
            entry.asks = tuple(sorted(requested(pod).items()))
        if self._refused_at != self._ledger.freed:
            self._refused.clear()
            self._refused_at = self._ledger.freed
        ignored = self._reserver.ignored(entry, [pod])
        uid = pod.metadata.uid
        alone = not (entry.reservation or uid in self._ledger.holds or self._ledger.held_by(uid))
        key = (request, nodes, entry.asks, tuple(ignored)) if alone else None
        if key in self._refused:
            return self._refused[key]
        verdict = self.place(entry, pod, request, nodes)
        room = Room(self._ledger.resources)
        if isinstance(verdict, Fits) and room.shortage(verdict.node, pod):
            with_room = [node for node in nodes if not room.shortage(node, pod)]
            verdict = self.place(entry, pod, request, with_room)
        if isinstance(verdict, Refused) and key is not None:
            self._refused[key] = verdict
        return verdict
