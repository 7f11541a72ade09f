"""Decide for a gang: it starts, preempts others, gets a reservation, or waits.

The search for pods to preempt may take several slices; until it ends, the gang is due.
"""

from collections.abc import Collection, Generator, Iterable, Sequence
from dataclasses import dataclass

from gpufleet.kubernetes import Timing
from gpufleet.kubernetes.objects import Pod
from gpufleet.placement import Fits, GangFits, GangRefused, Request
from gpufleet.scheduler.planning.decisions import Decisions
from gpufleet.scheduler.planning.gang_planner import (
    Level,
    Members,
    level_of,
    members_of,
    place_members,
    without_holds,
)
from gpufleet.scheduler.planning.gang_plans import GangPlans
from gpufleet.scheduler.planning.plan import Placed, Waiting
from gpufleet.scheduler.planning.pod_placement import PodPlacement
from gpufleet.scheduler.planning.preemption import RECLAIM_AGAIN_S, Nomination, Preemption, not_evicted
from gpufleet.scheduler.planning.queue import Entry, Queue
from gpufleet.scheduler.planning.refusals import gang_sentence, reserved_suffix
from gpufleet.scheduler.planning.requests import PodRequests
from gpufleet.scheduler.planning.reserving import Reserver
from gpufleet.scheduler.planning.time_limit import TimeLimit
from gpufleet.scheduler.queues.gpu_queues import GpuQueues
from gpufleet.scheduler.state import Hold, Ledger
from gpufleet.scheduler.state.allocations import unblocked

_MOST_GROUPS = 8
"""Groups of nodes in which GPUs are sought for a reservation."""


@dataclass(frozen=True)
class GangStart:
    """The places with which a gang can start now."""

    pods: tuple[Pod, ...]
    places: dict[str, Fits]
    members: Members


class GangPlacement:
    """Places gangs; `schedulers` are the names of the schedulers that ask here."""

    def __init__(
        self,
        ledger: Ledger,
        queue: Queue,
        preemption: Preemption,
        reserver: Reserver,
        gpu_queues: GpuQueues,
        placement: PodPlacement,
        requests: PodRequests,
        decisions: Decisions,
        gang_plans: GangPlans,
        limit: TimeLimit,
        timing: Timing,
        *,
        schedulers: Collection[str],
        levels: Sequence[str],
    ) -> None:
        self._ledger = ledger
        self._queue = queue
        self._preemption = preemption
        self._reserver = reserver
        self._gpu_queues = gpu_queues
        self._placement = placement
        self._requests = requests
        self._decisions = decisions
        self._gang_plans = gang_plans
        self._limit = limit
        self._timing = timing
        self._schedulers = schedulers
        self._levels = tuple(levels)
        self._searches: dict[str, tuple[tuple[Pod, ...], Generator[None, None, Nomination | None]]] = {}
        self._sentences: dict[str, str] = {}
        """Why gangs do not fit for which a search is running."""

    def plan(self, entry: Entry) -> GangStart | None:
        """Return how a gang can start now; None if it waits, has started, or is planned already."""
        gang = entry.gang
        assert gang is not None
        if gang in self._gang_plans:
            return None
        if isinstance(entry.decision, Placed):
            # Its leases could not be written.
            entry.decision = None
        members = members_of(self._ledger, gang, self._schedulers)
        if members.runs:
            self._queue.drop(entry.key)
            return None
        requests = [self._requests.of(pod) for pod in members.waiting]
        level = level_of(self._ledger.claim_of(entry.pod), self._levels)
        problem = members.problem or next((each for each in (*requests, level) if isinstance(each, str)), "")
        asked = [each for each in requests if isinstance(each, Request)]
        if not problem:
            # More members than needed may wait for the limit; those that are needed start without them.
            least = max(members.least, 1)
            problem = self._gpu_queues.refusal(members.waiting[:least], asked[:least])
        if problem:
            self._release_holds(members.waiting)
            self._queue.unreserve(entry)
            self._decisions.wait(entry, members.waiting, Waiting(problem))
            return None
        if (start := self._on_freed(entry, members, asked)) is not None:
            return start
        return self._place(entry, members, asked, level if isinstance(level, Level) else None)

    def hold(self, entry: Entry, start: GangStart) -> None:
        """Hold the places of a gang that starts."""
        assert entry.gang is not None
        self._searches.pop(entry.key, None)
        self._release_holds(start.members.waiting)
        until = self._timing.monotonic() + start.members.timeout
        for uid, fits in start.places.items():
            self._ledger.hold(uid, Hold(fits, until, entry.gang.name))

    def _on_freed(self, entry: Entry, members: Members, requests: Sequence[Request]) -> GangStart | None:
        """Return the start of a gang on the GPUs that were held for it, once the preempted pods have left all of them."""
        if not isinstance(entry.decision, Waiting) or not entry.decision.preempting:
            return None
        ledger, pods, places = self._ledger, list[Pod](), dict[str, Fits]()
        for pod, request in zip(members.waiting, requests, strict=True):
            uid, hold = pod.metadata.uid, ledger.holds.get(pod.metadata.uid)
            if hold is None:
                continue
            fits = hold.fits
            if fits.request != request or not ledger.cluster.offers(fits) or not unblocked(ledger, uid, fits):
                return None
            pods.append(pod)
            places[uid] = fits
        if not pods or len(pods) < members.least:
            return None
        return GangStart((*members.started, *pods), places, members)

    def _place(
        self, entry: Entry, members: Members, requests: list[Request], level: Level | None
    ) -> GangStart | None:
        assert entry.gang is not None
        nodes = [self._placement.nodes_of(entry, pod) for pod in members.waiting]
        if level is not None and level.required and members.started:
            nodes = self._beside(members.started[0], nodes, level.labels[-1])
        if (searching := self._searches.get(entry.key)) is not None:
            size = len(searching[0])
            if searching[0] == members.waiting[:size]:
                self._continue_search(entry, members, requests[:size], nodes[:size], level)
                return None
        for size in sorted({len(members.waiting), members.least}, reverse=True):
            pods = members.waiting[:size]
            if size > members.least and self._gpu_queues.refusal(pods, requests[:size]):
                continue
            with self._ledger.reservations.ignoring(self._reserver.ignored(entry, pods)):
                found = place_members(self._ledger, pods, requests[:size], nodes[:size], level)
            if isinstance(found, GangFits):
                places = dict(zip((pod.metadata.uid for pod in pods), found.members, strict=True))
                return GangStart((*members.started, *pods), places, members)
        assert isinstance(found, GangRefused)
        requests, nodes = requests[:size], nodes[:size]
        self._sentences[entry.key] = gang_sentence(self._ledger, entry.gang.name, pods, found)
        self._continue_search(entry, members, requests, nodes, level)
        return None

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
            note = self._gpu_queues.note(pods[0])
            reason = self._sentences.pop(entry.key, "") + note + reserved_suffix(reserved)
            self._decisions.wait(entry, members.waiting, Waiting(reason, reserved=reserved))
            if entry.is_guaranteed and self._gpu_queues.entitlement(pods, requests) is not None:
                entry.again_at = self._timing.monotonic() + RECLAIM_AGAIN_S

    def _preempts_for_gang(
        self, entry: Entry, pods: Sequence[Pod], requests: Sequence[Request], nodes: Sequence[frozenset[str]]
    ) -> bool:
        """Preempt pods for a gang that does not fit; return False if that does not help."""
        assert entry.gang is not None
        why = f"gang {entry.gang.name}: GPUs are held for it until the preempted pods have terminated"
        holds = {pod.metadata.uid: self._ledger.holds.get(pod.metadata.uid) for pod in pods}
        if all(hold is not None and self._ledger.cluster.offers(hold.fits) for hold in holds.values()):
            victims = {
                victim.metadata.uid: victim
                for uid, hold in holds.items()
                if hold is not None
                for victim in not_evicted(self._ledger, uid, hold)
            }
            leaving = list(victims.values())
            if not entry.reclaims or self._preemption.may_evict(pods, requests, leaving):
                self._decisions.wait(entry, pods, Waiting(why, preempting=True), leaving)
                return True
            self._release_holds(pods)
        known, search = self._searches.pop(entry.key, ((), None))
        try:
            with self._ledger.reservations.ignoring(self._reserver.ignored(entry, pods)):
                if search is None or known != tuple(pods):
                    cluster = without_holds(self._ledger, pods)
                    search = self._preemption.for_gang(
                        pods, requests, nodes, cluster, self._limit.passed, reclaims=entry.is_guaranteed
                    )
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
        entry.reclaims = found.reclaims
        self._preemption.hold(pods, found, entry.gang.name)
        self._reserver.yielded(entry, found.places)
        self._decisions.wait(entry, pods, Waiting(why, preempting=True), found.evict)
        return True

    def _release_holds(self, pods: Iterable[Pod]) -> None:
        """Release the holds of members without a plan."""
        for pod in pods:
            self._ledger.release_hold(pod.metadata.uid)
