"""Bind a pod: Reserve, PreBind and Bind, or Unreserve.

The pod's version is read before its leases are written, and the Binding carries it. A process that
reclaims an unbound pod's leases changes the pod first, after which no Binding with an earlier
version can succeed. So a pod is bound if and only if it has its leases, whatever happens with other
replicas, lost responses and late requests (see docs/scheduling.md).

Binding is idempotent: a pod that is already bound to the node is a success.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from gpufleet.errors import GpufleetError, InvalidRequest, KubernetesUnavailable
from gpufleet.kubernetes import Timing
from gpufleet.kubernetes.allocation import format_allocation
from gpufleet.kubernetes.annotations import ALLOCATED, CLAIM, VISIBLE
from gpufleet.kubernetes.client.errors import KubernetesRefused, TooManyRequests, Unreachable
from gpufleet.kubernetes.objects import Pod
from gpufleet.kubernetes.resource_claims import is_delivered_by_claim
from gpufleet.placement import Fits
from gpufleet.runtime.logs import get_logger
from gpufleet.scheduler.api import SchedulerApi
from gpufleet.scheduler.leases.dirty_pods import DirtyPods
from gpufleet.scheduler.leases.writer import LeaseWriter, PodRef, Reserved
from gpufleet.scheduler.metrics import SchedulerMetrics
from gpufleet.scheduler.planning.gang_plans import GangPlans
from gpufleet.scheduler.state import Hold, Ledger, request_of
from gpufleet.scheduler.state.allocations import complete_allocation

_log = get_logger("scheduler")

_ATTEMPTS = 3

_QUIET = 0.2
"""Seconds without an attempt after which no pods are being bound: kube-scheduler takes one pod after the other."""


@dataclass
class _Attempts:
    """The attempts to bind one pod: one is running, the others wait for the lock."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    count: int = 0


class Binder:
    """Binds pods, one attempt per pod at a time."""

    def __init__(
        self,
        api: SchedulerApi,
        ledger: Ledger,
        lease_writer: LeaseWriter,
        dirty: DirtyPods,
        gang_plans: GangPlans,
        metrics: SchedulerMetrics,
        hold_s: float,
        timing: Timing,
    ) -> None:
        self._api = api
        self._ledger = ledger
        self._lease_writer = lease_writer
        self._dirty = dirty
        self._gang_plans = gang_plans
        self._metrics = metrics
        self._hold_s = hold_s
        self._timing = timing
        self._busy: dict[str, _Attempts] = {}
        self._ended_at = float("-inf")

    def is_binding(self) -> bool:
        """Return whether pods are being bound: an attempt is running, or one has just ended."""
        return bool(self._busy) or self._timing.monotonic() - self._ended_at < _QUIET

    def busy(self, uid: str) -> bool:
        """Return whether an attempt for the pod is running."""
        return uid in self._busy

    async def bind(self, namespace: str, name: str, uid: str, node: str) -> str:
        """Bind the pod to `node` with its GPUs; return an error message, or an empty string if it is bound."""
        try:
            async with self._exclusive(uid):
                with self._metrics.phase("Bind"):
                    error = await self._bind(namespace, name, uid, node)
        except GpufleetError as failure:
            error = str(failure)
        self._metrics.decisions.labels("bind_failed" if error else "bound").inc()
        if error:
            _log.warning("bind_failed", phase="Bind", pod=f"{namespace}/{name}", node=node, error=error)
        # Leases may be left, and the pod may be finished or deleted by now.
        self._dirty.add(uid)
        return error

    @asynccontextmanager
    async def _exclusive(self, uid: str) -> AsyncIterator[None]:
        """Run one attempt per pod at a time: kube-scheduler may retry while the first is still running."""
        attempts = self._busy.setdefault(uid, _Attempts())
        attempts.count += 1
        try:
            async with attempts.lock:
                yield
        finally:
            attempts.count -= 1
            if not attempts.count:
                del self._busy[uid]
                self._ended_at = self._timing.monotonic()

    async def _bind(self, namespace: str, name: str, uid: str, node: str) -> str:
        pod = self._ledger.pods.get(uid)
        for attempt in range(_ATTEMPTS):
            if pod is None or attempt:
                pod = await self._api.read_pod(namespace, name)
                if pod is None or pod.metadata.uid != uid:
                    return f"pod {namespace}/{name} no longer exists"
                self._ledger.put_pod(pod)
            if pod.spec.node_name:
                return self._already_bound(pod, node)
            error = await self._attempt(pod, node)
            if error is not None:
                return error
        return f"pod {namespace}/{name} changed {_ATTEMPTS} times while it was being bound"

    def _already_bound(self, pod: Pod, node: str) -> str:
        """Return the result for a bound pod: success if it has the requested node."""
        self._ledger.release_hold(pod.metadata.uid)
        if pod.spec.node_name == node:
            return ""
        return f"pod {pod.metadata.name} is already bound to {pod.spec.node_name}"

    async def _attempt(self, pod: Pod, node: str) -> str | None:
        """Try to bind the pod as read; return None if it has changed meanwhile, to try again."""
        meta, fits = pod.metadata, self._place(pod, node)
        version = meta.resource_version
        if isinstance(fits, str):
            return fits
        reserved, annotations = Reserved("", ()), {}
        if fits is not None:
            claim = meta.annotations[CLAIM]
            with self._metrics.phase("Reserve"):
                name = PodRef(meta.uid, meta.namespace, meta.name, claim)
                reserved = self._gang_leases(pod, fits) or await self._lease_writer.reserve(name, fits)
            annotations = self.annotations(fits)
        try:
            await self._api.bind(meta.namespace, meta.name, meta.uid, version, node, annotations)
        except (KubernetesRefused, Unreachable, TooManyRequests) as error:
            return await self._after_refusal(pod, version, node, reserved, error)
        except KubernetesUnavailable as error:
            return await self._after_unanswered(pod, node, fits, reserved, error)
        self._ledger.release_hold(meta.uid)
        return ""

    def _gang_leases(self, pod: Pod, fits: Fits) -> Reserved | None:
        """Return the leases that the pod's gang has acquired, if they were written after this version was read."""
        uid, known = pod.metadata.uid, self._gang_plans.leases_of(pod.metadata.uid)
        if known is None or known.pod_version != pod.metadata.resource_version:
            return None
        leased = self._ledger.leases_of(uid).get(fits.node, {})
        if any(gpu not in leased or leased[gpu].stamp != known.stamp for gpu in fits.gpus):
            return None
        return Reserved(known.stamp, ())

    def _place(self, pod: Pod, node: str) -> Fits | str | None:
        """Return the GPUs held for the pod on the node, or free ones; None if it requests none, or an error message."""
        uid = pod.metadata.uid
        if not pod.metadata.annotations.get(CLAIM) or is_delivered_by_claim(pod):
            return None
        claim = self._ledger.claim_of(pod)
        if claim is None:
            return f"GpuClaim {pod.metadata.annotations[CLAIM]} does not exist"
        try:
            request = request_of(claim)
        except InvalidRequest as error:
            return str(error)
        cluster = self._ledger.cluster
        leased = complete_allocation(request, node, self._ledger.held_by(uid).get(node, {}))
        if leased is not None and cluster.offers(leased):
            return leased
        hold = self._ledger.holds.get(uid)
        if (
            hold is not None
            and hold.fits.node == node
            and hold.fits.request == request
            and cluster.offers(hold.fits)
            and not cluster.has_taken(hold.fits)  # by device-plugin pods that were bound meanwhile
        ):
            return hold.fits
        with self._ledger.excluding(uid):
            verdict = cluster.place(request, [node])
        if not isinstance(verdict, Fits):
            return f"the GPUs of {node} are no longer free: {verdict.summary}"
        self._ledger.hold(uid, Hold(verdict, self._timing.monotonic() + self._hold_s))
        return verdict

    def annotations(self, fits: Fits) -> dict[str, str]:
        """Return the annotations of a pod with these GPUs."""
        instances = [self._instance_uuid(fits.node, gpu, each) for gpu, each in fits.instances]
        return {
            ALLOCATED: format_allocation(fits.node, fits.gpus),
            VISIBLE: ",".join(instances or self._visible(fits)),
        }

    def _visible(self, fits: Fits) -> list[str]:
        """Return the names of the GPUs for CUDA and the container runtime.

        They are the UUIDs of NVIDIA's GPUs: ids change inside a container that has only some of the GPUs. HIP is
        documented to take ids only.
        """
        devices = [self._ledger.device(fits.node, gpu) for gpu in fits.gpus]
        uuids = [device.uuid for device in devices if device and device.uuid.startswith("GPU-")]
        return uuids if len(uuids) == len(fits.gpus) else [str(gpu) for gpu in fits.gpus]

    def _instance_uuid(self, node: str, gpu: int, instance: str) -> str:
        device = self._ledger.device(node, gpu)
        instances = device.mig_instances if device else ()
        return next((each.uuid for each in instances if str(each.id) == instance), "") or f"{gpu}:{instance}"

    async def _after_refusal(
        self, pod: Pod, version: str, node: str, reserved: Reserved, error: GpufleetError
    ) -> str | None:
        """Handle a refused Binding: the pod may be bound or changed; otherwise release the new leases."""
        meta = pod.metadata
        now = await self._api.read_pod(meta.namespace, meta.name)
        if now is not None and now.metadata.uid != meta.uid:
            now = None
        if now is not None:
            self._ledger.put_pod(now)
        if now is None or not self._keeps_leases(now, node):
            await self._lease_writer.unreserve(meta.uid, node, reserved.new, reserved.stamp)
        if now is not None:
            if now.spec.node_name:
                return self._already_bound(now, node)
            if now.metadata.resource_version != version:
                return None
        self._ledger.release_hold(meta.uid)
        return str(error)

    async def _after_unanswered(
        self, pod: Pod, node: str, fits: Fits | None, reserved: Reserved, error: GpufleetError
    ) -> str:
        """Handle a Binding without a response, which may still be executed: changing the pod prevents that."""
        meta = pod.metadata
        now = await self._api.nudge(meta.namespace, meta.name, meta.uid, self.nudge_value())
        if now is not None:
            self._ledger.put_pod(now)
            if now.spec.node_name:
                return self._already_bound(now, node)
        if fits is not None and not (now is not None and self._keeps_leases(now, node)):
            await self._lease_writer.unreserve(meta.uid, node, fits.gpus, reserved.stamp)
        self._ledger.release_hold(meta.uid)
        return str(error)

    def _keeps_leases(self, pod: Pod, node: str) -> bool:
        """Return whether the leases of this attempt are still needed."""
        if pod.spec.node_name:
            return pod.spec.node_name == node
        # A gang releases all of its leases or none.
        return self._gang_plans.has(pod.metadata.uid)

    def nudge_value(self) -> str:
        """Return a unique value for the nudge annotation."""
        return f"{self._timing.now().isoformat()}-{int(self._timing.random() * 1e9):x}"
