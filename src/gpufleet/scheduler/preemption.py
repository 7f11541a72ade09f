"""Whose GPUs a more important pod may have.

`preemptVerb` answers kube-scheduler's own preemption. It asks only about nodes where pods must
leave for a reason that it knows itself (CPU, memory, ports): where only GPUs are short it
finds nobody to remove and never asks. So a refused pod of priority is also helped from here:
the pods whose leaving hurts least are evicted, and their GPUs are held for it meanwhile. An
eviction that failed, or was put off by a disruption budget, is asked for again whenever the pod
comes back.
"""

from collections.abc import Iterable, Mapping, Sequence

from gpufleet.kubernetes.client.timing import Timing
from gpufleet.kubernetes.objects import Pod
from gpufleet.placement import Eviction, Fits, Inventory, Request, Victim, evictions
from gpufleet.placement.gang import order_of
from gpufleet.placement.victims import least_harmful
from gpufleet.scheduler.state import Hold, Ledger
from gpufleet.scheduler.state.eligible_nodes import open_to
from gpufleet.scheduler.state.ledger import holder_key, uid_of

MOST_NODES = 200
"""Nodes on which an eviction is tried out; those with the least important holders first."""

_MEMBER_OPTIONS = 8
"""For each member of a gang that many evictions are compared: a gang may have many members."""

_FREE = -(2**31)
"""The priority of those who leave anyway."""

LEAVING_S = 120.0
"""How long GPUs are held while their holders leave."""


class Preemption:
    """Finds victims among the holders of leases."""

    def __init__(self, ledger: Ledger, timing: Timing) -> None:
        self._ledger = ledger
        self._timing = timing

    def victims_on(
        self, pod: Pod, request: Request, asked: Mapping[str, Iterable[str]]
    ) -> dict[str, list[str]]:
        """kube-scheduler's question: for each node with its own victims, whom all must leave for the GPUs too.

        Nodes where nobody's leaving helps are left out.
        """
        found: dict[str, list[str]] = {}
        for node, already in asked.items():
            gone = list(already)
            candidates = {
                node: [*self._candidates(self._ledger.cluster, pod, node), *self._as_victims(node, gone)]
            }
            options = (
                evictions(self._ledger.cluster, request, candidates) if node in self._ledger.nodes else []
            )
            if options:
                more = [uid_of(victim.holder) for victim in options[0].victims]
                together = [*gone, *(uid for uid in more if uid not in gone)]
                if together:
                    found[node] = together
        return found

    def nominate(self, pod: Pod, request: Request, among: Sequence[str]) -> list[Pod]:
        """The pods to evict for a refused pod, whose GPUs are now held for it; none if that can't help."""
        uid = pod.metadata.uid
        if pod.spec.preemption_policy == "Never" or self._under_way(uid):
            return []
        with self._ledger.without(uid):
            best = self._best(self._ledger.cluster, pod, request, among, MOST_NODES)
        if best is None:
            self._ledger.release_hold(uid)
            return []
        self._keep(pod, best.fits, "")
        return self._to_evict(best.victims)

    def nominate_gang(
        self, gang: str, pods: Sequence[Pod], requests: Sequence[Request], among: Inventory
    ) -> list[Pod] | None:
        """The pods to evict for a gang, all of whose GPUs are now held for it; None if that can't help.

        Nobody leaves for half a gang. `among` is the cluster without what its members hold.
        """
        if any(pod.spec.preemption_policy == "Never" for pod in pods):
            return None
        if all(self._under_way(pod.metadata.uid) for pod in pods):
            return []
        least = min(pods, key=priority_of)
        trial, places, victims = among.copy(), dict[int, Fits](), list[Victim]()
        nodes = open_to(self._ledger.nodes.values(), pods)
        areas = {some: trial.index().places(some)[0] for some in set(nodes)}
        for at in order_of(requests, nodes):
            verdict = trial.place(requests[at], areas[nodes[at]])
            if not isinstance(verdict, Fits):
                best = self._best(trial, least, requests[at], tuple(nodes[at]), _MEMBER_OPTIONS)
                if best is None:
                    return None
                for victim in best.victims:
                    trial.free(victim.holder)
                victims += best.victims
                verdict = best.fits
            trial.allocate(holder_key(pods[at].metadata.uid, verdict.node), verdict)
            places[at] = verdict
        for at, fits in places.items():
            self._keep(pods[at], fits, gang)
        return self._to_evict(victims)

    def _keep(self, pod: Pod, fits: Fits, gang: str) -> None:
        until = self._timing.monotonic() + LEAVING_S
        self._ledger.hold(pod.metadata.uid, Hold(fits, until, gang, pod.metadata.resource_version))

    def _under_way(self, uid: str) -> bool:
        """Whether GPUs are held for the pod and everybody else is leaving them."""
        hold = self._ledger.holds.get(uid)
        if hold is None:
            return False
        others = (self._ledger.pods.get(other) for other in self._ledger.hinderers(uid, hold.fits))
        return all(pod is None or pod.finished or pod.metadata.deletion_timestamp for pod in others)

    def _best(
        self, cluster: Inventory, pod: Pod, request: Request, among: Sequence[str], most: int
    ) -> Eviction | None:
        """The eviction that hurts least, of the first `most` that help."""
        return least_harmful(cluster, request, self._candidate_nodes(cluster, pod, among), most)

    def _candidate_nodes(
        self, cluster: Inventory, pod: Pod, among: Sequence[str]
    ) -> list[tuple[str, list[Victim]]]:
        nodes = {holder.rpartition("@")[2] for holder in cluster.allocations}.intersection(among)
        found = [(node, self._candidates(cluster, pod, node)) for node in sorted(nodes)]
        some = [pair for pair in found if pair[1] and pair[0] in cluster.nodes]
        some.sort(key=lambda pair: (min(victim.priority for victim in pair[1]), pair[0]))
        return some[:MOST_NODES]

    def _candidates(self, cluster: Inventory, pod: Pod, node: str) -> list[Victim]:
        """The holders on a node that matter less than the pod; those that leave anyway cost nothing."""
        victims = []
        for holder in cluster.holders_on(node):
            other = self._ledger.pods.get(uid_of(holder))
            if other is None or other.spec.node_name != node or priority_of(other) >= priority_of(pod):
                continue
            leaves = other.metadata.deletion_timestamp is not None
            victims.append(Victim(holder, _FREE if leaves else priority_of(other)))
        return victims

    def _to_evict(self, victims: Iterable[Victim]) -> list[Pod]:
        """The pods among the victims that have not been asked to leave yet."""
        pods = (self._ledger.pods.get(uid_of(victim.holder)) for victim in victims)
        return [pod for pod in pods if pod is not None and pod.metadata.deletion_timestamp is None]

    def _as_victims(self, node: str, uids: Iterable[str]) -> list[Victim]:
        """Those that leave anyway: they cost nothing more."""
        return [Victim(holder_key(uid, node), _FREE) for uid in uids]


def priority_of(pod: Pod) -> int:
    """A pod's priority; 0 where none is set."""
    return pod.spec.priority or 0
