"""Decide which unit of the queue gets which GPUs, which are reserved for it, or why it waits.

The planner works on the ledger's inventory and does no I/O. A cycle walks the queue in order and
plans the units whose inputs have changed: GPUs became free, or the unit itself is another one. It
works in short slices, so that requests are answered in between.

A unit that fits gets its GPUs at once, as holds in memory, but only if no unit ahead of it still has
to be planned. A unit that does not fit preempts others, or gets a reservation (`reserving.py`), or
waits. The verbs of kube-scheduler, the stand-alone loop, claim statuses and events read the decision.
"""

from collections.abc import Collection, Sequence

from gpufleet.kubernetes import Timing
from gpufleet.kubernetes.objects import Pod
from gpufleet.kubernetes.resource_claims import is_delivered_by_claim
from gpufleet.placement import Fits, Refused, Verdict
from gpufleet.scheduler.planning.blocked_pods import BlockedPods
from gpufleet.scheduler.planning.decisions import Decisions
from gpufleet.scheduler.planning.gang_placement import GangPlacement
from gpufleet.scheduler.planning.gang_planner import other_scheduler
from gpufleet.scheduler.planning.gang_plans import GangPlans
from gpufleet.scheduler.planning.plan import Decision, Placed, Waiting
from gpufleet.scheduler.planning.pod_placement import PodPlacement
from gpufleet.scheduler.planning.preemption import Preemption
from gpufleet.scheduler.planning.queue import Entry, Queue, foreign_gates
from gpufleet.scheduler.planning.refusals import sentence
from gpufleet.scheduler.planning.requests import PodRequests
from gpufleet.scheduler.planning.reserving import Reserver
from gpufleet.scheduler.planning.time_limit import TimeLimit
from gpufleet.scheduler.queues.gpu_queues import GpuQueues
from gpufleet.scheduler.state import Hold, Ledger
from gpufleet.scheduler.state.allocations import unblocked

CATCH_UP_S = 0.004
"""Seconds that a filter call spends on the units ahead of its pod."""

_FIRST = (-1, 0.0, 0, "", "", "")
"""Before every unit."""
_BEING_PLANNED = "pods ahead of it in the queue are being planned"


class Planner:
    """Plans the units of a queue; `decisions` collects what to act on."""

    def __init__(
        self,
        ledger: Ledger,
        queue: Queue,
        preemption: Preemption,
        reserver: Reserver,
        gang_plans: GangPlans,
        gpu_queues: GpuQueues,
        decisions: Decisions,
        timing: Timing,
        *,
        scheduler_name: str,
        hold_s: float,
        levels: Sequence[str] = (),
    ) -> None:
        self._ledger = ledger
        self._queue = queue
        self._reserver = reserver
        self._gpu_queues = gpu_queues
        self._decisions = decisions
        self._timing = timing
        self._hold_s = hold_s
        self.schedulers = {"", scheduler_name}
        """The names of the schedulers that ask here."""
        self._limit = TimeLimit(timing)
        self._requests = PodRequests(ledger)
        self._placement = PodPlacement(ledger, reserver)
        self._blocked = BlockedPods(
            ledger, queue, preemption, reserver, gpu_queues, self._placement, decisions, timing
        )
        self._gangs = GangPlacement(
            ledger,
            queue,
            preemption,
            reserver,
            gpu_queues,
            self._placement,
            self._requests,
            decisions,
            gang_plans,
            self._limit,
            timing,
            schedulers=self.schedulers,
            levels=levels,
        )
        self._cursor = _FIRST
        self._from_start = False
        """Whether the walk must begin again: a unit fits, but units ahead of it are due."""

    # -- one pod, for its filter call ------------------------------------------------------

    def plan_pod(self, pod: Pod, candidates: Sequence[str]) -> Decision:
        """Decide for a pod that is scheduled alone, among the nodes that its scheduler offers."""
        self.schedulers.add(pod.spec.scheduler_name)
        self._limit.start(CATCH_UP_S)
        uid = pod.metadata.uid
        entry = self._queue.put_pod(pod)
        request = self._requests.of(pod)
        if isinstance(request, str):
            return self._decisions.wait(entry, [pod], Waiting(request))
        verdict: Verdict | None = self._placement.current(uid, request, candidates)
        if verdict is None and (refusal := self._gpu_queues.refusal([pod], [request])):
            return self._refuse(entry, pod, refusal)
        if verdict is None:
            self._rank_if_due()
            verdict = self._placement.place(entry, pod, request, candidates)
            if isinstance(verdict, Fits) and self._due_ahead(entry):
                if not self._catch_up(entry):
                    return self._decisions.wait(entry, [pod], Waiting(_BEING_PLANNED))
                verdict = self._placement.place(entry, pod, request, candidates)
        if isinstance(verdict, Refused) and self._due_ahead(entry):
            # It is planned in its turn: units ahead of it get GPUs and reservations first.
            entry.planned = -1
            return self._decisions.wait(entry, [pod], Waiting(_BEING_PLANNED))
        entry.planned = self._ledger.freed
        if isinstance(verdict, Refused):
            offered = frozenset(candidates)
            admitted = self._ledger.eligible.of(pod).intersection(self._ledger.cluster.nodes)
            entry.excluded[uid] = admitted - offered
            # The candidates come from a request: an eviction must help the pod for certain.
            return self._blocked.decide(entry, pod, request, verdict, offered & admitted)
        self._hold(pod, verdict)
        self._reserver.yielded(entry, [verdict])
        self._queue.drop(entry.key)
        return Placed({uid: verdict})

    def has_place(self, pod: Pod, candidates: Collection[str]) -> bool:
        """Return whether the pod already has GPUs on one of these nodes."""
        request = self._requests.of(pod)
        return (
            not isinstance(request, str)
            and self._placement.current(pod.metadata.uid, request, candidates) is not None
        )

    def _hold(self, pod: Pod, fits: Fits) -> None:
        uid = pod.metadata.uid
        hold = self._ledger.holds.get(uid)
        until = self._timing.monotonic() + self._hold_s
        if hold is not None and hold.fits == fits:
            until = max(until, hold.until)
        gang = hold.gang if hold else ""
        self._ledger.hold(uid, Hold(fits, until, gang))

    # -- cycles ----------------------------------------------------------------------------

    def advance(self, seconds: float) -> bool:
        """Plan units that are due, in order, for so long; return whether none is left."""
        self._limit.start(seconds)
        self._rank_if_due()
        for entry in list(self._queue):
            if entry.order >= self._cursor and self._plan_if_due(entry):
                self._cursor = max(self._cursor, entry.order)
                if self._from_start or self._limit.passed():
                    break
        else:
            self._from_start = True
        if self._from_start:
            self._cursor, self._from_start = _FIRST, False
        return not any(map(self._queue.due, self._queue))

    def _rank_if_due(self) -> None:
        """Compute the order between GpuQueues again if it is old: what has ended since then may change it."""
        if self._gpu_queues.rank_due():
            self._queue.rank()
            self._cursor = _FIRST

    def _catch_up(self, entry: Entry) -> bool:
        """Plan the pods ahead that are due; return whether no unit is left. Gangs take too long for a filter call."""
        for other in self._queue.ahead(entry):
            if other.gang is not None and self._queue.due(other):
                return False
            if self._plan_if_due(other) and self._limit.passed():
                return False
        return not self._due_ahead(entry)

    def _due_ahead(self, entry: Entry) -> bool:
        return any(map(self._queue.due, self._queue.ahead(entry)))

    def _plan_if_due(self, entry: Entry) -> bool:
        if self._queue.get(entry.key) is not entry or not self._queue.due(entry):
            return False
        entry.planned, entry.again_at = self._ledger.freed, float("inf")
        if entry.gang is None:
            self._plan_single(entry)
        elif (start := self._gangs.plan(entry)) is not None and self._starts(entry, start.pods, start.places):
            self._gangs.hold(entry, start)
        return True

    def _starts(self, entry: Entry, pods: Sequence[Pod], places: dict[str, Fits]) -> bool:
        """Let a unit that fits start, unless units ahead of it must be planned first."""
        if self._due_ahead(entry):
            entry.planned, self._from_start = -1, True
            return False
        self._queue.unreserve(entry)
        self._reserver.yielded(entry, list(places.values()))
        self._decisions.place(entry, pods, Placed(places))
        return True

    def _refuse(self, entry: Entry, pod: Pod, reason: str) -> Waiting:
        """Let a pod wait whose GpuQueue may not have more GPUs; nothing is kept for it."""
        entry.planned = self._ledger.freed
        self._ledger.release_hold(pod.metadata.uid)
        self._queue.unreserve(entry)
        return self._decisions.wait(entry, [pod], Waiting(reason))

    def is_foreign(self, pod: Pod) -> bool:
        """Return whether pod and claim both name another scheduler: then it also writes the claim's status."""
        name, claim = pod.spec.scheduler_name, self._ledger.claim_of(pod)
        return not self._serves(pod) and claim is not None and claim.spec.scheduler_name == name

    def _serves(self, pod: Pod) -> bool:
        """Return whether the GPUs of the pod are allocated here, whatever scheduler binds it."""
        return pod.spec.scheduler_name in self.schedulers or is_delivered_by_claim(pod)

    def reason(self, pod: Pod) -> str:
        """Return why an unbound pod waits; an empty string if its scheduler has not asked for it yet."""
        entry = self._queue.of_pod(pod)
        if entry is not None and entry.reason:
            return entry.reason
        if self.is_foreign(pod):
            return ""
        if not self._serves(pod):
            return other_scheduler(pod)
        gates = foreign_gates(pod)
        return f"the pod waits for scheduling gate {', '.join(gates)}" if gates else self.exclusion(pod)

    def exclusion(self, pod: Pod) -> str:
        """Return why no node with GPUs admits the pod: then kube-scheduler never asks for it."""
        ledger, request = self._ledger, self._requests.of(pod)
        nodes = ledger.cluster.nodes
        if isinstance(request, str) or not nodes or not ledger.eligible.of(pod).isdisjoint(nodes):
            return ""
        verdict = ledger.cluster.place(request, ())
        return sentence(ledger, pod, verdict) if isinstance(verdict, Refused) else ""

    # -- pods ------------------------------------------------------------------------------

    def _plan_single(self, entry: Entry) -> None:
        ledger, uid = self._ledger, entry.key
        pod = ledger.pods.get(uid, entry.pod)
        if pod.spec.node_name or pod.finished or pod.metadata.deletion_timestamp is not None:
            self._queue.drop(uid)
            return
        hold = ledger.holds.get(uid)
        if isinstance(entry.decision, Placed):
            if hold is None and not ledger.reserved(uid):
                # Its scheduler did not ask for it in time.
                self._queue.failed(entry)
            return
        request = self._requests.of(pod)
        if isinstance(request, str):
            self._decisions.wait(entry, [pod], Waiting(request))
        elif ledger.reserved(uid):
            return
        elif hold is not None and hold.fits.request == request and unblocked(ledger, uid, hold.fits):
            # The pods that were preempted for it have left.
            self._starts(entry, [pod], {uid: hold.fits})
        elif refusal := self._gpu_queues.refusal([pod], [request]):
            self._refuse(entry, pod, refusal)
        else:
            nodes = self._placement.nodes_of(entry, pod)
            verdict = self._placement.place_with_room(entry, pod, request, nodes)
            if isinstance(verdict, Refused):
                self._blocked.decide(entry, pod, request, verdict, nodes)
            elif self._starts(entry, [pod], {uid: verdict}):
                self._hold(pod, verdict)
