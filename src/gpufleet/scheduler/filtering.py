"""PreFilter, Filter and Score: answer kube-scheduler from the plan.

kube-scheduler filters one pod at a time and has no reserve call for extenders. So the planner holds
its choice immediately, and the next pod sees it. A pod that already has GPUs (its bind failed, or
this process was restarted after its leases were written) gets the same node again.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpufleet.kubernetes.annotations import CLAIM
from gpufleet.kubernetes.objects import Pod
from gpufleet.kubernetes.resource_claims import is_delivered_by_claim
from gpufleet.placement import Fits
from gpufleet.runtime.logs import get_logger
from gpufleet.scheduler.metrics import SchedulerMetrics
from gpufleet.scheduler.planning.gangs import Gangs
from gpufleet.scheduler.planning.plan import Placed, Waiting
from gpufleet.scheduler.planning.planner import Planner
from gpufleet.scheduler.state import Ledger, valid_request

_log = get_logger("scheduler")

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
    """Answers filter and prioritize."""

    def __init__(self, ledger: Ledger, planner: Planner, gangs: Gangs, metrics: SchedulerMetrics) -> None:
        self._ledger = ledger
        self._planner = planner
        self._gangs = gangs
        self._metrics = metrics

    def choose(self, pod: Pod, candidates: Sequence[str]) -> Choice:
        """Return the node and GPUs of a pod, which are held for it, or why it has none."""
        with self._metrics.phase("Filter"):
            choice = self._choose(pod, candidates)
        outcome = "refused" if isinstance(choice, Unschedulable) else "chosen"
        self._metrics.decisions.labels(outcome).inc()
        name = f"{pod.metadata.namespace}/{pod.metadata.name}"
        if isinstance(choice, Fits):
            _log.debug("gpus_chosen", phase="Filter", pod=name, node=choice.node, gpus=choice.gpus)
        elif isinstance(choice, Unschedulable):
            _log.debug("pod_refused", phase="Filter", pod=name, reason=choice.note)
        return choice

    def _choose(self, pod: Pod, candidates: Sequence[str]) -> Choice:
        if not pod.metadata.annotations.get(CLAIM) or is_delivered_by_claim(pod):
            # The allocation of a ResourceClaim has its node, which kube-scheduler follows by itself.
            return AnyNode()
        gang = self._ledger.gangs.of(pod)
        if gang is None:
            decision = self._planner.plan_pod(pod, candidates)
        else:
            decision = self._gangs.decide(pod, gang, candidates)
        if isinstance(decision, Placed):
            return decision.members[pod.metadata.uid]
        return self._refused(decision, candidates)

    def _refused(self, why: Waiting, candidates: Sequence[str]) -> Unschedulable:
        refused = why.refused
        if refused is None:
            reasons = dict.fromkeys(candidates, f"node(s) can't serve the pod: {why.reason}")
            return Unschedulable(why.reason, reasons, frozenset(candidates))
        for reason, count in refused.counts.items():
            self._metrics.refusals.labels(reason.name.lower()).inc(count)
        return Unschedulable(why.reason, refused.reasons, refused.unresolvable)

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
