"""Decide which unit of the queue gets which GPUs, which are reserved for it, or why it waits.

The planner works on the ledger's inventory and does no I/O. A cycle walks the queue in order and
plans the units whose inputs have changed: GPUs became free, or the unit itself is another one. It
works in short slices, so that requests are answered in between.

A unit that fits gets its GPUs at once, as holds in memory, but only if no unit ahead of it still has
to be planned. A unit that does not fit preempts others, or gets a reservation (`reserving.py`), or
waits. The verbs of kube-scheduler, the stand-alone loop, claim statuses and events read the decision.
"""

from collections.abc import Collection, Generator, Iterable, Sequence

from gpufleet.errors import InvalidRequest
from gpufleet.kubernetes import Timing
from gpufleet.kubernetes.annotations import CLAIM
from gpufleet.kubernetes.crds.gpu_claim import GpuClaim
from gpufleet.kubernetes.objects import Pod
from gpufleet.kubernetes.resource_claims import is_delivered_by_claim
from gpufleet.placement import Fits, GangFits, GangRefused, Refused, Request, Verdict
from gpufleet.scheduler.planning.gang_planner import (
    Level,
    Members,
    level_of,
    members_of,
    other_scheduler,
    place_members,
    without_holds,
)
from gpufleet.scheduler.planning.gang_plans import GangPlans
from gpufleet.scheduler.planning.plan import Decided, Decision, Placed, Waiting
from gpufleet.scheduler.planning.preemption import Nomination, Preemption
from gpufleet.scheduler.planning.queue import Entry, Queue, foreign_gates
from gpufleet.scheduler.planning.refusals import gang_sentence, sentence, with_reserved
from gpufleet.scheduler.planning.reserving import Reserver
from gpufleet.scheduler.state import Hold, Ledger, request_of
from gpufleet.scheduler.state.allocations import blocking_pods, leased_places, unblocked
from gpufleet.scheduler.state.indexes import Key
from gpufleet.scheduler.state.node_resources import Room, requested

CATCH_UP_S = 0.004
"""Seconds that a filter call spends on the units ahead of its pod."""

SEARCH_S = 0.02
"""Seconds that a search for victims may take for one pod."""

EVICT_AGAIN_S = 5.0
"""Seconds after which pods are evicted again that are not terminating: the eviction failed or was refused."""

TELL_S = 10.0
"""Seconds after which a change of numbers in a reason is worth an event and a status update."""

_MOST_GROUPS = 8
"""Groups of nodes in which GPUs are sought for a reservation."""

_FIRST = (-(2**63), "", "", "")
_BEING_PLANNED = "pods ahead of it in the queue are being planned"


class Planner:
    """Plans the units of a queue; `decided` collects the decisions to act on."""

    def __init__(
        self,
        ledger: Ledger,
        queue: Queue,
        preemption: Preemption,
        reserver: Reserver,
        gang_plans: GangPlans,
        timing: Timing,
        *,
        scheduler_name: str,
        hold_s: float,
        levels: Sequence[str] = (),
    ) -> None:
        self._ledger = ledger
        self._queue = queue
        self._preemption = preemption
        self._reserver = reserver
        self._gang_plans = gang_plans
        self._timing = timing
        self._hold_s = hold_s
        self._levels = tuple(levels)
        self.schedulers = {"", scheduler_name}
        """The names of the schedulers that ask here."""
        self.decided: list[Decided] = []
        self._requests: dict[Key, tuple[GpuClaim, Request]] = {}
        self._refused: dict[object, Refused] = {}
        self._refused_at = -1
        self._explained: dict[int, tuple[Refused, Refused, str]] = {}
        """Refusals with their sentence, by the identity of the refusal: many pods share one."""
        self._searches: dict[str, tuple[tuple[Pod, ...], Generator[None, None, Nomination | None]]] = {}
        self._sentences: dict[str, str] = {}
        """Why gangs do not fit for which a search is running."""
        self._cursor = _FIRST
        self._from_start = False
        """Whether the walk must begin again: a unit fits, but units ahead of it are due."""
        self._deadline = 0.0

    # -- one pod, for its filter call ------------------------------------------------------

    def plan_pod(self, pod: Pod, candidates: Sequence[str]) -> Decision:
        """Decide for a pod that is scheduled alone, among the nodes that its scheduler offers."""
        self.schedulers.add(pod.spec.scheduler_name)
        self._deadline = self._timing.monotonic() + CATCH_UP_S
        uid = pod.metadata.uid
        entry = self._queue.put_pod(pod)
        request = self._request(pod)
        if isinstance(request, str):
            return self._wait(entry, [pod], Waiting(request))
        verdict: Verdict | None = self._current(uid, request, candidates)
        if verdict is None:
            verdict = self._place(entry, pod, request, candidates)
            if isinstance(verdict, Fits) and self._due_ahead(entry):
                if not self._catch_up(entry):
                    return self._wait(entry, [pod], Waiting(_BEING_PLANNED))
                verdict = self._place(entry, pod, request, candidates)
        entry.planned = self._ledger.freed
        if isinstance(verdict, Refused):
            offered = frozenset(candidates)
            admitted = self._ledger.eligible.of(pod).intersection(self._ledger.cluster.nodes)
            entry.excluded[uid] = admitted - offered
            # The candidates come from a request: an eviction must help the pod for certain.
            return self._block(entry, pod, request, verdict, offered & admitted)
        self._hold(pod, verdict)
        self._reserver.yielded(entry, [verdict])
        self._queue.drop(entry.key)
        return Placed({uid: verdict})

    def has_place(self, pod: Pod, candidates: Collection[str]) -> bool:
        """Return whether the pod already has GPUs on one of these nodes."""
        request = self._request(pod)
        return (
            not isinstance(request, str) and self._current(pod.metadata.uid, request, candidates) is not None
        )

    def _current(self, uid: str, request: Request, nodes: Collection[str]) -> Fits | None:
        """Return the GPUs that the pod already has, if they still fit the request."""
        for fits in leased_places(self._ledger, uid, request):
            if fits.node in nodes and self._ledger.cluster.offers(fits):
                return fits
        hold = self._usable_hold(uid, request, nodes)
        return hold.fits if hold and unblocked(self._ledger, uid, hold.fits) else None

    def _usable_hold(self, uid: str, request: Request, nodes: Collection[str]) -> Hold | None:
        hold = self._ledger.holds.get(uid)
        if hold is None or hold.fits.request != request or hold.fits.node not in nodes:
            return None
        return hold if self._ledger.cluster.offers(hold.fits) else None

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
        self._deadline = self._timing.monotonic() + seconds
        for entry in list(self._queue):
            if entry.order >= self._cursor and self._plan_if_due(entry):
                self._cursor = max(self._cursor, entry.order)
                if self._from_start or self._out_of_time():
                    break
        else:
            self._from_start = True
        if self._from_start:
            self._cursor, self._from_start = _FIRST, False
        return not any(map(self._queue.due, self._queue))

    def _catch_up(self, entry: Entry) -> bool:
        """Plan the pods ahead that are due; return whether no unit is left. Gangs take too long for a filter call."""
        for other in self._queue.ahead(entry):
            if other.gang is not None and self._queue.due(other):
                return False
            if self._plan_if_due(other) and self._out_of_time():
                return False
        return not self._due_ahead(entry)

    def _out_of_time(self) -> bool:
        return self._timing.monotonic() > self._deadline

    def _due_ahead(self, entry: Entry) -> bool:
        return any(map(self._queue.due, self._queue.ahead(entry)))

    def _plan_if_due(self, entry: Entry) -> bool:
        if self._queue.get(entry.key) is not entry or not self._queue.due(entry):
            return False
        entry.planned = self._ledger.freed
        if entry.gang is not None:
            self._plan_gang(entry)
        else:
            self._plan_single(entry)
        return True

    def _starts(self, entry: Entry, pods: Sequence[Pod], places: dict[str, Fits]) -> bool:
        """Let a unit that fits start, unless units ahead of it must be planned first."""
        if self._due_ahead(entry):
            entry.planned, self._from_start = -1, True
            return False
        self._searches.pop(entry.key, None)
        self._queue.unreserve(entry)
        self._reserver.yielded(entry, list(places.values()))
        entry.decision = Placed(places)
        self.decided.append(Decided(entry.name, tuple(pods), entry.decision, gang=entry.gang))
        return True

    def _wait(self, entry: Entry, pods: Sequence[Pod], why: Waiting, victims: Sequence[Pod] = ()) -> Waiting:
        now, before = self._timing.monotonic(), entry.decision
        if victims and now - entry.evicted_at < EVICT_AGAIN_S:
            victims = ()
        elif victims:
            entry.evicted_at = now
        new = not isinstance(before, Waiting) or (before.reserved, before.preempting) != (
            why.reserved,
            why.preempting,
        )
        if victims or new or (before != why and now - entry.told_at >= TELL_S):
            entry.told_at = now
            self.decided.append(Decided(entry.name, tuple(pods), why, tuple(victims), entry.gang))
        entry.decision = why
        return why

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
        ledger, request = self._ledger, self._request(pod)
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
        request = self._request(pod)
        if isinstance(request, str):
            self._wait(entry, [pod], Waiting(request))
        elif ledger.reserved(uid):
            return
        elif hold is not None and hold.fits.request == request and unblocked(ledger, uid, hold.fits):
            # The pods that were preempted for it have left.
            self._starts(entry, [pod], {uid: hold.fits})
        else:
            nodes = self._nodes_of(entry, pod)
            verdict = self._place_with_room(entry, pod, request, nodes)
            if isinstance(verdict, Refused):
                self._block(entry, pod, request, verdict, nodes)
            elif self._starts(entry, [pod], {uid: verdict}):
                self._hold(pod, verdict)

    def _request(self, pod: Pod) -> Request | str:
        """Return the request of a pod, or why it has none."""
        claim = self._ledger.claim_of(pod)
        meta = pod.metadata
        if claim is None:
            return f"GpuClaim {meta.namespace}/{meta.annotations.get(CLAIM, '')} does not exist"
        key = (meta.namespace, claim.metadata.name)
        known = self._requests.get(key)
        if known is not None and known[0] is claim:
            return known[1]
        try:
            request = request_of(claim)
        except InvalidRequest as error:
            return f"the claim is invalid: {error}"
        if len(self._requests) > 2 * len(self._ledger.claims) + 100:
            self._requests.clear()
        self._requests[key] = (claim, request)
        return request

    def _nodes_of(self, entry: Entry, pod: Pod) -> frozenset[str]:
        """Return the nodes that may take the pod, as far as known here."""
        admitted, excluded = self._ledger.eligible.of(pod), entry.excluded.get(pod.metadata.uid)
        if is_delivered_by_claim(pod):
            admitted &= self._ledger.resource_claims.nodes()
        return admitted - excluded if excluded else admitted

    def _place(self, entry: Entry, pod: Pod, request: Request, nodes: Iterable[str]) -> Verdict:
        ignored = self._reserver.ignored(entry, [pod])
        with self._ledger.excluding(pod.metadata.uid), self._ledger.reservations.ignoring(ignored):
            return self._ledger.cluster.place(request, nodes)

    def _place_with_room(self, entry: Entry, pod: Pod, request: Request, nodes: frozenset[str]) -> Verdict:
        """Place a pod on a node that also has the CPU, memory and so on that it requests.

        While no GPUs become free, what one pod was refused is refused to all equal pods.
        """
        if entry.asks is None:
            entry.asks = tuple(sorted(requested(pod).items()))
        if self._refused_at != self._ledger.freed:
            self._refused.clear()
            self._explained.clear()
            self._refused_at = self._ledger.freed
        ignored = self._reserver.ignored(entry, [pod])
        uid = pod.metadata.uid
        alone = not (entry.reservation or uid in self._ledger.holds or self._ledger.held_by(uid))
        key = (request, nodes, entry.asks, tuple(ignored)) if alone else None
        if key in self._refused:
            return self._refused[key]
        verdict = self._place(entry, pod, request, nodes)
        room = Room(self._ledger.resources)
        if isinstance(verdict, Fits) and room.shortage(verdict.node, pod):
            with_room = [node for node in nodes if not room.shortage(node, pod)]
            verdict = self._place(entry, pod, request, with_room)
        if isinstance(verdict, Refused) and key is not None:
            self._refused[key] = verdict
        return verdict

    def _block(
        self, entry: Entry, pod: Pod, request: Request, verdict: Refused, nodes: frozenset[str]
    ) -> Waiting:
        """Decide for a pod that does not fit: preempt, reserve or wait."""
        uid = pod.metadata.uid
        hold = self._usable_hold(uid, request, nodes)
        if hold is not None and not hold.gang:
            why = f"GPUs of {hold.fits.node} are held for the pod until the preempted pods have terminated"
            victims = self._not_leaving(uid, hold)
            return self._wait(entry, [pod], Waiting(why, preempting=True), victims)
        self._ledger.release_hold(uid)
        until = self._timing.monotonic() + SEARCH_S
        with self._ledger.reservations.ignoring(self._reserver.ignored(entry, [pod])):
            found = self._preemption.for_pod(pod, request, nodes, lambda: self._timing.monotonic() > until)
        if found is not None:
            self._queue.unreserve(entry)
            self._preemption.hold([pod], found, "")
            why = f"GPUs of {found.places[0].node} are held for the pod until the preempted pods have terminated"
            return self._wait(entry, [pod], Waiting(why, preempting=True), found.evict)
        reserved = self._reserver.reserve(entry, [pod], [request], [self._nodes_of(entry, pod)])
        known = self._explained.get(id(verdict))
        if known is None or known[0] is not verdict:
            refused = with_reserved(self._ledger, verdict)
            known = verdict, refused, sentence(self._ledger, pod, refused)
            self._explained[id(verdict)] = known
        _, refused, reason = known
        return self._wait(entry, [pod], Waiting(reason + _reserved(reserved), refused, reserved))

    def _not_leaving(self, uid: str, hold: Hold) -> list[Pod]:
        """Return the pods that must leave for a hold, with their gangs, and have not been evicted yet."""
        pods: dict[str, Pod] = {}
        for other in blocking_pods(self._ledger, uid, hold.fits):
            pod = self._ledger.pods.get(other)
            if pod is not None and not pod.finished:
                gang = self._ledger.gangs.of(pod)
                members = self._ledger.gangs.members(gang) if gang is not None else [pod]
                pods.update((member.metadata.uid, member) for member in members if member.spec.node_name)
        return [pod for pod in pods.values() if pod.metadata.deletion_timestamp is None]

    # -- gangs -----------------------------------------------------------------------------

    def _plan_gang(self, entry: Entry) -> None:
        gang = entry.gang
        assert gang is not None
        if gang in self._gang_plans:
            return
        if isinstance(entry.decision, Placed):
            # Its leases could not be written.
            entry.decision = None
        members = members_of(self._ledger, gang, self.schedulers)
        if members.runs:
            self._queue.drop(entry.key)
            return
        requests = [self._request(pod) for pod in members.waiting]
        level = level_of(self._ledger.claim_of(entry.pod), self._levels)
        problem = members.problem or next((each for each in (*requests, level) if isinstance(each, str)), "")
        if problem:
            self._release_holds(members.waiting)
            self._queue.unreserve(entry)
            self._wait(entry, members.waiting, Waiting(problem))
            return
        asked = [each for each in requests if isinstance(each, Request)]
        self._place_gang(entry, members, asked, level if isinstance(level, Level) else None)

    def _place_gang(
        self, entry: Entry, members: Members, requests: list[Request], level: Level | None
    ) -> None:
        assert entry.gang is not None
        nodes = [self._nodes_of(entry, pod) for pod in members.waiting]
        if level is not None and level.required and members.started:
            nodes = self._beside(members.started[0], nodes, level.labels[-1])
        if (searching := self._searches.get(entry.key)) is not None:
            size = len(searching[0])
            if searching[0] == members.waiting[:size]:
                self._continue_search(entry, members, requests[:size], nodes[:size], level)
                return
        for size in sorted({len(members.waiting), members.least}, reverse=True):
            pods = members.waiting[:size]
            with self._ledger.reservations.ignoring(self._reserver.ignored(entry, pods)):
                found = place_members(self._ledger, pods, requests[:size], nodes[:size], level)
            if isinstance(found, GangFits):
                places = dict(zip((pod.metadata.uid for pod in pods), found.members, strict=True))
                if self._starts(entry, [*members.started, *pods], places):
                    self._release_holds(members.waiting)
                    until = self._timing.monotonic() + members.timeout
                    for uid, fits in places.items():
                        self._ledger.hold(uid, Hold(fits, until, entry.gang.name))
                return
        assert isinstance(found, GangRefused)
        requests, nodes = requests[:size], nodes[:size]
        self._sentences[entry.key] = gang_sentence(self._ledger, entry.gang.name, pods, found)
        self._continue_search(entry, members, requests, nodes, level)

    def _beside(self, pod: Pod, nodes: Sequence[frozenset[str]], label: str) -> list[frozenset[str]]:
        """Return only the nodes in the group of a member that has started."""
        places = [pod.spec.node_name, *self._ledger.held_by(pod.metadata.uid)]
        known = next((self._ledger.nodes[name] for name in places if name in self._ledger.nodes), None)
        value = known.metadata.labels.get(label) if known is not None else None
        group = frozenset(
            name for name, node in self._ledger.nodes.items() if node.metadata.labels.get(label) == value
        )
        return [some & group for some in nodes]

    def _continue_search(
        self,
        entry: Entry,
        members: Members,
        requests: Sequence[Request],
        nodes: Sequence[frozenset[str]],
        level: Level | None,
    ) -> None:
        """Preempt, reserve or wait for a gang that does not fit.

        If one group of nodes is required, pods are preempted in the largest group only, and GPUs are
        reserved in the group of the last reservation or in the first one that will fit.
        """
        pods = members.waiting[: len(requests)]
        groups = [nodes]
        if level is not None and level.required:
            last = {fits.node for fits in entry.reservation.places} if entry.reservation else set[str]()
            within = level.within(self._ledger, frozenset[str]().union(*nodes))
            within.sort(key=lambda group: group.isdisjoint(last))
            groups = [[some & group for some in nodes] for group in within[:_MOST_GROUPS]]
        if not groups or not self._preempts_for_gang(entry, pods, requests, groups[0]):
            self._release_holds(members.waiting)
            tries = (self._reserver.reserve(entry, pods, requests, group) for group in groups)
            reserved = next(filter(None, tries), ())
            reason = self._sentences.pop(entry.key, "") + _reserved(reserved)
            self._wait(entry, members.waiting, Waiting(reason, reserved=reserved))

    def _preempts_for_gang(
        self, entry: Entry, pods: Sequence[Pod], requests: Sequence[Request], nodes: Sequence[frozenset[str]]
    ) -> bool:
        """Preempt pods for a gang that does not fit; return False if that does not help.

        The search may take several slices; until it ends, the unit is due.
        """
        assert entry.gang is not None
        why = f"gang {entry.gang.name}: GPUs are held for it until the preempted pods have terminated"
        holds = {pod.metadata.uid: self._ledger.holds.get(pod.metadata.uid) for pod in pods}
        if all(hold is not None and self._ledger.cluster.offers(hold.fits) for hold in holds.values()):
            victims = {
                victim.metadata.uid: victim
                for uid, hold in holds.items()
                if hold is not None
                for victim in self._not_leaving(uid, hold)
            }
            self._wait(entry, pods, Waiting(why, preempting=True), list(victims.values()))
            return True
        known, search = self._searches.pop(entry.key, ((), None))
        try:
            with self._ledger.reservations.ignoring(self._reserver.ignored(entry, pods)):
                if search is None or known != tuple(pods):
                    cluster = without_holds(self._ledger, pods)
                    search = self._preemption.for_gang(pods, requests, nodes, cluster, self._out_of_time)
                next(search)
        except StopIteration as end:
            found: Nomination | None = end.value
        else:
            self._searches[entry.key] = (tuple(pods), search)
            entry.planned = -1
            return True
        if found is None:
            return False
        self._queue.unreserve(entry)
        self._preemption.hold(pods, found, entry.gang.name)
        self._wait(entry, pods, Waiting(why, preempting=True), found.evict)
        return True

    def _release_holds(self, pods: Iterable[Pod]) -> None:
        """Release the holds of members without a plan."""
        for pod in pods:
            self._ledger.release_hold(pod.metadata.uid)


def _reserved(places: Sequence[Fits]) -> str:
    """Return which GPUs are reserved, as the end of a sentence."""
    if not places:
        return ""
    nodes = list(dict.fromkeys(fits.node for fits in places))
    number = sum(len(fits.gpus) for fits in places)
    some = ", ".join(nodes[:4]) + (" …" if len(nodes) > 4 else "")
    return f"; {number} GPU{'s' if number > 1 else ''} of {some} reserved until all are free"
