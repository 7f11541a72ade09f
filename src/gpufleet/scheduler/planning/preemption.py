"""Preempt pods of lower priority, or on borrowed GPUs, for their GPUs.

The extender's preempt verb takes part in kube-scheduler's own preemption. kube-scheduler calls it
only for nodes where pods must leave for a reason that it knows (CPU, memory, ports). Where only
GPUs are missing, it finds no victims and never calls. So a unit that does not fit also starts
preemption here: the least harmful victims are evicted, and their GPUs are held for the unit until
they have had their grace period. The members of a gang are evicted all together or not at all. Pods
that a disruption budget protects now are no victims, because the API would refuse to evict them.

With GpuQueues, priority counts within a queue only. A unit inside the guarantee of its queue also reclaims GPUs that
others have borrowed, from the youngest units first (`reclaim.py`).
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from gpufleet.errors import OperationRefused
from gpufleet.kubernetes import Timing
from gpufleet.kubernetes.objects import Pod
from gpufleet.placement import Eviction, Fits, Inventory, Request, Victim, evictions
from gpufleet.placement.gang import order_of
from gpufleet.placement.request import WHOLE
from gpufleet.placement.victims import least_harmful
from gpufleet.scheduler.planning.reclaim import EvictablePods, Targets
from gpufleet.scheduler.state import Hold, Ledger
from gpufleet.scheduler.state.allocations import blocking_pods
from gpufleet.scheduler.state.gang_identity import Gang
from gpufleet.scheduler.state.holders import holder_key, uid_of
from gpufleet.scheduler.state.node_resources import Room
from gpufleet.scheduler.state.run_times import grace_left, lost_work

MAX_NODES = 200
"""Maximum number of nodes that are considered, those with the lowest priorities first."""

_MEMBER_OPTIONS = 4
"""Number of evictions compared for each member of a gang; few, because a gang may have many members."""

_TERMINATING = -(2**31)
"""The priority of pods that terminate anyway: evicting them costs nothing."""

RETRY_S = 1.0
"""Seconds after which a search that found nothing is repeated for the same request."""

RECLAIM_AGAIN_S = 5.0
"""Seconds after which a unit inside a guarantee looks for borrowed GPUs again if it found none."""


@dataclass(frozen=True)
class Nomination:
    """The GPUs that each pod gets, in order, and the pods to evict for them."""

    places: tuple[Fits, ...]
    evict: tuple[Pod, ...]
    seconds: float
    """How long the victims may take to terminate."""
    reclaims: str = ""
    """The GpuQueue whose guarantee is reclaimed, if that is the reason."""


class Preemption:
    """Finds victims among the pods with leases."""

    def __init__(
        self, ledger: Ledger, timing: Timing, hold_s: float, evictable: EvictablePods, *, enabled: bool = True
    ) -> None:
        self._ledger = ledger
        self._timing = timing
        self._evictable = evictable
        self._hold_s = hold_s
        self._enabled = enabled
        self._in_vain: dict[object, tuple[int, float]] = {}

    def victims_per_node(
        self, pod: Pod, request: Request, proposed: Mapping[str, Iterable[str]]
    ) -> dict[str, list[str]]:
        """Return the full victim list per proposed node; leave out nodes where no eviction helps.

        kube-scheduler accepts victims on that node only, so no gang with members elsewhere is among them.
        """
        found: dict[str, list[str]] = {}
        for node, uids in proposed.items():
            theirs = list(uids)
            targets = self._evictable.by_priority([pod])
            options = _Options(self._ledger, self._timing, self._ledger.cluster, targets)
            alone = [
                victim
                for victim in options.on(node)
                if all(holder.rpartition("@")[2] == node for holder in victim.also)
            ]
            if node not in self._ledger.nodes or self._breaks_gang(node, theirs):
                continue
            candidates = {node: [*alone, *_terminating(node, theirs)]}
            if found_here := evictions(self._ledger.cluster, request, candidates):
                more = [uid_of(holder) for victim in found_here[0].victims for holder in victim.holders]
                if together := [*theirs, *(uid for uid in more if uid not in theirs)]:
                    found[node] = together
        return found

    def for_pod(
        self,
        pod: Pod,
        request: Request,
        nodes: Iterable[str],
        stop: Callable[[], bool],
        *,
        reclaims: bool = True,
    ) -> Nomination | None:
        """Return the victims for a pod that does not fit; None if preemption can't help.

        Only a unit that `reclaims` takes back what its GpuQueue has lent.
        """
        names = frozenset(nodes)
        if not self._may_preempt([pod]):
            return None
        for targets in self._evictable.for_unit([pod], [request], reclaims=reclaims):
            key = (request, targets.key, names)
            if self._was_in_vain(key, targets):
                continue
            with self._ledger.excluding(pod.metadata.uid):
                cluster = self._ledger.cluster
                options = _Options(self._ledger, self._timing, cluster, targets)
                allowed = targets.nodes(names)
                best = least_harmful(cluster, request, options.lowest_first(allowed, pod), MAX_NODES, stop)
            if best is not None:
                return self._nomination([best.fits], best.victims, targets)
            self._note_in_vain(key)
        return None

    def for_gang(
        self,
        pods: Sequence[Pod],
        requests: Sequence[Request],
        nodes: Sequence[frozenset[str]],
        cluster: Inventory,
        stop: Callable[[], bool],
        *,
        reclaims: bool = True,
    ) -> Generator[None, None, Nomination | None]:
        """Search victims for all members of a gang and return them; None if preemption can't help.

        It yields when `stop` says so, to be continued later. `cluster` is the inventory without the
        members' holds. No pod is evicted for half a gang.
        """
        if not self._may_preempt(pods):
            return None
        for targets in self._evictable.for_unit(pods, requests, reclaims=reclaims):
            key = (tuple(requests), targets.key, tuple(nodes))
            if not self._was_in_vain(key, targets):
                allowed = [targets.nodes(each) for each in nodes]
                found = yield from self._search(pods, requests, allowed, cluster, targets, key, stop)
                if found is not None:
                    return found
        return None

    def _search(
        self,
        pods: Sequence[Pod],
        requests: Sequence[Request],
        nodes: Sequence[frozenset[str]],
        cluster: Inventory,
        targets: Targets,
        key: object,
        stop: Callable[[], bool],
    ) -> Generator[None, None, Nomination | None]:
        trial, places, victims = cluster.copy(), dict[int, Fits](), list[Victim]()
        options = _Options(self._ledger, self._timing, trial, targets)
        for at in order_of(requests, nodes) if options.exist() else ():
            if stop():
                yield
            verdict = trial.place(requests[at], nodes[at])
            if not isinstance(verdict, Fits):
                candidates = options.lowest_first(nodes[at], pods[at])
                best = least_harmful(trial, requests[at], candidates, _MEMBER_OPTIONS)
                if best is None:
                    break
                options.evict(best)
                victims += best.victims
                verdict = best.fits
            trial.allocate(holder_key(pods[at].metadata.uid, verdict.node), verdict)
            places[at] = verdict
        if len(places) < len(pods):
            self._note_in_vain(key)
            return None
        found = self._nomination([places[at] for at in range(len(pods))], victims, targets)
        return found if self._still_right(found, victims, pods) else None

    def may_evict(self, pods: Sequence[Pod], requests: Sequence[Request], victims: Sequence[Pod]) -> bool:
        """Return whether all of these pods may still be evicted for a unit.

        While an eviction was refused, a borrowed unit may have come inside the guarantee of its queue.
        """
        targets = list(self._evictable.for_unit(pods, requests))
        return all(any(each.rank(victim) is not None for each in targets) for victim in victims)

    def in_flight(self, uid: str) -> bool:
        """Return whether GPUs are held for the pod and all other pods on them are terminating."""
        hold = self._ledger.holds.get(uid)
        if hold is None:
            return False
        others = (self._ledger.pods.get(other) for other in blocking_pods(self._ledger, uid, hold.fits))
        return all(pod is None or pod.finished or pod.metadata.deletion_timestamp for pod in others)

    def hold(self, pods: Sequence[Pod], found: Nomination, gang: str) -> None:
        """Hold the GPUs for the pods until the victims must have terminated."""
        until = self._timing.monotonic() + found.seconds + self._hold_s
        for pod, fits in zip(pods, found.places, strict=True):
            self._ledger.hold(pod.metadata.uid, Hold(fits, until, gang))

    def forget_searches(self) -> None:
        """Repeat searches that found nothing: budgets that protected pods have changed."""
        self._in_vain.clear()

    def _may_preempt(self, pods: Sequence[Pod]) -> bool:
        return self._enabled and not any(pod.spec.preemption_policy == "Never" for pod in pods)

    def _was_in_vain(self, key: object, targets: Targets) -> bool:
        """Return whether the same search has found nothing, and nothing has changed or little time has passed since.

        Which GPUs are borrowed also changes without allocations: with quotas, and when a pod is bound.
        """
        allocations, at = self._in_vain.get(key, (-1, float("-inf")))
        unchanged = allocations == self._ledger.allocations and not targets.reclaims
        return unchanged or self._timing.monotonic() - at < RETRY_S

    def _note_in_vain(self, key: object) -> None:
        if len(self._in_vain) > 1_000:
            self._in_vain.clear()
        self._in_vain[key] = (self._ledger.allocations, self._timing.monotonic())

    def _nomination(self, places: Sequence[Fits], victims: Iterable[Victim], targets: Targets) -> Nomination:
        uids = dict.fromkeys(uid_of(holder) for victim in victims for holder in victim.holders)
        pods = [pod for uid in uids if (pod := self._ledger.pods.get(uid)) is not None]
        now = self._timing.now()
        seconds = min(max((grace_left(pod, now) for pod in pods), default=0.0), targets.grace)
        evict = tuple(pod for pod in pods if pod.metadata.deletion_timestamp is None)
        return Nomination(tuple(places), evict, seconds, targets.reclaims)

    def _still_right(self, found: Nomination, victims: Iterable[Victim], pods: Sequence[Pod]) -> bool:
        """Return whether all members fit after the evictions: the search may have taken several turns."""
        trial = self._ledger.cluster.copy()
        for holder in (holder for victim in victims for holder in victim.holders):
            trial.free(holder)
        leaving = [(pod.spec.node_name, pod) for victim in victims for pod in self._leaving(victim)]
        room = Room(self._ledger.resources, leaving)
        try:
            for pod, fits in zip(pods, found.places, strict=True):
                if room.shortage(fits.node, pod):
                    return False
                room.take(fits.node, pod)
                trial.free(holder_key(pod.metadata.uid, fits.node))
                trial.allocate(holder_key(pod.metadata.uid, fits.node), fits)
        except OperationRefused:
            return False
        return True

    def _leaving(self, victim: Victim) -> list[Pod]:
        pods = (self._ledger.pods.get(uid_of(holder)) for holder in victim.holders)
        return [pod for pod in pods if pod is not None]

    def _breaks_gang(self, node: str, uids: Iterable[str]) -> bool:
        """Return whether one of the pods is a member of a gang that also runs on other nodes."""
        pods = (self._ledger.pods.get(uid) for uid in uids)
        gangs = {gang for pod in pods if pod is not None and (gang := self._ledger.gangs.of(pod))}
        return any(
            pod.spec.node_name != node for gang in gangs for _, pod in running_members(self._ledger, gang)
        )


class _Options:
    """The pods and gangs in a cluster that may be evicted, by node, found as they are needed."""

    def __init__(self, ledger: Ledger, timing: Timing, cluster: Inventory, targets: Targets) -> None:
        self._ledger = ledger
        self._cluster = cluster
        self._rank = targets.rank
        self._now = timing.now()
        self._on: dict[str, list[Victim]] = {}
        self._lowest_on: dict[str, int | None] = {}
        self._gangs: dict[Gang, Victim | None] = {}

    def exist(self) -> bool:
        """Return whether there is any such pod."""
        return any(self._lowest(node) is not None for node in self._cluster.nodes)

    def lowest_first(self, nodes: Iterable[str], pod: Pod) -> Iterator[tuple[str, list[Victim]]]:
        """Yield the nodes with victims and room for the pod, those with the lowest rank first."""
        ranked = [(lowest, node) for node in nodes if (lowest := self._lowest(node)) is not None]
        for _, node in sorted(ranked)[:MAX_NODES]:
            victims = self.on(node)
            leaving = [(node, other) for victim in victims for other in self._leaving(victim, node)]
            if victims and not Room(self._ledger.resources, leaving).shortage(node, pod):
                yield node, victims

    def on(self, node: str) -> list[Victim]:
        """Return the victims on a node."""
        found = self._on.get(node)
        if found is None:
            found = self._on[node] = list(self._find(node)) if node in self._cluster.nodes else []
        return found

    def evict(self, eviction: Eviction) -> None:
        """Free the GPUs of victims; they are no options any more."""
        gone = {holder for victim in eviction.victims for holder in victim.holders}
        for holder in gone:
            self._cluster.free(holder)
            self._on.pop(holder.rpartition("@")[2], None)
            self._lowest_on.pop(holder.rpartition("@")[2], None)

    def _lowest(self, node: str) -> int | None:
        """Return the lowest rank on a node; None if no pod may be evicted."""
        if node not in self._lowest_on:
            pods = (self._ledger.pods.get(uid_of(holder)) for holder in self._cluster.holders_on(node))
            ranks = (self._rank(pod) for pod in pods if pod is not None)
            self._lowest_on[node] = min((rank for rank in ranks if rank is not None), default=None)
        return self._lowest_on[node]

    def _find(self, node: str) -> Iterator[Victim]:
        seen: set[Gang] = set()
        for holder in self._cluster.holders_on(node):
            pod = self._ledger.pods.get(uid_of(holder))
            if pod is None or pod.spec.node_name != node or self._rank(pod) is None:
                continue
            gang = self._ledger.gangs.of(pod)
            if gang is None:
                victim = self._victim(holder, [(holder, pod)])
            elif gang in seen:
                continue
            else:
                seen.add(gang)
                if gang not in self._gangs:
                    self._gangs[gang] = self._victim(holder, running_members(self._ledger, gang))
                victim = _leading(self._gangs[gang], holder)
            if victim is not None:
                yield victim

    def _victim(self, holder: str, pods: Sequence[tuple[str, Pod]]) -> Victim | None:
        """Return these pods as a victim; None if one may not be evicted or a disruption budget protects it."""
        ranks = {key: self._rank(pod) for key, pod in pods}
        if None in ranks.values():
            return None
        staying = [(key, pod) for key, pod in pods if pod.metadata.deletion_timestamp is None]
        if not self._ledger.budgets.allow([pod for _, pod in staying]):
            return None
        staying_ranks = (rank for key, _ in staying if (rank := ranks[key]) is not None)
        highest = max(staying_ranks, default=_TERMINATING)
        lost = sum(lost_work(pod, self._gpus(key), self._now) for key, pod in staying)
        return Victim(holder, highest, tuple(key for key, _ in pods if key != holder), lost)

    def _gpus(self, holder: str) -> float:
        held = self._cluster.allocations.get(holder)
        return len(held.gpus) * max(held.milli, 1) / WHOLE if held is not None else 0.0

    def _leaving(self, victim: Victim, node: str) -> list[Pod]:
        pods = (self._ledger.pods.get(uid_of(holder)) for holder in victim.holders)
        return [pod for pod in pods if pod is not None and pod.spec.node_name == node]


def running_members(ledger: Ledger, gang: Gang) -> list[tuple[str, Pod]]:
    """Return the running members of a gang by their inventory key."""
    return [
        (holder_key(pod.metadata.uid, pod.spec.node_name), pod)
        for pod in ledger.gangs.pods(gang)
        if pod.spec.node_name and not pod.finished
    ]


def _leading(victim: Victim | None, holder: str) -> Victim | None:
    """Return a gang as a victim on the node of this member."""
    if victim is None or victim.holder == holder:
        return victim
    also = tuple(other for other in victim.holders if other != holder)
    return Victim(holder, victim.priority, also, victim.lost)


def _terminating(node: str, uids: Iterable[str]) -> list[Victim]:
    """Return kube-scheduler's own victims, which terminate anyway."""
    return [Victim(holder_key(uid, node), _TERMINATING) for uid in uids]


def not_evicted(ledger: Ledger, uid: str, hold: Hold) -> list[Pod]:
    """Return the pods that must leave for a hold, with their gangs, and have not been evicted yet."""
    pods: dict[str, Pod] = {}
    for other in blocking_pods(ledger, uid, hold.fits):
        pod = ledger.pods.get(other)
        if pod is not None and not pod.finished:
            gang = ledger.gangs.of(pod)
            members = ledger.gangs.members(gang) if gang is not None else [pod]
            pods.update((member.metadata.uid, member) for member in members if member.spec.node_name)
    return [pod for pod in pods.values() if pod.metadata.deletion_timestamp is None]
