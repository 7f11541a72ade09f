"""Bind pods without a kube-scheduler: the same choice and the same bind, driven by the watch.

For clusters that have no kube-scheduler to extend (the embedded API of the demo, virtual
clusters, a scheduler that can't be reconfigured). It looks at taints, cordons, readiness, node
selectors, required node affinity, CPU and memory; not at other affinity, spread constraints or
volumes: pods that need those want kube-scheduler.
"""

import asyncio

from gpufleet.kubernetes.objects import Pod
from gpufleet.placement import Fits
from gpufleet.scheduler.filtering import Everywhere
from gpufleet.scheduler.scheduler import Scheduler
from gpufleet.scheduler.state.node_resources import room_on
from gpufleet.scheduler.state.nodes import lets_in

PERIOD = 0.25
"""Seconds between two looks at the pods that wait."""

RETRY = 2.0
"""Seconds after which a refused pod is looked at again, if nothing has changed about it."""


class Standalone:
    """Schedules the pods whose `schedulerName` is `name`."""

    def __init__(self, desk: Scheduler, name: str) -> None:
        self._desk = desk
        self._name = name
        self._seen: dict[str, tuple[str, float]] = {}
        self._on_their_way: dict[str, str] = {}
        """Node by pod: chosen, and not known to be there yet; their CPU and memory are spoken for."""
        desk.gangs.mine = self._is_mine

    async def run(self) -> None:
        """Schedule until cancelled."""
        loop = asyncio.get_running_loop()
        while True:
            self.step(loop.time())
            await asyncio.sleep(PERIOD)

    def step(self, now: float) -> None:
        """Look at every pod that waits, most important first."""
        ledger = self._desk.ledger
        self._on_their_way = {
            uid: node
            for uid, node in self._on_their_way.items()
            if (pod := ledger.pods.get(uid)) is not None and not pod.spec.node_name
        }
        pods = [pod for pod in ledger.pods.values() if self._due(pod, now)]
        if not pods:
            return
        room = room_on(ledger)
        for uid, node in self._on_their_way.items():
            room.take(node, ledger.pods[uid])
        for pod in sorted(pods, key=lambda pod: (-(pod.spec.priority or 0), _age(pod))):
            meta = pod.metadata
            self._seen[meta.uid] = (meta.resource_version, now + RETRY)
            among = [
                name for name, node in ledger.nodes.items() if lets_in(node, pod) and room.fits(name, pod)
            ]
            choice = self._desk.filter(pod, among)
            node = choice.node if isinstance(choice, Fits) else ""
            if isinstance(choice, Everywhere) and among:
                node = max(among, key=room.free_cpu)
            if node:
                room.take(node, pod)
                self._on_their_way[meta.uid] = node
                self._desk.begin(self._bind(pod, node))
        self._seen = {uid: seen for uid, seen in self._seen.items() if uid in ledger.pods}

    def _is_mine(self, pod: Pod) -> bool:
        return pod.spec.scheduler_name == self._name

    def _due(self, pod: Pod, now: float) -> bool:
        meta, spec = pod.metadata, pod.spec
        if spec.node_name or not self._is_mine(pod) or spec.scheduling_gates or pod.finished:
            return False
        if meta.uid in self._on_their_way or meta.deletion_timestamp is not None:
            return False
        version, again = self._seen.get(meta.uid, ("", 0.0))
        return version != meta.resource_version or now >= again

    async def _bind(self, pod: Pod, node: str) -> None:
        meta, error = pod.metadata, "not asked yet"
        try:
            error = await self._desk.bind(meta.namespace, meta.name, meta.uid, node)
        finally:
            if error:
                self._on_their_way.pop(meta.uid, None)


def _age(pod: Pod) -> tuple[str, str]:
    return str(pod.metadata.creation_timestamp), pod.metadata.name
