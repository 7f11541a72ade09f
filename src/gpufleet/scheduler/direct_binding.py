"""Bind pods of a long queue without waiting until kube-scheduler asks for them.

kube-scheduler looks at one pod after the other and asks twice for each. A pod whose constraints are all checked
here needs none of that: the planner has chosen its node, and kube-scheduler could only agree. So such pods enter
the queue as soon as the watch shows them. kube-scheduler gets the first `LEFT` of those that are placed, the ones
that it asks for next; the pods behind them are bound here. kube-scheduler drops a pod from its queue when it sees
it bound. If it took the pod from its queue just before that, it would report an error for a pod that runs,
which the distance between both prevents.

Pods with other constraints (affinity between pods, spread constraints, volumes, host ports, ResourceClaims), pods
that anti-affinity of others may concern, gangs, and pods that kube-scheduler has tried in vain wait for it.
"""

import asyncio
from collections.abc import Awaitable, Callable

from gpufleet.kubernetes.annotations import CLAIM
from gpufleet.kubernetes.objects import Pod
from gpufleet.scheduler.background import BackgroundTasks
from gpufleet.scheduler.claim_status import ClaimStatuses
from gpufleet.scheduler.state.ledger import Ledger

LEFT = 256
"""Placed pods that are left to kube-scheduler, which binds one or two hundred in a second."""

MOST = 256
"""Pods that are bound at a time. More would wait longer than GPUs are held for them."""

Bind = Callable[[str, str, str, str], Awaitable[str]]
"""Binds a pod by namespace, name, UID and node; returns an error message, or an empty string."""


class DirectBinding:
    """Binds the pods whose `schedulerName` is `name`."""

    def __init__(
        self,
        ledger: Ledger,
        bind: Bind,
        statuses: ClaimStatuses,
        tasks: BackgroundTasks,
        name: str,
        *,
        enabled: bool,
    ) -> None:
        self._ledger = ledger
        self._bind = bind
        self._statuses = statuses
        self._tasks = tasks
        self._name = name
        self._enabled = enabled
        self.most_left = LEFT
        self._turns = asyncio.Semaphore(MOST)
        self._asked: set[str] = set()
        self._left: set[str] = set()

    def applies(self, pod: Pod) -> bool:
        """Return whether the pod waits alone for a node and all of its constraints are checked here."""
        meta, spec = pod.metadata, pod.spec
        return (
            self._enabled
            and bool(meta.annotations.get(CLAIM))
            and not (spec.node_name or spec.scheduling_gates or pod.finished or meta.deletion_timestamp)
            and spec.scheduler_name == self._name
            and self._ledger.gangs.of(pod) is None
            and not self._ledger.needs_kube_scheduler(pod)
        )

    def asked(self, uid: str) -> None:
        """Note that kube-scheduler asks for a pod."""
        self._asked.add(uid)
        self._left.discard(uid)

    def forget(self, uid: str) -> None:
        """Forget a pod that is bound or deleted."""
        self._asked.discard(uid)
        self._left.discard(uid)

    def take(self, pod: Pod, node: str) -> bool:
        """Bind a placed pod or leave it to kube-scheduler; return False if that must be made to try it again."""
        uid = pod.metadata.uid
        if uid in self._asked or _was_tried(pod) or not self.applies(pod):
            return False
        if len(self._left) < self.most_left:
            self._left.add(uid)
        elif uid not in self._left:
            self._tasks.start(self._run(pod, node))
        return True

    async def turn(self) -> None:
        """Wait until another pod may be bound."""
        async with self._turns:
            pass

    async def _run(self, pod: Pod, node: str) -> None:
        meta = pod.metadata
        async with self._turns:
            error = await self._bind(meta.namespace, meta.name, meta.uid, node)
        if not error:
            note = f"Successfully assigned {meta.namespace}/{meta.name} to {node}"
            self._statuses.record_pod_event(pod, "Scheduled", note, "Normal")


def _was_tried(pod: Pod) -> bool:
    """Return whether kube-scheduler has tried the pod in vain, maybe with another leader of this scheduler."""
    return any(each.type == "PodScheduled" and each.status == "False" for each in pod.status.conditions)
