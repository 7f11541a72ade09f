"""Schedule pods without a kube-scheduler, with the same filter and bind, driven by the watch.

For clusters without a kube-scheduler to extend: the embedded API of the demo, virtual clusters, or
a scheduler that can't be reconfigured. It respects taints, cordons, readiness, node selectors,
required node affinity, CPU and memory, but no other affinity, spread constraints or volumes: pods
that need those need kube-scheduler.
"""

import asyncio

from gpufleet.kubernetes.objects import Pod
from gpufleet.placement import Fits
from gpufleet.scheduler.filtering import AnyNode
from gpufleet.scheduler.scheduler import Scheduler
from gpufleet.scheduler.state.node_resources import free_resources
from gpufleet.scheduler.state.nodes import admits

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
        scheduler.gangs.is_own_pod = self._is_own_pod

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
        free = free_resources(ledger)
        for uid, node in self._binding.items():
            free.take(node, ledger.pods[uid])
        for pod in sorted(pods, key=lambda pod: (-(pod.spec.priority or 0), _age(pod))):
            meta = pod.metadata
            self._tried[meta.uid] = (meta.resource_version, now + RETRY)
            candidates = [
                name for name, node in ledger.nodes.items() if admits(node, pod) and free.fits(name, pod)
            ]
            choice = self._scheduler.filter(pod, candidates)
            node = choice.node if isinstance(choice, Fits) else ""
            if isinstance(choice, AnyNode) and candidates:
                node = max(candidates, key=free.free_cpu)
            if node:
                free.take(node, pod)
                self._binding[meta.uid] = node
                self._scheduler.start_task(self._bind(pod, node))
        self._tried = {uid: tried for uid, tried in self._tried.items() if uid in ledger.pods}

    def _is_own_pod(self, pod: Pod) -> bool:
        return pod.spec.scheduler_name == self._name

    def _due(self, pod: Pod, now: float) -> bool:
        meta, spec = pod.metadata, pod.spec
        if spec.node_name or not self._is_own_pod(pod) or spec.scheduling_gates or pod.finished:
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
