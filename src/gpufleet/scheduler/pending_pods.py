"""The pods that found no place, and whom a release could help.

kube-scheduler does not watch leases, so a pod that it could not place hears nothing of a
freed GPU. Whoever would fit now is found here, in the order of priority and age, each
counted with those before it, so that one free GPU wakes one pod and not a thousand.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from gpufleet.kubernetes.objects import Pod
from gpufleet.placement import Fits, Request
from gpufleet.scheduler.state.ledger import Ledger, holder_key

PATIENCE = 1.0
"""Seconds that a woken pod gets to come back before it may be woken again."""


@dataclass(frozen=True)
class PendingPod:
    """A pod that was refused; without a request it waits for something else than GPUs."""

    pod: Pod
    request: Request | None
    among: Sequence[str]
    note: str
    woken_at: float = float("-inf")
    back: bool = False
    """Whether it has come back, and was refused again, since it was woken."""

    @property
    def order(self) -> tuple[int, str, str]:
        """Whose turn it is: priority, then age, then name."""
        meta = self.pod.metadata
        return -(self.pod.spec.priority or 0), str(meta.creation_timestamp), meta.name


class PendingPods:
    """Who waits, by the pod's UID."""

    def __init__(self) -> None:
        self.pods: dict[str, PendingPod] = {}
        self._among: Sequence[str] = ()
        self.later = False
        """Whether somebody would fit who was woken for nothing a moment ago, and is to be woken again in a moment."""

    def put(self, pod: Pod, request: Request | None, among: Sequence[str], note: str) -> None:
        """A pod was refused; the candidates of many pods are the same list and are kept once."""
        if among == self._among:
            among = self._among
        self._among = among
        before = self.pods.get(pod.metadata.uid)
        woken = before.woken_at if before else float("-inf")
        self.pods[pod.metadata.uid] = PendingPod(pod, request, among, note, woken, before is not None)

    def drop(self, uid: str) -> PendingPod | None:
        """A pod waits no more."""
        return self.pods.pop(uid, None)

    def helped(self, ledger: Ledger, now: float) -> list[PendingPod]:
        """Those who would fit now, all together; they count as woken."""
        found: list[PendingPod] = []
        self.later = False
        if not self.pods:
            return found
        trial = ledger.cluster.copy()
        for uid, waiting in sorted(self.pods.items(), key=lambda pair: pair[1].order):
            if waiting.request is None or ledger.reserved(uid):
                continue
            hold = ledger.holds.get(uid)
            if hold is not None and ledger.unhindered(uid, hold.fits):
                # GPUs were kept for it, and those who had them have left.
                found.append(waiting)
                continue
            mine = [held for node in ledger.parts(uid) if (held := trial.free(holder_key(uid, node)))]
            if isinstance(trial.take(waiting.request, waiting.among or None), Fits):
                found.append(waiting)
                continue
            for held in mine:
                trial.allocate(held.holder, held, observed=True)
        due = [each for each in found if now - each.woken_at >= PATIENCE]
        self.later = any(each.back and now - each.woken_at < PATIENCE for each in found)
        for each in due:
            self.pods[each.pod.metadata.uid] = replace(each, woken_at=now, back=False)
        return due
