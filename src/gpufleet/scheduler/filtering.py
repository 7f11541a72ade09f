"""PreFilter, Filter and Score: choose a node and GPUs for a pod and hold them.

kube-scheduler filters one pod at a time and has no reserve call for extenders. So the choice is
held here immediately, and the next pod sees it. A pod that already has GPUs (its bind failed, or
this process was restarted after its leases were written) gets the same node again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpufleet.errors import InvalidRequest
from gpufleet.kubernetes import Timing
from gpufleet.kubernetes.annotations import CLAIM
from gpufleet.kubernetes.leases import LeaseHolder
from gpufleet.kubernetes.objects import Pod
from gpufleet.placement import Exclusivity, Fits, Refused, Request
from gpufleet.scheduler.metrics import SchedulerMetrics
from gpufleet.scheduler.pending_pods import PendingPods
from gpufleet.scheduler.state import Hold, Ledger, request_of, valid_request

MAX_SCORE = 10
"""The highest score that an extender may return."""


@dataclass(frozen=True)
class AnyNode:
    """The pod requests no GPUs, so every node fits."""


@dataclass(frozen=True)
class Unschedulable:
    """No node fits now: a sentence for the user, and a reason for each node."""

    note: str
    reasons: Mapping[str, str] = field(default_factory=dict)
    unresolvable: frozenset[str] = frozenset()


Choice = Fits | AnyNode | Unschedulable


class Filtering:
    """Answers filter and prioritize from the ledger."""

    def __init__(
        self, ledger: Ledger, pending: PendingPods, metrics: SchedulerMetrics, hold_s: float, timing: Timing
    ) -> None:
        self._ledger = ledger
        self._pending = pending
        self._metrics = metrics
        self._hold_s = hold_s
        self._timing = timing

    def choose(self, pod: Pod, candidates: Sequence[str]) -> Choice:
        """Choose a node and hold its GPUs, for a pod without a gang or whose gang is planned."""
        with self._metrics.phase("Filter"):
            choice = self._choose(pod, candidates)
        outcome = "refused" if isinstance(choice, Unschedulable) else "chosen"
        self._metrics.decisions.labels(outcome).inc()
        return choice

    def refuse(self, pod: Pod, candidates: Sequence[str], note: str, reason: str) -> Unschedulable:
        """Refuse all nodes for a reason that does not depend on the node."""
        self._pending.put(pod, None, candidates, note)
        return Unschedulable(note, dict.fromkeys(candidates, f"node(s) {reason}"), frozenset(candidates))

    def _choose(self, pod: Pod, candidates: Sequence[str]) -> Choice:
        uid, claim_name = pod.metadata.uid, pod.metadata.annotations.get(CLAIM, "")
        if not claim_name:
            return AnyNode()
        claim = self._ledger.claim_of(pod)
        if claim is None:
            note = f"GpuClaim {pod.metadata.namespace}/{claim_name} does not exist"
            reason = f"can't serve a pod whose GpuClaim {claim_name} does not exist"
            return self.refuse(pod, candidates, note, reason)
        try:
            request = request_of(claim)
        except InvalidRequest as error:
            return self.refuse(
                pod, candidates, f"the claim is invalid: {error}", f"can't serve an invalid claim: {error}"
            )
        fits = self._current_allocation(uid, request, candidates)
        if fits is None:
            with self._ledger.excluding(uid):
                verdict = self._ledger.cluster.place(request, candidates)
            if isinstance(verdict, Refused):
                waiting = self._awaiting_preemption(pod, request, candidates)
                return waiting or self._refused(pod, verdict, candidates)
            fits = verdict
        self._pending.drop(uid)
        hold = self._ledger.holds.get(uid)
        until = self._timing.monotonic() + self._hold_s
        if hold is not None and hold.fits == fits:
            until = max(until, hold.until)
        gang = hold.gang if hold else ""
        self._ledger.hold(uid, Hold(fits, until, gang))
        return fits

    def _current_allocation(self, uid: str, request: Request, candidates: Sequence[str]) -> Fits | None:
        """Return the GPUs that the pod already has, if they still fit the request."""
        for node, leased in self._ledger.leases_of(uid).items():
            fits = complete_allocation(request, node, leased)
            if fits is not None and node in candidates and self._ledger.cluster.offers(fits):
                return fits
        hold = self._usable_hold(uid, request, candidates)
        return hold.fits if hold and self._ledger.unblocked(uid, hold.fits) else None

    def _awaiting_preemption(
        self, pod: Pod, request: Request, candidates: Sequence[str]
    ) -> Unschedulable | None:
        """Refuse a pod whose held GPUs are still in use by preempted pods."""
        hold = self._usable_hold(pod.metadata.uid, request, candidates)
        if hold is None:
            return None
        note = f"GPUs of {hold.fits.node} are held for the pod until the preempted pods have terminated"
        self._pending.put(pod, request, candidates, note)
        reason = "node(s) had GPUs of preempted pods that are still terminating"
        return Unschedulable(note, dict.fromkeys(candidates, reason), frozenset(candidates))

    def _usable_hold(self, uid: str, request: Request, candidates: Sequence[str]) -> Hold | None:
        hold = self._ledger.holds.get(uid)
        if hold is None or hold.fits.request != request or hold.fits.node not in candidates:
            return None
        return hold if self._ledger.cluster.offers(hold.fits) else None

    def _refused(self, pod: Pod, verdict: Refused, candidates: Sequence[str]) -> Unschedulable:
        self._ledger.release_hold(pod.metadata.uid)
        self._pending.put(pod, verdict.request, candidates, verdict.summary)
        for reason, count in verdict.counts.items():
            self._metrics.refusals.labels(reason.name.lower()).inc(count)
        return Unschedulable(verdict.summary, verdict.reasons, verdict.unresolvable)

    def score(self, pod: Pod, candidates: Sequence[str]) -> dict[str, int]:
        """Return scores from 0 to 10, for kube-schedulers with several extenders; the held node is the best."""
        claim = self._ledger.claim_of(pod)
        if claim is None:
            return dict.fromkeys(candidates, 0)
        hold = self._ledger.holds.get(pod.metadata.uid)
        if hold is not None:
            return {name: MAX_SCORE if name == hold.fits.node else 0 for name in candidates}
        with self._metrics.phase("Score"):
            request = valid_request(claim)
            if request is None:
                return dict.fromkeys(candidates, 0)
            verdicts = {name: self._ledger.cluster.place(request, [name]) for name in candidates}
        return {
            name: max(1, round(verdict.score * MAX_SCORE)) if isinstance(verdict, Fits) else 0
            for name, verdict in verdicts.items()
        }


def complete_allocation(request: Request, node: str, leased: Mapping[int, LeaseHolder]) -> Fits | None:
    """Return a pod's leases on a node as a placement, if they are exactly what the request needs."""
    instances = tuple((gpu, each) for gpu, holder in sorted(leased.items()) for each in holder.instances)
    if request.exclusivity is Exclusivity.MIG:
        enough = len(instances) == request.count
    else:
        enough = len(leased) == request.count and not instances
    if not enough or any(holder.milli != request.milli_per_gpu for holder in leased.values()):
        return None
    return Fits(request, node, tuple(sorted(leased)), instances)
