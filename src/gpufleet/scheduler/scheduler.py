"""Wire the scheduler's components, plan what has changed, and answer extender verbs.

The verbs are called by kube-scheduler (`extender/verbs.py`) or by the stand-alone loop (`standalone.py`).
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from gpufleet.kubernetes import Timing
from gpufleet.kubernetes.annotations import CLAIM
from gpufleet.kubernetes.objects import Pod
from gpufleet.placement import DemandMemory, fragmentation
from gpufleet.runtime.logs import get_logger
from gpufleet.runtime.settings import SchedulerSettings
from gpufleet.scheduler.api import SchedulerApi
from gpufleet.scheduler.background import BackgroundTasks
from gpufleet.scheduler.binding import Binder
from gpufleet.scheduler.claim_status import ClaimStatuses
from gpufleet.scheduler.decision_actions import DecisionActions
from gpufleet.scheduler.delivery.allocator import ClaimAllocator
from gpufleet.scheduler.delivery.mirror import Mirror
from gpufleet.scheduler.delivery.overlaps import Overlaps
from gpufleet.scheduler.direct_binding import DirectBinding
from gpufleet.scheduler.extender.nudger import Nudger
from gpufleet.scheduler.filtering import Choice, Filtering
from gpufleet.scheduler.leases.dirty_pods import DirtyPods
from gpufleet.scheduler.leases.gc import LeaseGc
from gpufleet.scheduler.leases.writer import LeaseWriter, new_stamp
from gpufleet.scheduler.metrics import SchedulerMetrics
from gpufleet.scheduler.planning.decisions import Decisions
from gpufleet.scheduler.planning.gang_plans import GangPlans
from gpufleet.scheduler.planning.gangs import Gangs
from gpufleet.scheduler.planning.planner import Planner
from gpufleet.scheduler.planning.preemption import Preemption
from gpufleet.scheduler.planning.queue import Queue
from gpufleet.scheduler.planning.reclaim import EvictablePods
from gpufleet.scheduler.planning.reserving import Reserver
from gpufleet.scheduler.queues.gpu_queues import GpuQueues
from gpufleet.scheduler.queues.queue_control import QueueControl
from gpufleet.scheduler.queues.queue_events import QueueEvents
from gpufleet.scheduler.queues.start_reader import StartReader
from gpufleet.scheduler.queues.use_reader import UseReader
from gpufleet.scheduler.state import Ledger, valid_request
from gpufleet.scheduler.watch_events import WatchEvents

_log = get_logger("scheduler")

DEMAND_INTERVAL = 600.0
"""Seconds between updates of the demand, after which the scores of all nodes are recomputed."""


PLAN_INTERVAL = 1.0
"""Seconds between checks for units whose backoff has ended."""

SLICE = 0.005
"""Seconds of planning after which requests get their turn."""


@dataclass(frozen=True)
class Waits:
    """Seconds to wait for what should happen soon."""

    grace: float = 30.0
    """An unbound pod keeps its Leases: kube-scheduler retries a failed bind within seconds."""
    permit: float = 10.0
    """The bind of a gang member waits for the others; shorter than the timeout of an extender call (30 s)."""


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
        waits: Waits = Waits(),  # noqa: B008  (frozen)
    ) -> None:
        self.leading = leading
        self.metrics = SchedulerMetrics()
        self._changed = asyncio.Event()
        """Set when units may fit that did not fit before."""
        ledger = self.ledger = Ledger(self._changed)
        self._api = api
        self._permit = waits.permit
        self._namespace = namespace
        self._timing = timing
        self._demand = DemandMemory()
        self.tasks = BackgroundTasks()
        self._decisions = Decisions(timing)
        self.dirty = DirtyPods(ledger)
        self.nudger = Nudger(api, timing)
        self.gpu_queues = GpuQueues(ledger, timing, settings.share_half_life)
        self.queue_events = QueueEvents(self.gpu_queues)
        self.queue = Queue(ledger, timing, self.gpu_queues)
        gang_plans = GangPlans()
        self.lease_writer = LeaseWriter(api, ledger, namespace, timing, new_stamp)
        self.binder = Binder(
            api, ledger, self.lease_writer, self.dirty, gang_plans, self.metrics, settings.hold, timing
        )
        self.lease_gc = LeaseGc(
            api,
            ledger,
            self.lease_writer,
            self.binder,
            self.dirty,
            gang_plans,
            self.metrics,
            waits.grace,
            timing,
        )
        evictable = EvictablePods(ledger, self.gpu_queues, settings.reclaim_grace)
        self.preemption = Preemption(ledger, timing, settings.hold, evictable, enabled=settings.preempt)
        self.planner = Planner(
            ledger,
            self.queue,
            self.preemption,
            Reserver(ledger, self.queue, timing, settings.reservations),
            gang_plans,
            self.gpu_queues,
            self._decisions,
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
            waits.grace,
            timing,
            report=self._report_allocation,
            wake_planner=self._changed.set,
            overlapping=lambda: self.overlaps.holders(),
        )
        self.mirror = Mirror(
            api, ledger, self.lease_writer, self.binder.annotations, self.allocator.is_busy, timing
        )
        self.gangs = Gangs(
            api,
            ledger,
            self.queue,
            self.planner,
            gang_plans,
            self.lease_writer,
            self.allocator,
            self.lease_gc,
            self.dirty,
            self.nudger,
            settings.gang_grace,
            timing,
        )
        self.filtering = Filtering(ledger, self.planner, self.gangs, self.metrics)
        self.start_reader = StartReader(
            settings, timing, lambda: len(self.queue) > 0, lambda *claim: self.statuses.enqueue(*claim)
        )
        self.statuses = ClaimStatuses(
            api, ledger, self.planner.reason, self._is_binding, timing, self.start_reader.expected
        )
        self.overlaps = Overlaps(ledger, self.statuses, self.metrics)
        self.direct = DirectBinding(
            ledger,
            self.bind,
            self.statuses,
            self.tasks,
            settings.name,
            enabled=settings.direct_binding and not settings.standalone,
        )
        self._actions = DecisionActions(
            api,
            self._decisions,
            self.statuses,
            self.gangs,
            self.allocator,
            self.nudger,
            self.direct,
            self.tasks,
            settings.reclaim_grace,
        )
        self.use_reader = UseReader(self.gpu_queues, settings, timing)
        self.queue_control = QueueControl(
            api,
            self.gpu_queues,
            self.metrics,
            timing,
            waiting=lambda: ((entry.pod.metadata.namespace, entry.milli) for entry in self.queue),
            problem=lambda: self.use_reader.problem,
            evict=self._actions.evict,
            grace=settings.reclaim_grace,
        )
        self.watch_events = WatchEvents(
            ledger,
            self.queue,
            self.planner,
            self.preemption,
            self.gangs,
            self.lease_gc,
            self.allocator,
            self.mirror,
            self.overlaps,
            self.statuses,
            self.dirty,
            self.nudger,
            self.direct,
            self._demand,
            self._changed,
            timing,
            namespace=namespace,
            leading=leading,
        )

    # -- verbs -----------------------------------------------------------------------------

    def filter(self, pod: Pod, candidates: Sequence[str]) -> Choice:
        """Return the node and GPUs of a pod (PreFilter, Filter and Score), or why it has none."""
        self.direct.asked(pod.metadata.uid)
        choice = self.filtering.choose(pod, candidates)
        self._actions.act()
        return choice

    def prioritize(self, pod: Pod, candidates: Sequence[str]) -> dict[str, int]:
        """Return scores, for kube-schedulers with several extenders."""
        return self.filtering.score(pod, candidates)

    async def bind(self, namespace: str, name: str, uid: str, node: str) -> str:
        """Bind the pod; return an error message, or an empty string if it is bound."""
        pod = self.ledger.pods.get(uid)
        gang = self.ledger.gangs.of(pod) if pod else None
        if gang is not None and not await self.gangs.permit(uid, gang, self._permit):
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

    # -- running ---------------------------------------------------------------------------

    async def lead(self) -> None:
        """Reconcile everything from scratch, then every change, until cancelled."""
        self.lease_gc.enqueue_all()
        self.statuses.enqueue_all()
        self.gangs.enqueue_all()
        self.mirror.enqueue_all()
        await self.use_reader.read_first()
        self.queue_control.prepare()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.lease_gc.run())
            group.create_task(self.statuses.run())
            group.create_task(self.allocator.run())
            group.create_task(self.mirror.run())
            group.create_task(self._plan())
            group.create_task(self._update_demand())
            group.create_task(self.use_reader.run())
            group.create_task(self.start_reader.run())
            group.create_task(self.queue_control.run())

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
            self._actions.act()
            await self.direct.turn()
            await asyncio.sleep(0)
            if self._timing.monotonic() > until:
                self._changed.set()
                break
        self._actions.act()
        while self._decisions.pending:
            await asyncio.sleep(0)
            self._actions.act()
        await self.gangs.step()
        await self.nudger.step()

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
