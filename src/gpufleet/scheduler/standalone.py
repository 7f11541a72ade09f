"""Schedule pods without a kube-scheduler, with the same filter and bind, driven by the watch.

For clusters without a kube-scheduler to extend: the embedded API of the demo, virtual clusters, or
a scheduler that can't be reconfigured. It respects taints, cordons, readiness, node selectors,
required node affinity, and all resources that nodes report, but no other affinity, spread
constraints or volumes: pods that need those need kube-scheduler.
"""

import asyncio

from gpufleet.kubernetes.objects import Pod
from gpufleet.placement import Fits
from gpufleet.scheduler.filtering import AnyNode
from gpufleet.scheduler.planning.queue import priority_of
from gpufleet.scheduler.scheduler import Scheduler
from gpufleet.scheduler.state.node_resources import Room

PERIOD = 0.25
"""Seconds between two passes over the pending pods."""

RETRY = 2.0
"""Seconds after which a refused pod is tried again if it has not changed."""


class Standalone:
    """Schedules the pods whose `schedulerName` is `name`."""

    def __init__(self, scheduler: Scheduler, name: str) -> None:
        self._scheduler = scheduler
        self._name = name
        self._tried: dict[str, tuple[str, float]] = {}
        self._binding: dict[str, str] = {}
        """Node by pod UID: chosen but not bound yet; their CPU and memory count as used."""

    async def run(self) -> None:
        """Schedule until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            self.step(loop.time())
            await asyncio.sleep(PERIOD)

    def step(self, now: float) -> None:
        """Try to schedule the pending pods, highest priority first."""
        ledger = self._scheduler.ledger
        self._binding = {
            uid: node
            for uid, node in self._binding.items()
            if (pod := ledger.pods.get(uid)) is not None and not pod.spec.node_name
        }
        pods = [pod for pod in ledger.pods.values() if self._due(pod, now)]
        if not pods:
            return
        room = Room(ledger.resources)
        for uid, node in self._binding.items():
            if uid not in ledger.holds and not ledger.held_by(uid):
                room.take(node, ledger.pods[uid])
        for pod in sorted(pods, key=lambda pod: (-priority_of(pod), _age(pod))):
            meta = pod.metadata
            self._tried[meta.uid] = (meta.resource_version, now + RETRY)
            own = set(ledger.held_by(meta.uid))
            if (hold := ledger.holds.get(meta.uid)) is not None:
                own.add(hold.fits.node)
            candidates = [
                name for name in ledger.eligible.of(pod) if name in own or not room.shortage(name, pod)
            ]
            choice = self._scheduler.filter(pod, candidates)
            node = choice.node if isinstance(choice, Fits) else ""
            if isinstance(choice, AnyNode) and candidates:
                node = max(candidates, key=lambda name: (room.free_cpu(name), name))
            if node:
                room.take(node, pod)
                self._binding[meta.uid] = node
                self._scheduler.tasks.start(self._bind(pod, node))
        self._tried = {uid: tried for uid, tried in self._tried.items() if uid in ledger.pods}

    def _due(self, pod: Pod, now: float) -> bool:
        meta, spec = pod.metadata, pod.spec
        if spec.node_name or spec.scheduler_name != self._name or spec.scheduling_gates or pod.finished:
            return False
        if meta.uid in self._binding or meta.deletion_timestamp is not None:
            return False
        version, retry_at = self._tried.get(meta.uid, ("", 0.0))
        return version != meta.resource_version or now >= retry_at

    async def _bind(self, pod: Pod, node: str) -> None:
        meta, error = pod.metadata, "cancelled"
        try:
            error = await self._scheduler.bind(meta.namespace, meta.name, meta.uid, node)
        finally:
            if error:
                self._binding.pop(meta.uid, None)


def _age(pod: Pod) -> tuple[str, str]:
    return str(pod.metadata.creation_timestamp), pod.metadata.name
