"""Bind pods without waiting until kube-scheduler asks for them.

kube-scheduler looks at one pod after the other and asks twice for each. A pod whose constraints are all checked
here needs none of that: the planner has chosen its node, and kube-scheduler could only agree. So such pods enter
the queue as soon as the watch shows them and are bound as soon as they are placed. kube-scheduler drops a pod
from its own queue when it sees it bound. If it asks meanwhile, it gets the same node.

Pods with other constraints (affinity between pods, spread constraints, volumes, host ports, ResourceClaims), and
pods that anti-affinity of others may concern, wait for kube-scheduler. So do all members of a gang with such a pod.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from gpufleet.kubernetes.annotations import CLAIM
from gpufleet.kubernetes.objects import Pod
from gpufleet.scheduler.background import BackgroundTasks
from gpufleet.scheduler.claim_status import ClaimStatuses
from gpufleet.scheduler.state.ledger import Ledger

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
        self._turns = asyncio.Semaphore(MOST)

    def applies(self, pod: Pod) -> bool:
        """Return whether the pod waits alone for a node and all of its constraints are checked here."""
        return self._enabled and self._ledger.gangs.of(pod) is None and self._can_bind(pod)

    def applies_to_gang(self, members: Sequence[Pod]) -> bool:
        """Return whether members of a gang wait for nodes and all of their constraints are checked here."""
        return self._enabled and all(map(self._can_bind, members))

    def _can_bind(self, pod: Pod) -> bool:
        meta, spec = pod.metadata, pod.spec
        return (
            bool(meta.annotations.get(CLAIM))
            and not (spec.node_name or spec.scheduling_gates or pod.finished or meta.deletion_timestamp)
            and spec.scheduler_name == self._name
            and not self._ledger.needs_kube_scheduler(pod)
        )

    def start(self, pod: Pod, node: str) -> None:
        """Bind a pod that the planner has placed."""
        self._tasks.start(self._run_in_turn(pod, node))

    def start_member(self, pod: Pod, node: str) -> None:
        """Bind a member of a gang. It takes no turn: the members wait for each other before they are bound."""
        self._tasks.start(self._run(pod, node))

    async def turn(self) -> None:
        """Wait until another pod may be bound."""
        async with self._turns:
            pass

    async def _run_in_turn(self, pod: Pod, node: str) -> None:
        async with self._turns:
            await self._run(pod, node)

    async def _run(self, pod: Pod, node: str) -> None:
        meta = pod.metadata
        error = await self._bind(meta.namespace, meta.name, meta.uid, node)
        if not error:
            note = f"Successfully assigned {meta.namespace}/{meta.name} to {node}"
            self._statuses.record_pod_event(pod, "Scheduled", note, "Normal")
