"""Pods that found no place, and which of them fit when GPUs become free.

kube-scheduler does not watch leases, so it does not retry a pod when a GPU becomes free. This
module finds the pods that would fit, by priority and age. Each one is placed after those before
it, so one free GPU wakes one pod and not a thousand.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpufleet.kubernetes.objects import Pod
from gpufleet.placement import Fits, Request
from gpufleet.scheduler.state.ledger import Ledger, holder_key

REWAKE_INTERVAL = 1.0
"""Seconds that a woken pod has to come back before it is woken again."""


@dataclass(frozen=True)
class PendingPod:
    """A pod that was refused; if it has no request, it waits for something other than GPUs."""

    pod: Pod
    request: Request | None
    candidates: Sequence[str]
    note: str
    woken_at: float = float("-inf")
    refused_again: bool = False
    """Whether it was refused again since it was woken."""

    @property
    def queue_order(self) -> tuple[int, str, str]:
        """Return the sort key: priority, then age, then name."""
        meta = self.pod.metadata
        return -(self.pod.spec.priority or 0), str(meta.creation_timestamp), meta.name


class PendingPods:
    """Pending pods by UID."""

    def __init__(self) -> None:
        self.pods: dict[str, PendingPod] = {}
        self._candidates: Sequence[str] = ()
        self.retry = False
        """Whether a pod fits that was just woken and refused, and must be woken again soon."""

    def put(self, pod: Pod, request: Request | None, candidates: Sequence[str], note: str) -> None:
        """Add a refused pod. Most pods have the same candidates, so an equal list is stored once."""
        if candidates == self._candidates:
            candidates = self._candidates
        self._candidates = candidates
        before = self.pods.get(pod.metadata.uid)
        woken_at = before.woken_at if before else float("-inf")
        self.pods[pod.metadata.uid] = PendingPod(pod, request, candidates, note, woken_at, before is not None)

    def drop(self, uid: str) -> PendingPod | None:
        """Remove a pod."""
        return self.pods.pop(uid, None)

    def schedulable(self, ledger: Ledger, now: float) -> list[PendingPod]:
        """Return the pods that fit now, all together, and mark them as woken."""
        found: list[PendingPod] = []
        self.retry = False
        if not self.pods:
            return found
        trial = ledger.cluster.copy()
        for uid, pending in sorted(self.pods.items(), key=lambda pair: pair[1].queue_order):
            if pending.request is None or ledger.reserved(uid):
                continue
            hold = ledger.holds.get(uid)
            if hold is not None and ledger.unblocked(uid, hold.fits):
                # Its held GPUs are free: the preempted pods have left.
                found.append(pending)
                continue
            own = [held for node in ledger.leases_of(uid) if (held := trial.free(holder_key(uid, node)))]
            if isinstance(trial.take(pending.request, pending.candidates or None), Fits):
                found.append(pending)
                continue
            for held in own:
                trial.allocate(held.holder, held, observed=True)
        due = [each for each in found if now - each.woken_at >= REWAKE_INTERVAL]
        self.retry = any(each.refused_again and now - each.woken_at < REWAKE_INTERVAL for each in found)
        for each in due:
            self.pods[each.pod.metadata.uid] = replace(each, woken_at=now, refused_again=False)
        return due
