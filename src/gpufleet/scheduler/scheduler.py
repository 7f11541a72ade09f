"""Wire the scheduler's components, dispatch watch events, and answer extender verbs.

Watch events update the ledger first; then the components that depend on the object reconcile.
The verbs are called by kube-scheduler (`extender.py`) or by the stand-alone loop (`standalone.py`).
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from typing import Any

from gpufleet.kubernetes import CacheChange, Timing
from gpufleet.kubernetes.annotations import CLAIM
from gpufleet.kubernetes.crds.gpu_claim import GpuClaim
from gpufleet.kubernetes.crds.gpu_node_status import GpuNodeStatus
from gpufleet.kubernetes.leases import read_lease
from gpufleet.kubernetes.objects import Lease, NativePodGroup, Node, Pod, PodDisruptionBudget, PodGroup
from gpufleet.kubernetes.resource_claims import ResourceClaim, ResourceSlice, is_delivered_by_claim
from gpufleet.placement import DemandMemory, fragmentation
from gpufleet.runtime.logs import get_logger
from gpufleet.runtime.settings import SchedulerSettings
from gpufleet.scheduler.api import SchedulerApi
from gpufleet.scheduler.binding import Binder
from gpufleet.scheduler.claim_status import ClaimStatuses
from gpufleet.scheduler.delivery.allocator import ClaimAllocator
from gpufleet.scheduler.delivery.mirror import Mirror
from gpufleet.scheduler.delivery.overlaps import Overlaps
from gpufleet.scheduler.dirty_pods import DirtyPods
from gpufleet.scheduler.filtering import Choice, Filtering
from gpufleet.scheduler.lease_gc import LeaseGc
from gpufleet.scheduler.metrics import SchedulerMetrics
from gpufleet.scheduler.nudger import Nudger
from gpufleet.scheduler.planning.gang_plans import GangPlans
from gpufleet.scheduler.planning.gangs import Gangs
from gpufleet.scheduler.planning.plan import Waiting
from gpufleet.scheduler.planning.planner import Planner
from gpufleet.scheduler.planning.preemption import Preemption
from gpufleet.scheduler.planning.queue import Queue
from gpufleet.scheduler.planning.reserving import Reserver
from gpufleet.scheduler.reservation import Reservations, new_stamp
from gpufleet.scheduler.state import Ledger, valid_request
from gpufleet.scheduler.state.gang_identity import Gang
from gpufleet.scheduler.state.indexes import Key

_log = get_logger("scheduler")

DEMAND_INTERVAL = 600.0
"""Seconds between updates of the demand, after which the scores of all nodes are recomputed."""


PLAN_INTERVAL = 1.0
"""Seconds between checks for units whose backoff has ended."""

MOST_REPORTS = 200
"""Decisions for which events and statuses are prepared at once."""

SLICE = 0.005
"""Seconds of planning after which requests get their turn."""


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
        self.leading = leading
        self.metrics = SchedulerMetrics()
        self._changed = asyncio.Event()
        """Set when units may fit that did not fit before."""
        ledger = self.ledger = Ledger(self._changed)
        self._api = api
        self._settings = settings
        self._namespace = namespace
        self._timing = timing
        self._demand = DemandMemory()
        self._tasks: set[asyncio.Task[None]] = set()
        self.dirty = DirtyPods(ledger)
        self.nudger = Nudger(api, timing)
        self.queue = Queue(ledger, timing)
        gang_plans = GangPlans()
        self.reservations = Reservations(api, ledger, namespace, timing, new_stamp)
        self.binder = Binder(
            api, ledger, self.reservations, self.dirty, gang_plans, self.metrics, settings.hold, timing
        )
        self.lease_gc = LeaseGc(
            api,
            ledger,
            self.reservations,
            self.binder,
            self.dirty,
            gang_plans,
            self.metrics,
            settings.grace,
            timing,
        )
        self.preemption = Preemption(ledger, timing, settings.hold, enabled=settings.preempt)
        self.planner = Planner(
            ledger,
            self.queue,
            self.preemption,
            Reserver(ledger, self.queue, timing, settings.reservations),
            gang_plans,
            timing,
            scheduler_name=settings.name,
            hold_s=settings.hold,
            levels=settings.topology_levels,
        )
        self.allocator = ClaimAllocator(
            api,
            ledger,
            self.queue,
            gang_plans,
            self.metrics,
            settings.grace,
            timing,
            report=self._report_allocation,
            wake_planner=self._changed.set,
            overlapping=lambda: self.overlaps.holders(),
        )
        self.mirror = Mirror(
            api, ledger, self.reservations, self.binder.annotations, self.allocator.is_busy, timing
        )
        self.gangs = Gangs(
            api,
            ledger,
            self.queue,
            self.planner,
            gang_plans,
            self.reservations,
            self.allocator,
            self.lease_gc,
            self.dirty,
            self.nudger,
            settings.gang_grace,
            timing,
        )
        self.filtering = Filtering(ledger, self.planner, self.gangs, self.metrics)
        self.statuses = ClaimStatuses(api, ledger, self.planner.reason, self._is_binding, timing)
        self.overlaps = Overlaps(ledger, self.statuses, self.metrics)

    # -- verbs -----------------------------------------------------------------------------

    def filter(self, pod: Pod, candidates: Sequence[str]) -> Choice:
        """Return the node and GPUs of a pod (PreFilter, Filter and Score), or why it has none."""
        choice = self.filtering.choose(pod, candidates)
        self.act()
        return choice

    def prioritize(self, pod: Pod, candidates: Sequence[str]) -> dict[str, int]:
        """Return scores, for kube-schedulers with several extenders."""
        return self.filtering.score(pod, candidates)

    async def bind(self, namespace: str, name: str, uid: str, node: str) -> str:
        """Bind the pod; return an error message, or an empty string if it is bound."""
        pod = self.ledger.pods.get(uid)
        gang = self.ledger.gangs.of(pod) if pod else None
        if gang is not None and not await self.gangs.permit(uid, gang, self._settings.permit):
            return f"the other members of gang {gang.name} are not ready to be bound yet"
        error = await self.binder.bind(namespace, name, uid, node)
        if pod is not None:
            self.statuses.enqueue(namespace, pod.metadata.annotations.get(CLAIM, ""))
        if pod is not None and not error:
            self._record_allocated(pod)
        return error

    def _record_allocated(self, pod: Pod) -> None:
        for at, gpus in self.ledger.held_by(pod.metadata.uid).items():
            ids = ",".join(map(str, sorted(gpus)))
            note = f"Allocated GPU{'s' if len(gpus) > 1 else ''} {ids} of {at} to pod {pod.metadata.name}"
            self.statuses.record_claim_event(pod, "GpusAllocated", note, "Normal")

    def _is_binding(self) -> bool:
        return self.binder.is_binding() or self.allocator.is_busy()

    def _report_allocation(self, pod: Pod) -> None:
        """Report that the allocation of a pod's ResourceClaim was written or cleared."""
        self.statuses.enqueue(pod.metadata.namespace, pod.metadata.annotations.get(CLAIM, ""))
        self._record_allocated(pod)

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
            else:
                self.ledger.put_node(change.after)

    def on_reports(self, changes: Sequence[CacheChange[GpuNodeStatus]]) -> None:
        """Handle changes of GpuNodeStatus."""
        for change in changes:
            if change.after is None:
                self.ledger.drop_report(change.object.spec.node_name)
            else:
                self.ledger.put_report(change.after)

    def on_leases(self, changes: Sequence[CacheChange[Lease]]) -> None:
        """Handle lease changes, by this scheduler or others."""
        for change in changes:
            meta, lease = change.object.metadata, read_lease(change.object)
            if meta.namespace != self._namespace or lease is None:
                continue
            if change.after is None:
                self.ledger.drop_lease(meta.name, meta.uid)
            else:
                self.ledger.put_lease(change.after)
                lease = self.ledger.leases.get(meta.name)
            if lease is not None:
                self.overlaps.check([(lease.node, lease.gpu)])
            # Also after a deletion: a user may have deleted the lease of a running pod.
            for uid in lease.holders if lease else ():
                self.dirty.add(uid)

    def on_slices(self, changes: Sequence[CacheChange[ResourceSlice]]) -> None:
        """Handle changes of ResourceSlices."""
        for change in changes:
            if change.after is None:
                self.ledger.drop_slice(change.object)
            else:
                self.ledger.put_slice(change.after)

    def on_resource_claims(self, changes: Sequence[CacheChange[ResourceClaim]]) -> None:
        """Handle changes of ResourceClaims, of this scheduler or others."""
        for change in changes:
            meta = change.object.metadata
            known = self.ledger.resource_claims.get((meta.namespace, meta.name))
            places = {(gpu.node, gpu.gpu) for gpu in known.gpus} if known else set()
            if change.after is None:
                self.ledger.drop_resource_claim(change.object)
            else:
                self.ledger.put_resource_claim(change.after)
                known = self.ledger.resource_claims.get((meta.namespace, meta.name))
                places |= {(gpu.node, gpu.gpu) for gpu in known.gpus} if known else set()
            self.overlaps.check(places)
            for owner in meta.owner_references:
                self._claim_changed(owner.uid)

    def _claim_changed(self, uid: str) -> None:
        """Plan, watch or mirror the pod of a ResourceClaim."""
        pod = self.ledger.pods.get(uid)
        if pod is None or not is_delivered_by_claim(pod):
            return
        self.allocator.consider(uid)
        self.mirror.consider(pod)
        self.statuses.enqueue(pod.metadata.namespace, pod.metadata.annotations.get(CLAIM, ""))
        if not pod.spec.node_name and (gang := self.ledger.gangs.of(pod)) is not None:
            self._enqueue_gang(gang)

    def on_claims(self, changes: Sequence[CacheChange[GpuClaim]]) -> None:
        """Handle claim changes."""
        for change in changes:
            meta = change.object.metadata
            key = (meta.namespace, meta.name)
            if change.after is None:
                self.ledger.drop_claim(key)
                self.statuses.forget(*key)
            else:
                self.ledger.put_claim(change.after)
                # Even after our own write: a request that timed out may be executed after later ones.
                self.statuses.enqueue(*key)
                if change.before is None:
                    self._record_demand(change.after, len(self.ledger.pods_of(*key)))
            specs = [state.spec for state in (change.before, change.after) if state is not None]
            if len(specs) < 2 or specs[0] != specs[1]:
                self._replan_pods_of(key)

    def on_groups(self, changes: Sequence[CacheChange[PodGroup] | CacheChange[NativePodGroup]]) -> None:
        """Handle PodGroup changes, native or not: a gang may get its size, or be another one."""
        for change in changes:
            key = (change.object.metadata.namespace, change.object.metadata.name)
            before = self.ledger.gangs.named(key)
            if isinstance(change.object, NativePodGroup):
                self.ledger.gangs.drop_native_group(key)
            elif change.after is None:
                self.ledger.gangs.drop_group(key)
            if isinstance(change.after, NativePodGroup):
                self.ledger.gangs.put_native_group(change.after)
            elif change.after is not None:
                self.ledger.gangs.put_group(change.after)
            for gang in before | self.ledger.gangs.named(key):
                self._enqueue_gang(gang)

    def on_budgets(self, changes: Sequence[CacheChange[PodDisruptionBudget]]) -> None:
        """Handle changes of PodDisruptionBudgets: other pods may be evicted now."""
        self.preemption.forget_searches()
        self.ledger.note_freed()
        for change in changes:
            if change.after is None:
                self.ledger.budgets.drop(change.object)
            else:
                self.ledger.budgets.put(change.after)

    def on_pods(self, changes: Sequence[CacheChange[Pod]]) -> None:
        """Handle pod changes."""
        for change in changes:
            pod, uid = change.object, change.object.metadata.uid
            gangs = {self.ledger.gangs.of(state) for state in (change.before, change.after) if state}
            if change.after is None:
                self.ledger.drop_pod(uid)
                self.ledger.release_hold(uid)
                self.lease_gc.pod_deleted(uid)
                self.gangs.forget(uid)
                self._leave_queue(uid)
            else:
                if uid not in self.ledger.pods and (claim := self.ledger.claim_of(pod)):
                    self._record_demand(claim, 1)
                self.ledger.put_pod(change.after)
                if pod.spec.node_name or pod.finished or pod.metadata.deletion_timestamp:
                    self._leave_queue(uid)
            names = {
                state.metadata.annotations.get(CLAIM) for state in (change.before, change.after) if state
            }
            if not any(names) and not self.ledger.held_by(uid):
                continue
            self.dirty.add(uid)
            if pod.spec.resource_claims:
                self.allocator.consider(uid)
                self.mirror.consider(pod)
            self._report_exclusion(pod)
            for name in names:
                self.statuses.enqueue(pod.metadata.namespace, name or "")
            for gang in gangs:
                if gang is not None:
                    self._enqueue_gang(gang)

    def _report_exclusion(self, pod: Pod) -> None:
        """Record an event if no node admits a pod that waits: kube-scheduler does not ask for such a pod."""
        if not self.leading() or pod.metadata.uid not in self.ledger.pods or pod.spec.node_name:
            return
        why = "" if pod.finished else self.planner.exclusion(pod)
        if why and self.planner.reason(pod) == why:
            self.statuses.record_event(pod, "GpusUnavailable", why, "Warning")

    def _leave_queue(self, uid: str) -> None:
        self.queue.drop(uid)
        self.nudger.drop(uid)

    def _enqueue_gang(self, gang: Gang) -> None:
        members = self.ledger.gangs.members(gang)
        if members and all(map(self.planner.is_foreign, members)):
            return
        self.gangs.enqueue(gang)
        self._changed.set()

    def _replan_pods_of(self, key: Key) -> None:
        """Plan the waiting pods of a new or changed claim again."""
        for pod in self.ledger.pods_of(*key):
            if (entry := self.queue.get(pod.metadata.uid)) is not None:
                entry.planned = -1
                self._changed.set()
            if (gang := self.ledger.gangs.of(pod)) is not None:
                self._enqueue_gang(gang)

    # -- running ---------------------------------------------------------------------------

    async def lead(self) -> None:
        """Reconcile everything from scratch, then every change, until cancelled."""
        self.lease_gc.enqueue_all()
        self.statuses.enqueue_all()
        self.gangs.enqueue_all()
        self.mirror.enqueue_all()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.lease_gc.run())
            group.create_task(self.statuses.run())
            group.create_task(self.allocator.run())
            group.create_task(self.mirror.run())
            group.create_task(self._plan())
            group.create_task(self._update_demand())

    async def _plan(self) -> None:
        while True:
            await self.plan_step()
            with suppress(TimeoutError):
                async with asyncio.timeout(PLAN_INTERVAL):
                    await self._changed.wait()

    async def plan_step(self) -> None:
        """Plan what has changed, in slices; acquire the leases of planned gangs; nudge pods that fit."""
        self._changed.clear()
        self.gangs.drop_interrupted()
        until = self._timing.monotonic() + PLAN_INTERVAL
        while not self.planner.advance(SLICE):
            self.act()
            await asyncio.sleep(0)
            if self._timing.monotonic() > until:
                self._changed.set()
                break
        self.act()
        while self.planner.decided:
            await asyncio.sleep(0)
            self.act()
        await self.gangs.step()
        await self.nudger.step()

    def act(self) -> None:
        """Act on the planner's new decisions; reports of more than a few wait for the next call."""
        decided, self.planner.decided = self.planner.decided, []
        for at, each in enumerate(decided):
            if at >= MOST_REPORTS and isinstance(each.decision, Waiting) and not each.victims:
                self.planner.decided.append(each)
                continue
            for pod in each.pods:
                self.statuses.enqueue(pod.metadata.namespace, pod.metadata.annotations.get(CLAIM, ""))
            if isinstance(each.decision, Waiting):
                for pod in each.pods:
                    self.statuses.record_event(pod, "GpusUnavailable", each.decision.reason, "Warning")
                self._evict(each.victims, each.name)
            elif each.gang is not None:
                self.gangs.placed(each.gang, each.pods, each.decision)
            else:
                for pod in each.pods:
                    if is_delivered_by_claim(pod):
                        self.allocator.allocate_later(pod, each.decision.members[pod.metadata.uid])
                    else:
                        self.nudger.add(pod)

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
        self.metrics.held.labels("reservation").set(len(self.ledger.reservations))
        self.metrics.waiting.set(len(self.queue))
        self.metrics.leading.set(self.leading())
        now = fragmentation(self.ledger.cluster, self._demand.demand(self._timing.monotonic()))
        self.metrics.fragmentation.set(now.percent)
        self.metrics.free.set(now.free)

    # -- between the components ------------------------------------------------------------

    def _evict(self, victims: Sequence[Pod], by: str) -> None:
        for victim in victims:
            meta = victim.metadata
            _log.info("preempting", phase="PostFilter", victim=f"{meta.namespace}/{meta.name}", by=by)
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
