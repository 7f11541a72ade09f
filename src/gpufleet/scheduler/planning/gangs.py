"""Gangs: all members get their GPUs, or none does.

The planner places all members of a gang in one step. Here their leases are acquired together; if one
fails, all are released. Then the members' scheduling gates are removed. Binds wait for each other, so
no member runs before all are ready to be bound. A gang that is not bound before its deadline releases
everything and is planned again later. Two gangs can't each hold half of what both need, because
planning is one step and leases are never kept for half a gang.

A gang of which fewer members run than it needs, because some failed, vanished or could not be bound,
has a grace period to become complete. Then its running members are evicted, so that its controller
starts all of them again or none.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress

from gpufleet.errors import GpufleetError, KubernetesUnavailable
from gpufleet.kubernetes import Timing
from gpufleet.kubernetes.annotations import GANG_GATE
from gpufleet.kubernetes.objects import Pod
from gpufleet.kubernetes.resource_claims import is_delivered_by_claim
from gpufleet.placement import Fits
from gpufleet.runtime.logs import RepeatedWarnings, get_logger
from gpufleet.scheduler.api import SchedulerApi
from gpufleet.scheduler.delivery.allocator import ClaimAllocator
from gpufleet.scheduler.extender.nudger import Nudger
from gpufleet.scheduler.leases.dirty_pods import DirtyPods
from gpufleet.scheduler.leases.gc import LeaseGc
from gpufleet.scheduler.leases.writer import LeaseWriter, PodRef, Reserved
from gpufleet.scheduler.planning.gang_plans import GangPlan, GangPlans, MemberLeases
from gpufleet.scheduler.planning.plan import Decision, Placed, Waiting
from gpufleet.scheduler.planning.planner import Planner
from gpufleet.scheduler.planning.queue import Queue, gang_key
from gpufleet.scheduler.state import Ledger
from gpufleet.scheduler.state.allocations import has_started
from gpufleet.scheduler.state.gang_identity import Gang, GangRequirements

_log = get_logger("scheduler")


class Gangs:
    """Leases and binds planned gangs; `step` reconciles those that have changed."""

    def __init__(
        self,
        api: SchedulerApi,
        ledger: Ledger,
        queue: Queue,
        planner: Planner,
        plans: GangPlans,
        lease_writer: LeaseWriter,
        allocator: ClaimAllocator,
        lease_gc: LeaseGc,
        dirty: DirtyPods,
        nudger: Nudger,
        grace_s: float,
        timing: Timing,
    ) -> None:
        self._api = api
        self._ledger = ledger
        self._queue = queue
        self._planner = planner
        self._lease_writer = lease_writer
        self._allocator = allocator
        self._lease_gc = lease_gc
        self._dirty_pods = dirty
        self._nudger = nudger
        self._grace_s = grace_s
        self._timing = timing
        self._warnings = RepeatedWarnings(_log, timing.monotonic)
        self.plans = plans
        self._placed: dict[Gang, tuple[Sequence[Pod], Placed]] = {}
        self._dirty: set[Gang] = set()
        self._known: set[Gang] = set()
        self._refused: set[str] = set()
        """Members that kube-scheduler has tried in vain and must be made to try again."""
        self._incomplete: dict[Gang, float] = {}
        """Since when fewer members run than the gang needs."""
        self._succeeded: dict[Gang, int] = {}
        """How many members have succeeded: they may be deleted while others still run."""

    # -- for the verbs ---------------------------------------------------------------------

    def decide(self, pod: Pod, gang: Gang, candidates: Sequence[str]) -> Decision:
        """Return the decision for a member."""
        decision = self._decide(pod, gang, candidates)
        if isinstance(decision, Waiting):
            self._refused.add(pod.metadata.uid)
        return decision

    def forget(self, uid: str) -> None:
        """Forget a deleted pod."""
        self._refused.discard(uid)

    def _decide(self, pod: Pod, gang: Gang, candidates: Sequence[str]) -> Decision:
        plan = self.plans.get(gang)
        if plan is not None and pod.metadata.uid in plan.members:
            if not plan.leased:
                # If one lease can't be acquired, no member may run.
                return Waiting(f"gang {gang.name} is being planned")
            return self._planned_place(pod, gang, plan, candidates)
        if self._is_running(gang):
            needs, members = self._ledger.gangs.requirements(gang), self._ledger.gangs.members(gang)
            most = needs.max_members if needs is not None else None
            if most is not None and pod.metadata.uid not in {each.metadata.uid for each in members[:most]}:
                return Waiting(f"gang {gang.name} has its maximum of {most} members")
            return self._planner.plan_pod(pod, candidates)
        entry = self._queue.get(gang_key(gang)) or self._queue.put_gang(gang)
        if entry is None or not isinstance(entry.decision, Waiting):
            return Waiting(f"gang {gang.name} is being planned")
        return entry.decision

    def _planned_place(self, pod: Pod, gang: Gang, plan: GangPlan, candidates: Sequence[str]) -> Decision:
        if self._planner.has_place(pod, candidates):
            return self._planner.plan_pod(pod, candidates)
        nodes = set(self._ledger.held_by(pod.metadata.uid))
        entry = self._queue.put_gang(gang)
        if entry is not None:
            entry.excluded[pod.metadata.uid] = frozenset(nodes)
        plan.refused = True
        self.enqueue(gang)
        name = ", ".join(sorted(nodes))
        return Waiting(f"gang {gang.name}: {name} can't take pod {pod.metadata.name}; it is planned again")

    async def permit(self, uid: str, gang: Gang, timeout_s: float) -> bool:
        """Wait until all planned members are ready to be bound; return whether that happened in time.

        A member whose plan was dropped must not run alone. A member that joins a running gang does
        not wait.
        """
        plan = self.plans.get(gang)
        if plan is None or uid not in plan.members:
            pod = self._ledger.pods.get(uid)
            return self._is_running(gang) or (pod is not None and bool(pod.spec.node_name))
        plan.arrived.add(uid)
        self._check_complete(plan)
        try:
            async with asyncio.timeout(timeout_s):
                await plan.complete.wait()
        except TimeoutError:
            return False
        return True

    def _is_running(self, gang: Gang) -> bool:
        """Return whether enough members are bound."""
        needs = self._ledger.gangs.requirements(gang)
        bound = sum(bool(pod.spec.node_name) for pod in self._ledger.gangs.members(gang))
        return needs is not None and bound >= needs.min_members

    def _check_complete(self, plan: GangPlan) -> None:
        bound = {uid for uid in plan.members if (pod := self._ledger.pods.get(uid)) and pod.spec.node_name}
        if plan.members <= plan.arrived | bound:
            plan.complete.set()

    # -- reconciling -----------------------------------------------------------------------

    def enqueue(self, gang: Gang) -> None:
        """Reconcile a gang in the next step."""
        self._known.add(gang)
        self._dirty.add(gang)
        if self._queue.put_gang(gang) is None and not self._ledger.gangs.pods(gang):
            # A replica that does not lead would keep it forever.
            self._known.discard(gang)
            if gang not in self.plans:
                self._dirty.discard(gang)

    def enqueue_all(self) -> None:
        """Reconcile all gangs: this replica starts to lead."""
        for gang in list(self._known):
            self.enqueue(gang)

    def placed(self, gang: Gang, pods: Sequence[Pod], decision: Placed) -> None:
        """Acquire the leases of a gang that the planner has placed in the next step."""
        self._placed[gang] = (pods, decision)
        self.plans[gang] = GangPlan(self._deadline(gang), {pod.metadata.uid for pod in pods})

    def drop_interrupted(self) -> None:
        """Drop plans whose leases were being written when leadership was lost or a step failed."""
        for gang, plan in list(self.plans.items()):
            if not plan.leased and gang not in self._placed:
                self._drop_plan(gang)

    async def step(self) -> None:
        """Reconcile the gangs that have changed, are planned or are incomplete."""
        due, self._dirty = self._dirty | set(self.plans) | set(self._incomplete), set()
        await asyncio.gather(*(self._reconcile_safely(gang) for gang in sorted(due)))

    async def _reconcile_safely(self, gang: Gang) -> None:
        name = str(gang)
        try:
            await self._reconcile(gang)
            self._warnings.clear(name)
        except GpufleetError as error:
            self._warnings.warn(name, "gang_not_reconciled", gang=name, error=str(error))
            self._dirty.add(gang)

    async def _reconcile(self, gang: Gang) -> None:
        plan, members = self.plans.get(gang), self._ledger.gangs.members(gang)
        needs = self._ledger.gangs.requirements(gang)
        pods = self._ledger.gangs.pods(gang)
        succeeded = sum(pod.status.phase == "Succeeded" for pod in pods)
        self._succeeded[gang] = max(succeeded, self._succeeded.get(gang, 0))
        if not pods:
            self._known.discard(gang)
            del self._succeeded[gang]
        if plan is not None and plan.leased:
            await self._check_plan(gang, plan, members, needs)
            return
        if plan is not None:
            chosen, placed = self._placed.pop(gang)
            await self._lease(gang, chosen, placed.members)
            return
        if needs is None:
            return
        started = [pod for pod in members if has_started(self._ledger, pod)]
        if sum(bool(pod.spec.node_name) for pod in started) >= needs.min_members:
            self._incomplete.pop(gang, None)
            await self._remove_gates(members[: needs.max_members])
        elif len(started) >= needs.min_members:
            # Reserved before a restart: resume the plan.
            await self._start_plan(gang, started)
        else:
            await self._check_incomplete(gang, needs)

    async def _check_plan(
        self, gang: Gang, plan: GangPlan, members: list[Pod], needs: GangRequirements | None
    ) -> None:
        existing = {pod.metadata.uid for pod in members}
        # Their pod or claim was deleted, or the claim names another gang.
        self._release_members(plan.members - existing)
        plan.members &= existing
        enough = needs is not None and len(plan.members) >= needs.min_members
        if enough:
            self._check_complete(plan)
        bound = sum(bool(pod.spec.node_name) for pod in members if pod.metadata.uid in plan.members)
        if plan.members and bound == len(plan.members):
            del self.plans[gang]
            self.enqueue(gang)  # members may have failed meanwhile, so that too few run
            await self._remove_gates(members[: needs.max_members if needs is not None else None])
            return
        overdue = self._timing.monotonic() - plan.deadline
        # Some members are running already: the others keep their GPUs for the grace period.
        if (bound and overdue < self._grace_s) or (enough and not plan.refused and overdue < 0 and not bound):
            await self._remove_gates([pod for pod in members if pod.metadata.uid in plan.members])
            return
        reason = "refused" if plan.refused else "timeout" if enough else "too_few_members"
        _log.warning("gang_plan_dropped", gang=str(gang), reason=reason, members=len(plan.members))
        self._drop_plan(gang)
        await self._reclaim_members(plan, members)
        if bound:
            await self._end(gang)
        entry = self._queue.put_gang(gang)
        if entry is not None and enough:
            self._queue.failed(entry)

    def _drop_plan(self, gang: Gang) -> None:
        """Drop the plan of a gang."""
        self._release_members(self.plans.pop(gang).members)
        self._queue.put_gang(gang)

    def _release_members(self, members: Iterable[str]) -> None:
        """Release the holds of pods without a plan; `leases/gc.py` reclaims their leases."""
        for uid in members:
            self._ledger.release_hold(uid)
            self._dirty_pods.add(uid)

    async def _reclaim_members(self, plan: GangPlan, members: list[Pod]) -> None:
        for pod in members:
            uid = pod.metadata.uid
            if uid in plan.members and not pod.spec.node_name:
                if is_delivered_by_claim(pod):
                    await self._allocator.clear(uid, "gang_incomplete")
                    continue
                leased = {node: dict(gpus) for node, gpus in self._ledger.leases_of(uid).items()}
                if not await self._lease_gc.reclaim(pod, leased):
                    self._dirty_pods.add(uid)

    async def _check_incomplete(self, gang: Gang, needs: GangRequirements) -> None:
        """End a gang whose members have failed or vanished, after its grace period."""
        running = [pod for pod in self._ledger.gangs.members(gang) if pod.spec.node_name]
        if not running or len(running) + self._succeeded.get(gang, 0) >= needs.min_members:
            self._incomplete.pop(gang, None)
            return
        now = self._timing.monotonic()
        since = self._incomplete.setdefault(gang, now)
        if now - since >= self._grace_s:
            del self._incomplete[gang]
            _log.warning(
                "incomplete_gang_ended", gang=str(gang), running=len(running), needs=needs.min_members
            )
            await self._end(gang)

    async def _end(self, gang: Gang) -> None:
        """Evict the running members of a gang that can't run as a whole."""
        for pod in self._ledger.gangs.members(gang):
            if pod.spec.node_name:
                await self._api.evict(pod.metadata.namespace, pod.metadata.name, pod.metadata.uid)

    async def _lease(self, gang: Gang, pods: Sequence[Pod], places: Mapping[str, Fits]) -> None:
        waiting = [pod for pod in pods if pod.metadata.uid in places]
        if await self._reserve_all(gang, waiting, [places[pod.metadata.uid] for pod in waiting]):
            await self._start_plan(gang, pods)
        else:
            self._drop_plan(gang)

    async def _reserve_all(self, gang: Gang, pods: list[Pod], places: Sequence[Fits]) -> bool:
        names = [self._ref(pod) for pod in pods]
        attempts = [
            self._allocator.reserve(pod, fits)
            if is_delivered_by_claim(pod)
            else self._lease_writer.reserve(name, fits)
            for pod, name, fits in zip(pods, names, places, strict=True)
        ]
        outcomes = await asyncio.gather(*attempts, return_exceptions=True)
        failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        if not failures:
            self.plans[gang].leases = {
                pod.metadata.uid: MemberLeases(reserved.stamp, pod.metadata.resource_version)
                for pod, reserved in zip(pods, outcomes, strict=True)
                if isinstance(reserved, Reserved)
            }
            return True
        for pod, name, fits, reserved in zip(pods, names, places, outcomes, strict=True):
            self._ledger.release_hold(name.uid)
            if is_delivered_by_claim(pod):
                with suppress(KubernetesUnavailable):  # the allocator clears it later
                    await self._allocator.clear(name.uid, "gang_incomplete")
            elif isinstance(reserved, Reserved):
                await self._lease_writer.unreserve(name.uid, fits.node, reserved.new, reserved.stamp)
            self._dirty_pods.add(name.uid)
        if unexpected := [each for each in failures if not isinstance(each, GpufleetError)]:
            raise unexpected[0]
        _log.info("gang_not_reserved", phase="Reserve", gang=str(gang), error=str(failures[0]))
        return False

    async def _start_plan(self, gang: Gang, members: Sequence[Pod]) -> None:
        leases = self.plans[gang].leases if gang in self.plans else {}
        uids = {pod.metadata.uid for pod in members}
        self.plans[gang] = GangPlan(self._deadline(gang), uids, leased=True, leases=leases)
        self._queue.drop(gang_key(gang))
        _log.info("gang_planned", phase="Reserve", gang=str(gang), members=len(members))
        for pod in members:
            if pod.metadata.uid in self._refused:
                self._nudger.add(pod)
        self._refused.difference_update(pod.metadata.uid for pod in members)
        await self._remove_gates(members)

    async def _remove_gates(self, members: Sequence[Pod]) -> None:
        gated = [pod for pod in members if any(g.name == GANG_GATE for g in pod.spec.scheduling_gates)]
        await asyncio.gather(*(self._remove_gate(pod) for pod in gated))

    async def _remove_gate(self, pod: Pod) -> None:
        now = await self._api.remove_gate(pod, GANG_GATE)
        if now is not None:
            self._ledger.put_pod(now)
            meta = pod.metadata
            self.plans.pod_changed(meta.uid, meta.resource_version, now.metadata.resource_version)

    def _deadline(self, gang: Gang) -> float:
        needs = self._ledger.gangs.requirements(gang)
        return self._timing.monotonic() + (needs.timeout if needs is not None else 0.0)

    def _ref(self, pod: Pod) -> PodRef:
        claim = self._ledger.claim_of(pod)
        meta = pod.metadata
        return PodRef(meta.uid, meta.namespace, meta.name, claim.metadata.name if claim else "")
