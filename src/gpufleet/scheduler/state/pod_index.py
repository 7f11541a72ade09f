"""Index pods by UID, claim and node."""

from collections import Counter
from collections.abc import Iterable

from gpufleet.kubernetes.annotations import CLAIM
from gpufleet.kubernetes.objects import Pod
from gpufleet.scheduler.state.indexes import Key, by_age, discard
from gpufleet.scheduler.state.versions import Tombstones, is_stale
from gpufleet.scheduler.watched_pods import ALL_NAMESPACES, WatchedSpec


class PodIndex:
    """The pods that exist; states that arrive late are ignored."""

    def __init__(self) -> None:
        self.by_uid: dict[str, Pod] = {}
        self.by_claim: dict[Key, set[str]] = {}
        self.deleted = Tombstones()
        self._bound_to: dict[str, set[str]] = {}
        self._repelled: Counter[str] = Counter()

    def is_late(self, pod: Pod) -> bool:
        """Return whether the pod is deleted, or this state not newer than the known one."""
        uid = pod.metadata.uid
        known = self.by_uid.get(uid)
        return self.deleted.has(uid, uid) or (known is not None and is_stale(pod, known))

    def was_seen(self, uid: str) -> bool:
        """Return whether the pod exists or was deleted lately."""
        return uid in self.by_uid or self.deleted.has(uid, uid)

    def put(self, pod: Pod) -> Pod | None:
        """Store a pod; return its earlier state."""
        uid = pod.metadata.uid
        known = self.by_uid.get(uid)
        self._remove(known)
        self.by_uid[uid] = pod
        if pod.metadata.annotations.get(CLAIM):
            self.by_claim.setdefault(claim_key(pod), set()).add(uid)
        if pod.spec.node_name and not pod.finished:
            self._bound_to.setdefault(pod.spec.node_name, set()).add(uid)
        self._repelled.update(_repels(pod))
        return known

    def drop(self, uid: str) -> Pod | None:
        """Remove a pod and return its last state."""
        self.deleted.add(uid, uid)
        pod = self.by_uid.pop(uid, None)
        self._remove(pod)
        return pod

    def of_claim(self, key: Key) -> list[Pod]:
        """Return the pods that use a claim, oldest first."""
        return sorted((self.by_uid[uid] for uid in self.by_claim.get(key, ())), key=by_age)

    def on(self, node: str, others: Iterable[str]) -> list[Pod]:
        """Return the pods on a node: those bound to it, and those of `others` that are not bound to another."""
        pods = (self.by_uid.get(uid) for uid in self._bound_to.get(node, set()).union(others))
        return [
            pod for pod in pods if pod is not None and not pod.finished and pod.spec.node_name in ("", node)
        ]

    def are_repelled(self, namespace: str) -> bool:
        """Return whether anti-affinity of a bound pod may keep pods of the namespace from its node."""
        return any(self._repelled[name] > 0 for name in (namespace, ALL_NAMESPACES))

    def _remove(self, pod: Pod | None) -> None:
        """Remove a pod from all indexes: users may change labels and annotations of a pending pod."""
        if pod is not None:
            discard(self.by_claim, claim_key(pod), pod.metadata.uid)
            discard(self._bound_to, pod.spec.node_name, pod.metadata.uid)
            self._repelled.subtract(_repels(pod))


def _repels(pod: Pod) -> list[str]:
    """Return the namespaces whose pods a bound pod may keep from its node."""
    if not isinstance(pod.spec, WatchedSpec) or not pod.spec.node_name or pod.finished:
        return []
    return [name or pod.metadata.namespace for name in pod.spec.repels]


def claim_key(pod: Pod) -> Key:
    """Return the namespace and name of the claim that the pod names."""
    return pod.metadata.namespace, pod.metadata.annotations.get(CLAIM, "")
