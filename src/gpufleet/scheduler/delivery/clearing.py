"""Clear the allocation of a pod that is not bound, without a race against kube-scheduler.

First the reservation is removed, so that kube-scheduler can't bind the pod any more without a write to the claim. When
attempts that have not seen this are over, the allocation is cleared under the version of the claim: either
kube-scheduler's write or ours fails. A pod that such an early attempt has bound gets its reservation back. The pod is
read before its allocation is cleared, because the watch may not have delivered that it is bound, or that its scheduling
gate was removed.
"""

from dataclasses import dataclass

from gpufleet.kubernetes import Timing
from gpufleet.kubernetes.client.errors import KubernetesRefused
from gpufleet.kubernetes.objects import Pod
from gpufleet.runtime.logs import RepeatedWarnings, get_logger
from gpufleet.scheduler.api import SchedulerApi
from gpufleet.scheduler.delivery.claim_writer import ClaimWriter
from gpufleet.scheduler.metrics import SchedulerMetrics
from gpufleet.scheduler.state import Ledger

_log = get_logger("scheduler")

RELEASED_FOR = 10.0
"""Seconds between the removal of a reservation and of the allocation: longer than an attempt of kube-scheduler takes."""


@dataclass(frozen=True)
class Unbound:
    """Since when a pod has an allocation, on which nodes, and what kube-scheduler had reported by then."""

    since: float
    nodes: frozenset[str]
    report: str


class Clearing:
    """Clears the allocations of unbound pods."""

    def __init__(
        self,
        api: SchedulerApi,
        ledger: Ledger,
        writer: ClaimWriter,
        metrics: SchedulerMetrics,
        timing: Timing,
    ) -> None:
        self._api = api
        self._ledger = ledger
        self._writer = writer
        self._metrics = metrics
        self._timing = timing
        self._warnings = RepeatedWarnings(_log, timing.monotonic)
        self.unbound: dict[str, Unbound] = {}
        """Pods that have an allocation and no node."""
        self._released: dict[str, float] = {}
        """When the reservation of a pod was removed, to clear its allocation."""

    def forget(self, uid: str) -> None:
        """Forget a pod that is bound or gone."""
        self.unbound.pop(uid, None)
        self._released.pop(uid, None)

    async def clear(self, uid: str, reason: str) -> bool:
        """Clear the allocation of an unbound pod; return whether it has none now."""
        pod = self._ledger.pods.get(uid)
        claim = self._ledger.resource_claims.of_pod(pod) if pod is not None else None
        if pod is None or claim is None or claim.status.allocation is None:
            return True
        status: dict[str, None] = {"allocation": None, "reservedFor": None}
        if not pod.spec.scheduling_gates:
            # kube-scheduler may be trying the pod at this moment.
            now = self._timing.monotonic()
            if claim.status.reserved_for:
                if uid in self._released:
                    return False  # reserved by kube-scheduler, which binds it
                status = {"reservedFor": None}
            elif now - self._released.setdefault(uid, now) < RELEASED_FOR:
                return False
        if "allocation" in status and not await self._is_unchanged(pod):
            return False
        try:
            if not await self._writer.release(claim, status):
                return False
        except KubernetesRefused as error:
            await self._writer.read(claim)
            self._warnings.warn(uid, "allocation_not_cleared", pod_uid=uid, error=str(error))
            return False
        if "allocation" not in status:
            self._released[uid] = self._timing.monotonic()
            return False
        self._released.pop(uid, None)
        _log.info("allocation_cleared", claim=claim.metadata.name, pod_uid=uid, by="gpufleet", reason=reason)
        self._metrics.cleared.labels(reason).inc()
        self.unbound.pop(uid, None)
        return True

    async def _is_unchanged(self, pod: Pod) -> bool:
        """Return whether the pod is still unbound, behind its gates or not, as it is known here."""
        meta = pod.metadata
        now = await self._api.read_pod(meta.namespace, meta.name)
        if now is None or now.metadata.uid != meta.uid:
            return False
        self._ledger.put_pod(now)
        return not now.spec.node_name and now.spec.scheduling_gates == pod.spec.scheduling_gates
