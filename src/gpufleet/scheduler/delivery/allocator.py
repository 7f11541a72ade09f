"""Write the planner's decisions to ResourceClaims, and clear those that can't be used.

A pod in mode `dra` waits for its ResourceClaim, which kube-controller-manager makes from our template. The planner
places the pod, the allocator writes `status.allocation` of the claim, and the cluster's own kube-scheduler binds the
pod to that node. One write per pod, whatever the number of GPUs.

The GPUs stay held until the outcome of the write is known (`claim_writer.py`).

The same write reserves the claim for the pod (`reservedFor`), which saves kube-scheduler two writes of its own.

kube-scheduler clears an allocation itself only if the pod would fit on another node. So an allocation is also cleared
here if kube-scheduler reports, after having seen it, that the pod can't be placed.
See `clearing.py`.
"""

import asyncio
import uuid
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from gpufleet.errors import GpufleetError, KubernetesUnavailable
from gpufleet.kubernetes import Timing
from gpufleet.kubernetes.objects import Pod
from gpufleet.kubernetes.resource_claims import is_delivered_by_claim
from gpufleet.placement import Fits
from gpufleet.runtime.logs import RepeatedWarnings, get_logger
from gpufleet.scheduler.api import SchedulerApi
from gpufleet.scheduler.delivery.claim_writer import ClaimWriter, NotAllocated, pod_name
from gpufleet.scheduler.delivery.clearing import Clearing, Unbound
from gpufleet.scheduler.delivery.devices import DeviceMissing
from gpufleet.scheduler.leases.writer import Reserved
from gpufleet.scheduler.metrics import SchedulerMetrics
from gpufleet.scheduler.planning.gang_plans import GangPlans
from gpufleet.scheduler.planning.queue import Entry, Queue, foreign_gates
from gpufleet.scheduler.state import Ledger

_log = get_logger("scheduler")

PERIOD = 1.0
"""Seconds between checks for allocations that can't be used."""

UNUSABLE_AFTER = 5.0
"""Seconds after which an allocation is cleared if kube-scheduler has reported since that the pod can't be placed."""

UNCHANGED_AFTER = 30.0
"""The same if kube-scheduler had reported that before and has not changed its report: perhaps it has not tried yet."""

EXCLUDED_FOR = 60.0
"""Seconds for which a pod is not planned on a node again on which it could not be placed."""

_CONCURRENCY = 32
_BATCH = 256
_NOT_ALLOCATED = "cannot allocate all claims"
"""In kube-scheduler's message about an attempt that did not see the allocation yet."""


class ClaimAllocator:
    """Allocates and clears the ResourceClaims of pods with GpuClaims; `run` it while leading."""

    def __init__(
        self,
        api: SchedulerApi,
        ledger: Ledger,
        queue: Queue,
        gang_plans: GangPlans,
        metrics: SchedulerMetrics,
        grace_s: float,
        timing: Timing,
        *,
        report: Callable[[Pod], None],
        wake_planner: Callable[[], None],
        overlapping: Callable[[], set[str]],
        new_share: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        """`report` is called with a pod whose allocation has changed; `overlapping` returns holders of GPUs with two."""
        self._ledger = ledger
        self._queue = queue
        self._gang_plans = gang_plans
        self._metrics = metrics
        self._grace_s = grace_s
        self._timing = timing
        self._report = report
        self._wake_planner = wake_planner
        self._overlapping = overlapping
        self._writer = ClaimWriter(api, ledger, timing, new_share)
        self._clearing = Clearing(api, ledger, self._writer, metrics, timing)
        self._warnings = RepeatedWarnings(_log, timing.monotonic)
        self._pending: dict[str, Fits] = {}
        self._writing: set[str] = set()
        self._unbound = self._clearing.unbound
        self._unreserved: set[str] = set()
        """Bound pods whose claim is not reserved for them."""
        self._doubtful: set[str] = set()
        """Those of them that kube-scheduler can't place, and members of gangs."""
        self._excluded: dict[str, tuple[float, frozenset[str]]] = {}
        """Nodes on which a pod could not be placed, and until when they are not tried again."""
        self._wake = asyncio.Event()
        self._slots = asyncio.Semaphore(_CONCURRENCY)

    def is_busy(self) -> bool:
        """Return whether allocations are being written, or pods with one are not bound yet."""
        return bool(self._pending or self._writing or self._unbound)

    # -- watch events ----------------------------------------------------------------------

    def consider(self, uid: str) -> None:
        """Queue a pod that waits for GPUs, or watch over its allocation, after it or its claim has changed."""
        pod = self._ledger.pods.get(uid)
        if pod is None or not is_delivered_by_claim(pod):
            self._forget(uid)
            return
        claim = self._ledger.resource_claims.of_pod(pod)
        if pod.spec.node_name or pod.finished or pod.metadata.deletion_timestamp is not None:
            self._forget(uid)
            if (
                pod.spec.node_name
                and not pod.finished
                and claim is not None
                and not claim.status.reserved_for
            ):
                self._unreserved.add(uid)
                self._wake.set()
            return
        if claim is None:
            self._unbound.pop(uid, None)
        elif claim.status.allocation is not None:
            if uid not in self._unbound:
                nodes = frozenset(self._ledger.resource_claims.held(uid))
                self._unbound[uid] = Unbound(self._timing.monotonic(), nodes, unplaceable(pod))
            if unplaceable(pod) or self._ledger.gangs.of(pod) is not None:
                self._doubtful.add(uid)
            else:
                self._doubtful.discard(uid)
        elif (before := self._unbound.pop(uid, None)) is not None:
            _log.info("allocation_cleared", pod=pod_name(pod), by="kube-scheduler")
            self._metrics.cleared.labels("kube_scheduler").inc()
            self._plan_elsewhere(pod, before.nodes)
        elif self._ledger.gangs.of(pod) is None and not foreign_gates(pod) and self._queue.get(uid) is None:
            self._enqueue(pod)
            self._wake_planner()

    def _enqueue(self, pod: Pod) -> Entry:
        entry, uid = self._queue.put_pod(pod), pod.metadata.uid
        if uid in self._excluded:
            entry.excluded[uid] = self._excluded[uid][1]
        return entry

    def _forget(self, uid: str) -> None:
        self._pending.pop(uid, None)
        self._clearing.forget(uid)
        self._excluded.pop(uid, None)
        self._unreserved.discard(uid)

    # -- allocating ------------------------------------------------------------------------

    def allocate_later(self, pod: Pod, fits: Fits) -> None:
        """Write a decision of the planner in the next step."""
        self._pending[pod.metadata.uid] = fits
        self._wake.set()

    async def run(self) -> None:
        """Write and clear until cancelled."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(PERIOD):
                    await self._wake.wait()
            self._wake.clear()
            await self.step()

    async def step(self) -> None:
        """Write the allocations that the planner has decided, and clear those that can't be used."""
        for uid in self._writer.uncertain.keys() - self._writing:
            await self._settle_safely(uid)
        while self._pending:
            batch = [(uid, self._pending.pop(uid)) for uid in list(self._pending)[:_BATCH]]
            await asyncio.gather(*(self._allocate_safely(uid, fits) for uid, fits in batch))
        for uid in list(self._unreserved):
            await self._restore_reservation(uid)
        self._doubtful &= self._unbound.keys()
        for uid in self._doubtful | (self._overlapping() & self._unbound.keys()):
            await self._clear_if_unusable(uid)
        self._lift_exclusions()

    async def _allocate_safely(self, uid: str, fits: Fits) -> None:
        pod, hold = self._ledger.pods.get(uid), self._ledger.holds.get(uid)
        if pod is None or hold is None or hold.fits != fits or pod.spec.node_name:
            return  # it was planned again, or is gone
        try:
            await self.allocate(pod, fits)
        except GpufleetError as error:
            self._warnings.warn(
                uid, "claim_not_allocated", pod=pod_name(pod), node=fits.node, error=str(error)
            )
            if (entry := self._queue.get(uid)) is not None:
                if isinstance(error, DeviceMissing):
                    entry.excluded[uid] = entry.excluded.get(uid, frozenset()) | {fits.node}
                self._queue.failed(entry)
            return
        self._warnings.clear(uid)
        self._queue.drop(uid)

    async def allocate(self, pod: Pod, fits: Fits) -> None:
        """Write the allocation of a pod; raise a GpufleetError if it has none afterwards, as far as known."""
        uid = pod.metadata.uid
        if uid in self._writing or uid in self._writer.uncertain:
            raise NotAllocated(f"the ResourceClaim of {pod_name(pod)} is being written")
        hold = self._ledger.holds.get(uid)
        if hold is not None:
            # The hold must last until the outcome is known.
            self._ledger.hold(uid, replace(hold, until=float("inf"), pinned=True))
        self._writing.add(uid)
        try:
            async with self._slots:
                with self._metrics.phase("Reserve"):
                    await self._writer.allocate(pod, fits)
        finally:
            self._writing.discard(uid)
            if uid not in self._writer.uncertain:
                self._ledger.unpin(uid)
        self._metrics.decisions.labels("allocated").inc()
        self.consider(uid)
        self._report(pod)

    async def reserve(self, pod: Pod, fits: Fits) -> Reserved:
        """Write the allocation of a member of a gang."""
        await self.allocate(pod, fits)
        return Reserved("", fits.gpus)

    async def _settle_safely(self, uid: str) -> None:
        try:
            await self._writer.settle(uid)
        except NotAllocated:
            if (entry := self._queue.get(uid)) is not None:
                self._queue.failed(entry)
        except GpufleetError as error:
            self._warnings.warn(uid, "allocation_unknown", pod_uid=uid, error=str(error))
            return
        else:
            self._queue.drop(uid)
        self._ledger.unpin(uid)
        self.consider(uid)

    # -- clearing --------------------------------------------------------------------------

    async def clear(self, uid: str, reason: str) -> bool:
        """Clear the allocation of an unbound pod; return whether it has none now."""
        return await self._clearing.clear(uid, reason)

    async def _restore_reservation(self, uid: str) -> None:
        """Reserve the claim of a bound pod for it; without that the kubelet does not start the pod."""
        pod = self._ledger.pods.get(uid)
        claim = self._ledger.resource_claims.of_pod(pod) if pod is not None else None
        self._unreserved.discard(uid)
        if pod is None or claim is None or claim.status.allocation is None or claim.status.reserved_for:
            return
        try:
            if not await self._writer.reserve(claim, pod):
                self.consider(uid)
        except GpufleetError as error:
            self._warnings.warn(uid, "claim_not_reserved", pod=pod_name(pod), error=str(error))
            self._unreserved.add(uid)

    async def _clear_if_unusable(self, uid: str) -> None:
        pod, known = self._ledger.pods.get(uid), self._unbound.get(uid)
        if pod is None or known is None:
            return
        waited = self._timing.monotonic() - known.since
        gang = self._ledger.gangs.of(pod)
        reason = ""
        if uid in self._overlapping():
            reason = "overlap"
        elif report := unplaceable(pod):
            if waited >= (UNUSABLE_AFTER if report != known.report else UNCHANGED_AFTER):
                reason = "unschedulable"
        elif gang is not None and waited >= self._grace_s and not self._gang_plans.has(uid):
            reason = "gang_incomplete"
        if not reason:
            return
        if gang is not None and (plan := self._gang_plans.get(gang)) is not None:
            # The plan is dropped as a whole, and the gang planned again without that node.
            plan.refused = True
            entry = self._queue.put_gang(gang)
            if entry is not None:
                entry.excluded[uid] = known.nodes
            return
        try:
            cleared = await self.clear(uid, reason)
        except KubernetesUnavailable as error:
            self._warnings.warn(uid, "allocation_not_cleared", pod_uid=uid, error=str(error))
            return
        if cleared:
            self._plan_elsewhere(pod, known.nodes)

    def _plan_elsewhere(self, pod: Pod, nodes: frozenset[str]) -> None:
        """Plan a pod again that could not be placed on its node."""
        uid = pod.metadata.uid
        if self._ledger.gangs.of(pod) is None:
            before = self._excluded.get(uid, (0.0, frozenset[str]()))[1]
            self._excluded[uid] = (self._timing.monotonic() + EXCLUDED_FOR, before | nodes)
            self._queue.failed(self._enqueue(pod))
        self._report(pod)

    def _lift_exclusions(self) -> None:
        now = self._timing.monotonic()
        for uid, (until, _) in list(self._excluded.items()):
            if until <= now:
                del self._excluded[uid]
                if (entry := self._queue.get(uid)) is not None:
                    entry.excluded.pop(uid, None)
                    entry.planned = -1
                    self._wake_planner()


def unplaceable(pod: Pod) -> str:
    """Return why kube-scheduler can't place the pod, other than for its claim, or an empty string."""
    for condition in pod.status.conditions:
        if condition.type == "PodScheduled" and (condition.status, condition.reason) == (
            "False",
            "Unschedulable",
        ):
            return "" if _NOT_ALLOCATED in condition.message else condition.message or condition.reason
    return ""
