"""Preempt pods of lower priority for their GPUs.

The extender's preempt verb takes part in kube-scheduler's own preemption. kube-scheduler calls it
only for nodes where pods must leave for a reason that it knows (CPU, memory, ports). Where only
GPUs are missing, it finds no victims and never calls. So a refused pod also starts preemption
here: the least harmful victims are evicted, and their GPUs are held for the pod meanwhile. An
eviction that failed, or that a disruption budget blocked, is retried when the pod is filtered again.
"""

from collections.abc import Iterable, Mapping, Sequence

from gpufleet.kubernetes import Timing
from gpufleet.kubernetes.objects import Pod
from gpufleet.placement import Eviction, Fits, Inventory, Request, Victim, evictions
from gpufleet.placement.gang import order_of
from gpufleet.placement.victims import least_harmful
from gpufleet.scheduler.state import Hold, Ledger
from gpufleet.scheduler.state.eligible_nodes import eligible_nodes
from gpufleet.scheduler.state.ledger import holder_key, uid_of

MAX_NODES = 200
"""Maximum number of nodes that are considered, those with the lowest priorities first."""

_MEMBER_OPTIONS = 8
"""Number of evictions compared for each member of a gang; few, because a gang may have many members."""

_TERMINATING = -(2**31)
"""The priority of pods that terminate anyway: evicting them costs nothing."""

EVICTION_HOLD_S = 120.0
"""Seconds that GPUs are held while the victims terminate."""


class Preemption:
    """Finds victims among the pods with leases."""

    def __init__(self, ledger: Ledger, timing: Timing) -> None:
        self._ledger = ledger
        self._timing = timing

    def victims_per_node(
        self, pod: Pod, request: Request, proposed: Mapping[str, Iterable[str]]
    ) -> dict[str, list[str]]:
        """Return the full victim list per proposed node; leave out nodes where no eviction helps."""
        found: dict[str, list[str]] = {}
        for node, uids in proposed.items():
            victims = list(uids)
            candidates = {
                node: [*self._victims_on(self._ledger.cluster, pod, node), *_terminating(node, victims)]
            }
            options = (
                evictions(self._ledger.cluster, request, candidates) if node in self._ledger.nodes else []
            )
            if options:
                more = [uid_of(victim.holder) for victim in options[0].victims]
                if together := [*victims, *(uid for uid in more if uid not in victims)]:
                    found[node] = together
        return found

    def nominate(self, pod: Pod, request: Request, candidates: Sequence[str]) -> list[Pod]:
        """Hold GPUs for a refused pod and return the pods to evict; none if preemption can't help."""
        uid = pod.metadata.uid
        if pod.spec.preemption_policy == "Never" or self._evictions_in_flight(uid):
            return []
        with self._ledger.excluding(uid):
            best = self._best(self._ledger.cluster, pod, request, candidates, MAX_NODES)
        if best is None:
            self._ledger.release_hold(uid)
            return []
        self._hold(pod, best.fits, "")
        return self._to_evict(best.victims)

    def nominate_gang(
        self, gang: str, pods: Sequence[Pod], requests: Sequence[Request], cluster: Inventory
    ) -> list[Pod] | None:
        """Hold GPUs for all members of a gang and return the pods to evict; None if preemption can't help.

        No pod is evicted for half a gang. `cluster` is the inventory without the members' holds.
        """
        if any(pod.spec.preemption_policy == "Never" for pod in pods):
            return None
        if all(self._evictions_in_flight(pod.metadata.uid) for pod in pods):
            return []
        lowest = min(pods, key=priority_of)
        trial, places, victims = cluster.copy(), dict[int, Fits](), list[Victim]()
        nodes = eligible_nodes(self._ledger.nodes.values(), pods)
        areas = {some: trial.index().places(some)[0] for some in set(nodes)}
        for at in order_of(requests, nodes):
            verdict = trial.place(requests[at], areas[nodes[at]])
            if not isinstance(verdict, Fits):
                best = self._best(trial, lowest, requests[at], tuple(nodes[at]), _MEMBER_OPTIONS)
                if best is None:
                    return None
                for victim in best.victims:
                    trial.free(victim.holder)
                victims += best.victims
                verdict = best.fits
            trial.allocate(holder_key(pods[at].metadata.uid, verdict.node), verdict)
            places[at] = verdict
        for at, fits in places.items():
            self._hold(pods[at], fits, gang)
        return self._to_evict(victims)

    def _hold(self, pod: Pod, fits: Fits, gang: str) -> None:
        until = self._timing.monotonic() + EVICTION_HOLD_S
        self._ledger.hold(pod.metadata.uid, Hold(fits, until, gang))

    def _evictions_in_flight(self, uid: str) -> bool:
        """Return whether GPUs are held for the pod and all other pods on them are terminating."""
        hold = self._ledger.holds.get(uid)
        if hold is None:
            return False
        others = (self._ledger.pods.get(other) for other in self._ledger.blocking_pods(uid, hold.fits))
        return all(pod is None or pod.finished or pod.metadata.deletion_timestamp for pod in others)

    def _best(
        self, cluster: Inventory, pod: Pod, request: Request, candidates: Sequence[str], limit: int
    ) -> Eviction | None:
        """Return the least harmful of the first `limit` evictions that help."""
        return least_harmful(cluster, request, self._nodes_with_victims(cluster, pod, candidates), limit)

    def _nodes_with_victims(
        self, cluster: Inventory, pod: Pod, candidates: Sequence[str]
    ) -> list[tuple[str, list[Victim]]]:
        nodes = {holder.rpartition("@")[2] for holder in cluster.allocations}.intersection(candidates)
        found = [(node, self._victims_on(cluster, pod, node)) for node in sorted(nodes)]
        usable = [pair for pair in found if pair[1] and pair[0] in cluster.nodes]
        usable.sort(key=lambda pair: (min(victim.priority for victim in pair[1]), pair[0]))
        return usable[:MAX_NODES]

    def _victims_on(self, cluster: Inventory, pod: Pod, node: str) -> list[Victim]:
        """Return the pods of lower priority on a node."""
        victims = []
        for holder in cluster.holders_on(node):
            other = self._ledger.pods.get(uid_of(holder))
            if other is None or other.spec.node_name != node or priority_of(other) >= priority_of(pod):
                continue
            terminating = other.metadata.deletion_timestamp is not None
            victims.append(Victim(holder, _TERMINATING if terminating else priority_of(other)))
        return victims

    def _to_evict(self, victims: Iterable[Victim]) -> list[Pod]:
        """Return the victims that are not terminating yet."""
        pods = (self._ledger.pods.get(uid_of(victim.holder)) for victim in victims)
        return [pod for pod in pods if pod is not None and pod.metadata.deletion_timestamp is None]


def priority_of(pod: Pod) -> int:
    """Return the pod's priority, 0 by default."""
    return pod.spec.priority or 0


def _terminating(node: str, uids: Iterable[str]) -> list[Victim]:
    """Return kube-scheduler's own victims, which terminate anyway."""
    return [Victim(holder_key(uid, node), _TERMINATING) for uid in uids]
