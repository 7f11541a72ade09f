"""Reserve, PreBind and the binding of one pod, or Unreserve.

The pod's version is read before its leases are written, and the Binding carries it: whoever
takes an unbound pod's leases back changes the pod first, after which no Binding of that or an
earlier version can go through. So a pod is bound if and only if its leases stand, whatever
other replicas, lost answers and late requests do (docs/scheduling.md has the argument).

A bind is idempotent: a pod that is bound as asked is a success, however it came about.
"""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from gpufleet.errors import GpufleetError, InvalidRequest, KubernetesUnavailable
from gpufleet.kubernetes.allocation import format_allocation
from gpufleet.kubernetes.annotations import ALLOCATED, CLAIM, VISIBLE
from gpufleet.kubernetes.client.errors import KubernetesRefused, TooManyRequests, Unreachable
from gpufleet.kubernetes.client.timing import Timing
from gpufleet.kubernetes.objects import Pod
from gpufleet.placement import Fits
from gpufleet.runtime.logs import get_logger
from gpufleet.scheduler.api import Api
from gpufleet.scheduler.filtering import whole_allocation
from gpufleet.scheduler.metrics import SchedulerMetrics
from gpufleet.scheduler.reservation import PodName, Reservations, Reserved
from gpufleet.scheduler.state import Hold, Ledger, request_of

_log = get_logger("scheduler")

_ATTEMPTS = 3


@dataclass
class _Attempts:
    """The attempts for one pod, of which one works and the others wait."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    number: int = 0


class Binder:
    """Binds pods, one attempt per pod at a time."""

    def __init__(
        self,
        api: Api,
        ledger: Ledger,
        leasing: Reservations,
        metrics: SchedulerMetrics,
        hold_s: float,
        timing: Timing,
    ) -> None:
        self._api = api
        self._ledger = ledger
        self._leasing = leasing
        self._metrics = metrics
        self._hold_s = hold_s
        self._timing = timing
        self._busy: dict[str, _Attempts] = {}
        self.on_ended: Callable[[str], None] = lambda uid: None
        """Called when an attempt ends: leases may be left behind, and the pod may have ended or gone meanwhile."""
        self.keeps: Callable[[str], bool] = lambda uid: False
        """Whether a pod keeps its leases after an attempt that failed: a gang gives back all or nothing."""

    def busy(self, uid: str) -> bool:
        """Whether an attempt for the pod is under way."""
        return uid in self._busy

    async def bind(self, namespace: str, name: str, uid: str, node: str) -> str:
        """Bind the pod to `node` with its GPUs; an error in words, or nothing if it is bound."""
        try:
            async with self._alone(uid):
                with self._metrics.phase("Bind"):
                    error = await self._bind(namespace, name, uid, node)
        except GpufleetError as failure:
            error = str(failure)
        self._metrics.decisions.labels("bind_failed" if error else "bound").inc()
        if error:
            _log.warning("bind failed", pod=f"{namespace}/{name}", node=node, error=error)
        self.on_ended(uid)
        return error

    @asynccontextmanager
    async def _alone(self, uid: str) -> AsyncIterator[None]:
        """One attempt for a pod at a time: kube-scheduler may ask again while the first is under way."""
        attempts = self._busy.setdefault(uid, _Attempts())
        attempts.number += 1
        try:
            async with attempts.lock:
                yield
        finally:
            attempts.number -= 1
            if not attempts.number:
                del self._busy[uid]

    async def _bind(self, namespace: str, name: str, uid: str, node: str) -> str:
        pod = self._ledger.pods.get(uid)
        for attempt in range(_ATTEMPTS):
            if pod is None or attempt:
                pod = await self._api.read_pod(namespace, name)
                if pod is None or pod.metadata.uid != uid:
                    return f"pod {namespace}/{name} is gone"
                self._ledger.put_pod(pod)
            if pod.spec.node_name:
                return self._already(pod, node)
            error = await self._attempt(pod, node)
            if error is not None:
                return error
        return f"pod {namespace}/{name} changed {_ATTEMPTS} times while it was being bound"

    def _already(self, pod: Pod, node: str) -> str:
        """The pod has a node: as asked is a success."""
        self._ledger.release_hold(pod.metadata.uid)
        if pod.spec.node_name == node:
            return ""
        return f"pod {pod.metadata.name} is already on {pod.spec.node_name}"

    async def _attempt(self, pod: Pod, node: str) -> str | None:
        """One attempt on the pod as read; None if it has changed and is worth another."""
        meta, fits = pod.metadata, self._fits(pod, node)
        hold = self._ledger.holds.get(meta.uid)
        version = _newer(meta.resource_version, hold.version if hold else "")
        if isinstance(fits, str):
            return fits
        reserved, notes = Reserved("", ()), {}
        if fits is not None:
            claim = meta.annotations[CLAIM]
            with self._metrics.phase("Reserve"):
                name = PodName(meta.uid, meta.namespace, meta.name, claim)
                reserved = await self._leasing.reserve(name, fits)
            notes = self._annotations(fits)
        try:
            await self._api.bind(meta.namespace, meta.name, meta.uid, version, node, notes)
        except (KubernetesRefused, Unreachable, TooManyRequests) as error:
            return await self._after_refusal(pod, version, node, reserved, error)
        except KubernetesUnavailable as error:
            return await self._after_silence(pod, node, fits, reserved, error)
        self._ledger.release_hold(meta.uid)
        return ""

    def _fits(self, pod: Pod, node: str) -> Fits | str | None:
        """The GPUs that are held for the pod there, or free ones; None if it wants none, a sentence if none fit."""
        uid = pod.metadata.uid
        if not pod.metadata.annotations.get(CLAIM):
            return None
        claim = self._ledger.claim_of(pod)
        if claim is None:
            return f"GpuClaim {pod.metadata.annotations[CLAIM]} does not exist"
        try:
            request = request_of(claim)
        except InvalidRequest as error:
            return str(error)
        cluster = self._ledger.cluster
        held = whole_allocation(request, node, self._ledger.parts(uid).get(node, {}))
        if held is not None and cluster.offers(held):
            return held
        hold = self._ledger.holds.get(uid)
        asked = hold is not None and hold.fits.node == node and hold.fits.request == request
        if hold is not None and asked and cluster.offers(hold.fits):
            return hold.fits
        with self._ledger.without(uid):
            verdict = cluster.place(request, [node])
        if not isinstance(verdict, Fits):
            return f"the GPUs of {node} are gone: {verdict.summary}"
        self._ledger.hold(uid, Hold(verdict, self._timing.monotonic() + self._hold_s))
        return verdict

    def _annotations(self, fits: Fits) -> dict[str, str]:
        uuids = [self._uuid(fits.node, gpu, each) for gpu, each in fits.instances]
        return {
            ALLOCATED: format_allocation(fits.node, fits.gpus),
            VISIBLE: ",".join(uuids or map(str, fits.gpus)),
        }

    def _uuid(self, node: str, gpu: int, instance: str) -> str:
        device = self._ledger.device(node, gpu)
        instances = device.mig_instances if device else ()
        return next((each.uuid for each in instances if str(each.id) == instance), "") or f"{gpu}:{instance}"

    async def _after_refusal(
        self, pod: Pod, version: str, node: str, reserved: Reserved, error: GpufleetError
    ) -> str | None:
        """The Binding was refused for certain. Bound already? Changed? Else undo."""
        meta = pod.metadata
        now = await self._api.read_pod(meta.namespace, meta.name)
        alive = now is not None and now.metadata.uid == meta.uid
        if now is not None and alive:
            self._ledger.put_pod(now)
        if not (now is not None and alive and self._stays(now, node)):
            await self._leasing.unreserve(meta.uid, node, reserved.new, reserved.stamp)
        if now is not None and alive:
            if now.spec.node_name:
                return self._already(now, node)
            if now.metadata.resource_version != version:
                return None
        self._ledger.release_hold(meta.uid)
        return str(error)

    async def _after_silence(
        self, pod: Pod, node: str, fits: Fits | None, reserved: Reserved, error: GpufleetError
    ) -> str:
        """No answer: the Binding may have been done, or may yet be. Changing the pod decides it."""
        meta = pod.metadata
        now = await self._api.nudge(meta.namespace, meta.name, meta.uid, self.mark())
        if now is not None:
            self._ledger.put_pod(now)
            if now.spec.node_name:
                return self._already(now, node)
        if fits is not None and not (now is not None and self._stays(now, node)):
            await self._leasing.unreserve(meta.uid, node, fits.gpus, reserved.stamp)
        self._ledger.release_hold(meta.uid)
        return str(error)

    def _stays(self, pod: Pod, node: str) -> bool:
        """Whether the leases of this attempt are still needed."""
        if pod.spec.node_name:
            return pod.spec.node_name == node
        return self.keeps(pod.metadata.uid)

    def mark(self) -> str:
        """A nudge that differs from every other."""
        return f"{self._timing.now().isoformat()}-{int(self._timing.random() * 1e9):x}"


def _newer(seen: str, told: str) -> str:
    """The later of two versions of one object; what kube-scheduler told may be ahead of our watch."""
    if seen.isdigit() and told.isdigit():
        return seen if int(seen) >= int(told) else told
    return seen
