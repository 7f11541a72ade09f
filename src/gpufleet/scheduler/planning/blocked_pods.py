"""Decide for a pod that does not fit: preempt others, reserve GPUs, or wait."""

from gpufleet.kubernetes import Timing
from gpufleet.kubernetes.objects import Pod
from gpufleet.placement import Refused, Request
from gpufleet.scheduler.planning.decisions import Decisions
from gpufleet.scheduler.planning.plan import Waiting
from gpufleet.scheduler.planning.pod_placement import PodPlacement
from gpufleet.scheduler.planning.preemption import RECLAIM_AGAIN_S, Preemption, not_evicted
from gpufleet.scheduler.planning.queue import Entry, Queue
from gpufleet.scheduler.planning.refusals import reserved_suffix, sentence, with_reserved
from gpufleet.scheduler.planning.reserving import Reserver
from gpufleet.scheduler.queues.gpu_queues import GpuQueues
from gpufleet.scheduler.state import Ledger

SEARCH_S = 0.02
"""Seconds that a search for victims may take for one pod."""


class BlockedPods:
    """Decides for pods that do not fit."""

    def __init__(
        self,
        ledger: Ledger,
        queue: Queue,
        preemption: Preemption,
        reserver: Reserver,
        gpu_queues: GpuQueues,
        placement: PodPlacement,
        decisions: Decisions,
        timing: Timing,
    ) -> None:
        self._ledger = ledger
        self._queue = queue
        self._preemption = preemption
        self._reserver = reserver
        self._gpu_queues = gpu_queues
        self._placement = placement
        self._decisions = decisions
        self._timing = timing
        self._explained: dict[int, tuple[Refused, Refused, str]] = {}
        """Refusals with their sentence, by the identity of the refusal: many pods share one."""
        self._explained_at = -1

    def decide(
        self, entry: Entry, pod: Pod, request: Request, verdict: Refused, nodes: frozenset[str]
    ) -> Waiting:
        """Preempt, reserve or wait for a pod that was refused."""
        uid = pod.metadata.uid
        hold = self._placement.usable_hold(uid, request, nodes)
        if hold is not None and not hold.gang:
            victims = not_evicted(self._ledger, uid, hold)
            if not entry.reclaims or self._preemption.may_evict([pod], [request], victims):
                return self._decisions.wait(entry, [pod], _preempting(hold.fits.node), victims)
        self._ledger.release_hold(uid)
        until = self._timing.monotonic() + SEARCH_S
        with self._ledger.reservations.ignoring(self._reserver.ignored(entry, [pod])):
            found = self._preemption.for_pod(
                pod, request, nodes, lambda: self._timing.monotonic() > until, reclaims=entry.is_guaranteed
            )
        if found is not None:
            self._queue.unreserve(entry)
            entry.reclaims = found.reclaims
            self._preemption.hold([pod], found, "")
            self._reserver.yielded(entry, found.places)
            return self._decisions.wait(entry, [pod], _preempting(found.places[0].node), found.evict)
        if entry.is_guaranteed and self._gpu_queues.entitlement([pod], [request]) is not None:
            entry.again_at = self._timing.monotonic() + RECLAIM_AGAIN_S
        reserved = self._reserver.reserve(entry, [pod], [request], [self._placement.nodes_of(entry, pod)])
        refused, reason = self._explain(pod, verdict)
        reason += self._gpu_queues.note(pod) + reserved_suffix(reserved)
        return self._decisions.wait(entry, [pod], Waiting(reason, refused, reserved))

    def _explain(self, pod: Pod, verdict: Refused) -> tuple[Refused, str]:
        if self._explained_at != self._ledger.freed:
            self._explained.clear()
            self._explained_at = self._ledger.freed
        known = self._explained.get(id(verdict))
        if known is None or known[0] is not verdict:
            refused = with_reserved(self._ledger, verdict)
            known = verdict, refused, sentence(self._ledger, pod, refused)
            self._explained[id(verdict)] = known
        return known[1:]


def _preempting(node: str) -> Waiting:
    why = f"GPUs of {node} are held for the pod until the preempted pods have terminated"
    return Waiting(why, preempting=True)
