"""PreFilter, Filter and Score: choose one node and its GPUs for a pod and hold them.

kube-scheduler filters one pod at a time and has no reserve call for extenders, so the choice
is held here at once: the next pod sees it. A pod that holds GPUs already (its bind failed, or
this process was restarted after its leases were written) gets the same node again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpufleet.errors import InvalidRequest
from gpufleet.kubernetes.annotations import CLAIM
from gpufleet.kubernetes.client.timing import Timing
from gpufleet.kubernetes.leases import LeaseHolder
from gpufleet.kubernetes.objects import Pod
from gpufleet.placement import Exclusivity, Fits, Refused, Request
from gpufleet.scheduler.metrics import SchedulerMetrics
from gpufleet.scheduler.pending_pods import PendingPods
from gpufleet.scheduler.state import Hold, Ledger, request_of, sensible_request

HIGHEST = 10
"""The score of the best node, as extenders count."""


@dataclass(frozen=True)
class Everywhere:
    """The pod asks for no GPU: every node will do."""


@dataclass(frozen=True)
class Unfit:
    """No node will do now: a sentence, and the reason of each node."""

    note: str
    reasons: Mapping[str, str] = field(default_factory=dict)
    unresolvable: frozenset[str] = frozenset()


Choice = Fits | Everywhere | Unfit


class Filtering:
    """Answers filter and prioritize from memory."""

    def __init__(
        self, ledger: Ledger, waiting: PendingPods, metrics: SchedulerMetrics, hold_s: float, timing: Timing
    ) -> None:
        self._ledger = ledger
        self._waiting = waiting
        self._metrics = metrics
        self._hold_s = hold_s
        self._timing = timing

    def choose(self, pod: Pod, among: Sequence[str]) -> Choice:
        """Choose for a pod that is in no gang, or whose gang is up; the choice is held."""
        with self._metrics.phase("Filter"):
            choice = self._choose(pod, among)
        self._metrics.decisions.labels("refused" if isinstance(choice, Unfit) else "chosen").inc()
        return choice

    def refuse(self, pod: Pod, among: Sequence[str], note: str, reason: str) -> Unfit:
        """Refuse on all nodes, for a reason that is none of the nodes'."""
        self._waiting.put(pod, None, among, note)
        return Unfit(note, dict.fromkeys(among, f"node(s) {reason}"), frozenset(among))

    def _choose(self, pod: Pod, among: Sequence[str]) -> Choice:
        uid, claim_name = pod.metadata.uid, pod.metadata.annotations.get(CLAIM, "")
        if not claim_name:
            return Everywhere()
        claim = self._ledger.claim_of(pod)
        if claim is None:
            note = f"GpuClaim {pod.metadata.namespace}/{claim_name} does not exist"
            return self.refuse(
                pod, among, note, f"can't serve a pod whose GpuClaim {claim_name} does not exist"
            )
        try:
            request = request_of(claim)
        except InvalidRequest as error:
            return self.refuse(
                pod, among, f"the claim can't be served: {error}", f"can't serve the claim: {error}"
            )
        kept = self._kept(uid, request, among)
        if kept is None:
            with self._ledger.without(uid):
                verdict = self._ledger.cluster.place(request, among)
            if isinstance(verdict, Refused):
                return self._promised(pod, request, among) or self._refused(pod, verdict, among)
            kept = verdict
        self._waiting.drop(uid)
        hold = self._ledger.holds.get(uid)
        until = self._timing.monotonic() + self._hold_s
        if hold is not None and hold.fits == kept:
            until = max(until, hold.until)
        gang = hold.gang if hold else ""
        self._ledger.hold(uid, Hold(kept, until, gang, pod.metadata.resource_version))
        return kept

    def _kept(self, uid: str, request: Request, among: Sequence[str]) -> Fits | None:
        """What the pod has already, where it will still do."""
        for node, parts in self._ledger.parts(uid).items():
            fits = whole_allocation(request, node, parts)
            if fits is not None and node in among and self._ledger.cluster.offers(fits):
                return fits
        hold = self._hold_among(uid, request, among)
        return hold.fits if hold and self._ledger.unhindered(uid, hold.fits) else None

    def _promised(self, pod: Pod, request: Request, among: Sequence[str]) -> Unfit | None:
        """The pod waits for GPUs that others are leaving for it, and there is nothing else for it meanwhile."""
        hold = self._hold_among(pod.metadata.uid, request, among)
        if hold is None:
            return None
        note = f"GPUs of {hold.fits.node} are kept for it; pods of lower priority are leaving them"
        self._waiting.put(pod, request, among, note)
        reason = "node(s) had GPUs that pods of lower priority have yet to leave"
        return Unfit(note, dict.fromkeys(among, reason), frozenset(among))

    def _hold_among(self, uid: str, request: Request, among: Sequence[str]) -> Hold | None:
        hold = self._ledger.holds.get(uid)
        if hold is None or hold.fits.request != request or hold.fits.node not in among:
            return None
        return hold if self._ledger.cluster.offers(hold.fits) else None

    def _refused(self, pod: Pod, verdict: Refused, among: Sequence[str]) -> Unfit:
        self._ledger.release_hold(pod.metadata.uid)
        self._waiting.put(pod, verdict.request, among, verdict.summary)
        for reason, count in verdict.counts.items():
            self._metrics.refusals.labels(reason.name.lower()).inc(count)
        return Unfit(verdict.summary, verdict.reasons, verdict.unresolvable)

    def score(self, pod: Pod, among: Sequence[str]) -> dict[str, int]:
        """Scores 0..10, for those who run several extenders; the held node is the best."""
        claim = self._ledger.claim_of(pod)
        if claim is None:
            return dict.fromkeys(among, 0)
        hold = self._ledger.holds.get(pod.metadata.uid)
        if hold is not None:
            return {name: HIGHEST if name == hold.fits.node else 0 for name in among}
        with self._metrics.phase("Score"):
            request = sensible_request(claim)
            if request is None:
                return dict.fromkeys(among, 0)
            verdicts = {name: self._ledger.cluster.place(request, [name]) for name in among}
        return {
            name: max(1, round(verdict.score * HIGHEST)) if isinstance(verdict, Fits) else 0
            for name, verdict in verdicts.items()
        }


def whole_allocation(request: Request, node: str, parts: Mapping[int, LeaseHolder]) -> Fits | None:
    """The leases of a pod on a node as a placement, if they are all that the request asks for."""
    instances = tuple((gpu, each) for gpu, holder in sorted(parts.items()) for each in holder.instances)
    if request.exclusivity is Exclusivity.MIG:
        enough = len(instances) == request.count
    else:
        enough = len(parts) == request.count and not instances
    if not enough or any(holder.milli != request.milli_per_gpu for holder in parts.values()):
        return None
    return Fits(request, node, tuple(sorted(parts)), instances)
