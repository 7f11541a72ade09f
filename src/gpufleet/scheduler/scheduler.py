"""Wire the scheduler's components, dispatch watch events, and answer extender verbs.

Watch events update the ledger first; then the components that depend on the object reconcile.
The verbs are called by kube-scheduler (`extender.py`) or by the stand-alone loop (`standalone.py`).
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from gpufleet.kubernetes import CacheChange, Timing
from gpufleet.kubernetes.annotations import CLAIM
from gpufleet.kubernetes.crds.gpu_claim import GpuClaim
from gpufleet.kubernetes.crds.gpu_node_status import GpuNodeStatus
from gpufleet.kubernetes.leases import read_lease
from gpufleet.kubernetes.objects import Lease, Node, Pod, PodGroup
from gpufleet.placement import DemandMemory, Inventory, Request, fragmentation
from gpufleet.runtime.logs import get_logger
from gpufleet.runtime.settings import SchedulerSettings
from gpufleet.scheduler.api import SchedulerApi
from gpufleet.scheduler.binding import Binder
from gpufleet.scheduler.claim_status import ClaimStatuses
from gpufleet.scheduler.filtering import Choice, Filtering, Unschedulable
from gpufleet.scheduler.gangs import Gangs
from gpufleet.scheduler.lease_gc import LeaseGc
from gpufleet.scheduler.metrics import SchedulerMetrics
from gpufleet.scheduler.pending_pods import PendingPods
from gpufleet.scheduler.preemption import Preemption
from gpufleet.scheduler.reservation import Reservations, new_stamp
from gpufleet.scheduler.state import Ledger, valid_request
from gpufleet.scheduler.state.ledger import Key

_log = get_logger("scheduler")

DEMAND_INTERVAL = 600.0
"""Seconds between updates of the demand, after which the scores of all nodes are recomputed."""


class Scheduler:
    """The scheduler of one replica; `leading` returns whether this replica leads."""

    def __init__(
        self,
        api: SchedulerApi,
        settings: SchedulerSettings,
        namespace: str,
        *,
        leading: Callable[[], bool] = lambda: True,
        timing: Timing = Timing(),  # noqa: B008  (frozen)
        new_stamp: Callable[[], str] = new_stamp,
    ) -> None:
        self.ledger = Ledger()
        self.metrics = SchedulerMetrics()
        self.pending = PendingPods()
        self.leading = leading
        self._api = api
        self._settings = settings
        self._namespace = namespace
        self._timing = timing
        self._demand = DemandMemory()
        self._tasks: set[asyncio.Task[None]] = set()
        ledger = self.ledger
        self.reservations = Reservations(api, ledger, namespace, timing, new_stamp)
        self.filtering = Filtering(ledger, self.pending, self.metrics, settings.hold, timing)
        self.binder = Binder(api, ledger, self.reservations, self.metrics, settings.hold, timing)
        self.lease_gc = LeaseGc(
            api, ledger, self.reservations, self.binder, self.pending, self.metrics, settings.grace, timing
        )
        self.statuses = ClaimStatuses(api, ledger, self.pending, timing)
        self.gangs = Gangs(api, ledger, self.reservations, self.lease_gc, timing)
        self.preemption = Preemption(ledger, timing)
        ledger.on_freed = self.lease_gc.gpus_freed
        self.binder.on_attempt_ended = self.lease_gc.enqueue
        self.lease_gc.is_planned = self.binder.is_planned = self.gangs.is_planned
        self.lease_gc.on_freed = self.gangs.enqueue_all
        self.gangs.on_planned = self._gang_planned
        self.gangs.on_refused = self._gang_refused
        self.gangs.preempt_for_gang = self._preempt_for_gang

    # -- verbs -----------------------------------------------------------------------------

    def filter(self, pod: Pod, candidates: Sequence[str]) -> Choice:
        """Choose a node and hold its GPUs (PreFilter, Filter and Score)."""
        gang = self.gangs.gang_of(pod)
        if gang is not None and (note := self.gangs.wait_reason(pod, gang)):
            self._refused(pod, note)
            return self.filtering.refuse(
                pod, candidates, note, "can't serve the pod before its whole gang fits"
            )
        choice = self.filtering.choose(pod, candidates)
        if isinstance(choice, Unschedulable):
            self._refused(pod, choice.note)
            self._preempt(pod, candidates)
        return choice

    def prioritize(self, pod: Pod, candidates: Sequence[str]) -> dict[str, int]:
        """Return scores, for kube-schedulers with several extenders."""
        return self.filtering.score(pod, candidates)

    async def bind(self, namespace: str, name: str, uid: str, node: str) -> str:
        """Bind the pod; return an error message, or an empty string if it is bound."""
        pod = self.ledger.pods.get(uid)
        gang = self.gangs.gang_of(pod) if pod else None
        if gang is not None and not await self.gangs.permit(uid, gang, self._settings.permit):
            return f"the other members of gang {gang[1]} are not ready to be bound yet"
        error = await self.binder.bind(namespace, name, uid, node)
        if pod is not None:
            self.statuses.enqueue(namespace, pod.metadata.annotations.get(CLAIM, ""))
        return error

    def victims(self, pod: Pod, proposed: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
        """Return the full victim list per proposed node."""
        claim = self.ledger.claim_of(pod)
        if claim is None:
            return {node: list(uids) for node, uids in proposed.items()}
        request = valid_request(claim)
        return self.preemption.victims_per_node(pod, request, proposed) if request else {}

    # -- watch events ----------------------------------------------------------------------

    def on_nodes(self, changes: Sequence[CacheChange[Node]]) -> None:
        """Handle node changes; most are heartbeats, which free no GPUs."""
        for change in changes:
            if change.after is None:
                self.ledger.drop_node(change.object.metadata.name)
            elif self.ledger.put_node(change.after):
                self.lease_gc.gpus_freed()

    def on_reports(self, changes: Sequence[CacheChange[GpuNodeStatus]]) -> None:
        """Handle changes of GpuNodeStatus."""
        for change in changes:
            if change.after is None:
                self.ledger.drop_report(change.object.spec.node_name)
            elif self.ledger.put_report(change.after):
                self.lease_gc.gpus_freed()

    def on_leases(self, changes: Sequence[CacheChange[Lease]]) -> None:
        """Handle lease changes, by this scheduler or others."""
        for change in changes:
            meta, lease = change.object.metadata, read_lease(change.object)
            if meta.namespace != self._namespace or lease is None:
                continue
            if change.after is None:
                self.ledger.drop_lease(meta.name, meta.uid)
                self.lease_gc.gpus_freed()
            else:
                self.ledger.put_lease(change.after)
                lease = self.ledger.leases.get(meta.name)
            # Also after a deletion: a user may have deleted the lease of a running pod.
            for uid in lease.holders if lease else ():
                self.lease_gc.enqueue(uid)

    def on_claims(self, changes: Sequence[CacheChange[GpuClaim]]) -> None:
        """Handle claim changes."""
        for change in changes:
            meta = change.object.metadata
            key = (meta.namespace, meta.name)
            if change.after is None:
                self.ledger.claims.pop(key, None)
                self.statuses.forget(*key)
                continue
            self.ledger.claims[key] = change.after
            # Even after our own write: a request that timed out may be executed after later ones.
            self.statuses.enqueue(*key)
            if change.before is None:
                self._record_demand(change.after, len(self.ledger.pods_of(*key)))
            if change.before is None or change.before.spec != change.after.spec:
                self._wake_pods_of(key)
            if change.after.spec.gang_ref:
                self.gangs.enqueue((meta.namespace, change.after.spec.gang_ref))

    def on_groups(self, changes: Sequence[CacheChange[PodGroup]]) -> None:
        """Handle PodGroup changes."""
        for change in changes:
            key = (change.object.metadata.namespace, change.object.metadata.name)
            if change.after is None:
                self.ledger.groups.pop(key, None)
            else:
                self.ledger.groups[key] = change.after
            self.gangs.enqueue(key)

    def on_pods(self, changes: Sequence[CacheChange[Pod]]) -> None:
        """Handle pod changes."""
        for change in changes:
            pod, uid = change.object, change.object.metadata.uid
            if change.after is None:
                self.ledger.drop_pod(uid)
                self.ledger.release_hold(uid)
                self.lease_gc.pod_deleted(uid)
                self.pending.drop(uid)
            else:
                if uid not in self.ledger.pods and (claim := self.ledger.claim_of(pod)):
                    self._record_demand(claim, 1)
                self.ledger.put_pod(change.after)
                if pod.spec.node_name or pod.finished or pod.metadata.deletion_timestamp:
                    self.pending.drop(uid)
            names = {
                state.metadata.annotations.get(CLAIM) for state in (change.before, change.after) if state
            }
            if not any(names) and not self.ledger.leases_of(uid):
                continue
            self.lease_gc.enqueue(uid)
            for name in names:
                self.statuses.enqueue(pod.metadata.namespace, name or "")
            if gang := self.gangs.gang_of(pod):
                self.gangs.enqueue(gang)

    # -- running ---------------------------------------------------------------------------

    async def lead(self) -> None:
        """Reconcile everything from scratch, then every change, until cancelled."""
        self.lease_gc.enqueue_all()
        self.statuses.enqueue_all()
        self.gangs.enqueue_all()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.lease_gc.run())
            group.create_task(self.statuses.run())
            group.create_task(self.gangs.run())
            group.create_task(self._update_demand())

    def learn(self) -> None:
        """Update placement with the demand of the last days."""
        self.ledger.cluster.learn(self._demand.demand(self._timing.monotonic()))

    async def _update_demand(self) -> None:
        while True:
            self.learn()
            await asyncio.sleep(DEMAND_INTERVAL)

    def refresh_metrics(self) -> None:
        """Set the gauges to the current state."""
        leased = sum(1 for _ in self.ledger.lease_holders())
        self.metrics.held.labels("memory").set(len(self.ledger.holds))
        self.metrics.held.labels("lease").set(leased)
        self.metrics.waiting.set(len(self.pending.pods))
        self.metrics.leading.set(self.leading())
        now = fragmentation(self.ledger.cluster, self._demand.demand(self._timing.monotonic()))
        self.metrics.fragmentation.set(now.percent)
        self.metrics.free.set(now.free)

    # -- between the components ------------------------------------------------------------

    def _refused(self, pod: Pod, note: str) -> None:
        self.statuses.enqueue(pod.metadata.namespace, pod.metadata.annotations.get(CLAIM, ""))
        self.statuses.record_event(pod, "GpusUnavailable", note, "Warning")

    def _preempt(self, pod: Pod, candidates: Sequence[str]) -> None:
        claim = self.ledger.claim_of(pod)
        request = valid_request(claim) if claim is not None else None
        if request is None or not self._settings.preempt:
            return
        name = f"{pod.metadata.namespace}/{pod.metadata.name}"
        # The candidates come from a request; an eviction must help the pod for certain.
        allowed = [node for node in candidates if self.ledger.meets_constraints(node, pod)]
        self._evict(self.preemption.nominate(pod, request, allowed), name)

    def _preempt_for_gang(
        self, gang: Key, pods: Sequence[Pod], requests: Sequence[Request], cluster: Inventory
    ) -> str:
        """Preempt pods for a gang; return what it waits for, or an empty string if preemption can't help."""
        if not self._settings.preempt:
            return ""
        victims = self.preemption.nominate_gang(gang[1], pods, requests, cluster)
        if victims is None:
            return ""
        self._evict(victims, f"gang {gang[0]}/{gang[1]}")
        return f"gang {gang[1]}: GPUs are held for it until the preempted pods have terminated"

    def _evict(self, victims: Sequence[Pod], by: str) -> None:
        for victim in victims:
            meta = victim.metadata
            _log.info("preempting", victim=f"{meta.namespace}/{meta.name}", by=by)
            note = f"Preempted by {by}, which has a higher priority"
            self.statuses.record_event(victim, "Preempted", note, "Warning")
            self.start_task(self._api.evict(meta.namespace, meta.name, meta.uid))

    def _record_demand(self, claim: GpuClaim, pods: int) -> None:
        """Count one request of the claim for each new pod that uses it."""
        request = valid_request(claim)
        if request is None:
            return
        for _ in range(pods):
            self._demand.observe(request, self._timing.monotonic())

    def _wake_pods_of(self, key: tuple[str, str]) -> None:
        """Nudge the refused pods of a new or changed claim."""
        for pod in self.ledger.pods_of(*key):
            if pod.metadata.uid in self.pending.pods:
                self.start_task(self._nudge(pod))

    def _gang_planned(self, pods: list[Pod]) -> None:
        for pod in pods:
            self.statuses.enqueue(pod.metadata.namespace, pod.metadata.annotations.get(CLAIM, ""))
            if self.pending.drop(pod.metadata.uid):
                self.start_task(self._nudge(pod))

    def _gang_refused(self, pods: list[Pod], note: str) -> None:
        for pod in pods:
            self.pending.put(pod, None, (), note)
            self._refused(pod, note)

    async def _nudge(self, pod: Pod) -> None:
        meta = pod.metadata
        await self._api.nudge(meta.namespace, meta.name, meta.uid, self.binder.nudge_value())

    def start_task(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run `work` in a background task; log its failure."""

        async def safely() -> None:
            try:
                await work
            except Exception as error:  # noqa: BLE001  a background task must not fail silently
                _log.warning("background_task_failed", error=str(error))

        task = asyncio.ensure_future(safely())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
