"""Whose GPUs a more important pod may have.

`preemptVerb` answers kube-scheduler's own preemption. It asks only about nodes where pods must
leave for a reason that it knows itself (CPU, memory, ports): where only GPUs are short it
finds nobody to remove and never asks. So a refused pod of priority is also helped from here:
the pods whose leaving hurts least are evicted, and their GPUs are held for it meanwhile.
"""

from collections.abc import Iterable, Mapping, Sequence

from gpufleet.kube.timing import Timing
from gpufleet.model.kube_objects import Pod
from gpufleet.placement import Eviction, Request, Victim, evictions
from gpufleet.placement.kubernetes import Hold, Ledger
from gpufleet.placement.kubernetes.ledger import holder_key, uid_of

MOST_NODES = 200
"""Nodes on which an eviction is tried out; those with the least important holders first."""

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
            candidates = {node: [*self._candidates(pod, node), *self._as_victims(node, gone)]}
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
        if pod.spec.preemption_policy == "Never" or uid in self._ledger.holds:
            return []
        options = evictions(self._ledger.cluster, request, self._candidate_nodes(pod, among))
        best = next((option for option in options if option.victims), None)
        if best is None:
            return []
        until = self._timing.monotonic() + LEAVING_S
        self._ledger.hold(uid, Hold(best.fits, until, version=pod.metadata.resource_version))
        return self._pods(best)

    def _candidate_nodes(self, pod: Pod, among: Sequence[str]) -> dict[str, list[Victim]]:
        allowed = set(among)
        nodes = {holder.rpartition("@")[2] for holder in self._ledger.cluster.allocations}
        found = {node: self._candidates(pod, node) for node in sorted(nodes & allowed)}
        some = [(node, victims) for node, victims in found.items() if victims]
        some.sort(key=lambda pair: (min(victim.priority for victim in pair[1]), pair[0]))
        return dict(some[:MOST_NODES])

    def _candidates(self, pod: Pod, node: str) -> list[Victim]:
        """The holders on a node that matter less than the pod."""
        priority = pod.spec.priority or 0
        victims = []
        for holder in self._ledger.cluster.holders_on(node):
            other = self._ledger.pods.get(uid_of(holder))
            if other is None or other.spec.node_name != node or other.metadata.deletion_timestamp:
                continue
            if (other.spec.priority or 0) < priority:
                victims.append(Victim(holder, other.spec.priority or 0))
        return victims

    def _as_victims(self, node: str, uids: Iterable[str]) -> list[Victim]:
        """Those that leave anyway: they cost nothing more."""
        return [Victim(holder_key(uid, node), -(2**31)) for uid in uids]

    def _pods(self, eviction: Eviction) -> list[Pod]:
        uids = (uid_of(victim.holder) for victim in eviction.victims)
        return [pod for uid in uids if (pod := self._ledger.pods.get(uid))]
