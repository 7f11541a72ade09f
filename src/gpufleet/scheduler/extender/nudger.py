"""Make kube-scheduler try pods again that fit now.

kube-scheduler does not watch leases, so it does not retry a pod when a GPU becomes free. It does when
the pod changes: a nudge is a new value in an annotation of the pod.
"""

import asyncio

from gpufleet.errors import GpufleetError
from gpufleet.kubernetes import Timing
from gpufleet.kubernetes.objects import Pod
from gpufleet.runtime.logs import RepeatedWarnings, get_logger
from gpufleet.scheduler.api import SchedulerApi

_log = get_logger("scheduler")

_CONCURRENCY = 64


def nudge_value(timing: Timing) -> str:
    """Return a unique value for the nudge annotation."""
    return f"{timing.now().isoformat()}-{int(timing.random() * 1e9):x}"


class Nudger:
    """Nudges pods; those for which the call fails are nudged again in the next step."""

    def __init__(self, api: SchedulerApi, timing: Timing) -> None:
        self._api = api
        self._timing = timing
        self._warnings = RepeatedWarnings(_log, timing.monotonic)
        self._pods: dict[str, Pod] = {}

    def add(self, pod: Pod) -> None:
        """Nudge a pod in the next step."""
        self._pods[pod.metadata.uid] = pod

    def drop(self, uid: str) -> None:
        """Don't nudge a pod: it is bound or gone."""
        self._pods.pop(uid, None)

    async def step(self) -> None:
        """Nudge the pods."""
        pods, self._pods = list(self._pods.values()), {}
        for at in range(0, len(pods), _CONCURRENCY):
            await asyncio.gather(*(self._nudge(pod) for pod in pods[at : at + _CONCURRENCY]))

    async def _nudge(self, pod: Pod) -> None:
        meta = pod.metadata
        try:
            await self._api.nudge(meta.namespace, meta.name, meta.uid, nudge_value(self._timing))
        except GpufleetError as error:
            name = f"{meta.namespace}/{meta.name}"
            self._warnings.warn(meta.uid, "pod_not_nudged", pod=name, error=str(error))
            self._pods.setdefault(meta.uid, pod)
            return
        self._warnings.clear(meta.uid)
