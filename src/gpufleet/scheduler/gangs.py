"""Gangs: all members get their GPUs, or none does.

When enough members exist, all of them are placed in one step and their leases are acquired
together; if one fails, all are released. Then the members' scheduling gates are removed. Binds
wait for each other, so no member runs before all are ready to be bound. A gang that is not bound
before its deadline releases everything and may be planned again. Two gangs can't each hold half
of what both need, because planning is one step and leases are never kept for half a gang. A gang
of higher priority may preempt other pods, if that makes room for all of its members.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from gpufleet.errors import GpufleetError, InvalidRequest
from gpufleet.kubernetes import Timing
from gpufleet.kubernetes.annotations import GANG_GATE, GANG_SIZE
from gpufleet.kubernetes.objects import Pod
from gpufleet.placement import Fits, GangFits, Inventory, Request, place_gang
from gpufleet.runtime.logs import RepeatedWarnings, get_logger
from gpufleet.scheduler.api import SchedulerApi
from gpufleet.scheduler.filtering import complete_allocation
from gpufleet.scheduler.lease_gc import LeaseGc
from gpufleet.scheduler.reservation import PodRef, Reservations, Reserved
from gpufleet.scheduler.state import Hold, Ledger, request_of, valid_request
from gpufleet.scheduler.state.claim_requests import GangRequirements, gang_requirements
from gpufleet.scheduler.state.eligible_nodes import eligible_nodes
from gpufleet.scheduler.state.ledger import Key, holder_key

_log = get_logger("scheduler")


@dataclass
class GangPlan:
    """A gang that is placed; its members are being leased and bound."""

    deadline: float
    members: set[str]
    leased: bool = False
    """Whether all members have their leases."""
    arrived: set[str] = field(default_factory=set)
    """The members whose bind has been called."""
    complete: asyncio.Event = field(default_factory=asyncio.Event)


class Gangs:
    """Plans gangs; `step` reconciles those that have changed."""

    def __init__(
        self, api: SchedulerApi, ledger: Ledger, reservations: Reservations, lease_gc: LeaseGc, timing: Timing
    ) -> None:
        self._api = api
        self._ledger = ledger
        self._reservations = reservations
        self._lease_gc = lease_gc
        self._timing = timing
        self._warnings = RepeatedWarnings(_log, timing.monotonic)
        self.plans: dict[Key, GangPlan] = {}
        self.notes: dict[Key, str] = {}
        self._dirty: set[Key] = set()
        self._known: set[Key] = set()
        self._wake = asyncio.Event()
        self.on_planned: Callable[[list[Pod]], None] = lambda pods: None
        self.on_refused: Callable[[list[Pod], str], None] = lambda pods, note: None
        self.is_own_pod: Callable[[Pod], bool] = lambda pod: True
        """Whether this scheduler binds the pod; no GPUs are reserved for other pods."""
        self.preempt_for_gang: Callable[[Key, Sequence[Pod], Sequence[Request], Inventory], str] = (
            lambda gang, pods, requests, cluster: ""
        )
        """Preempts pods for a gang that does not fit; returns what the gang waits for, or an empty string."""

    def gang_of(self, pod: Pod) -> Key | None:
        """Return the gang of the pod's claim, if any."""
        claim = self._ledger.claim_of(pod)
        if claim is None or not claim.spec.gang_ref:
            return None
        return claim.metadata.namespace, claim.spec.gang_ref

    def enqueue(self, gang: Key) -> None:
        """Reconcile a gang in the next step."""
        self._known.add(gang)
        self._dirty.add(gang)
        self._wake.set()

    def enqueue_all(self) -> None:
        """Reconcile all gangs: GPUs became free, or this replica starts to lead."""
        for gang in self._known:
            self.enqueue(gang)

    def is_planned(self, uid: str) -> bool:
        """Return whether the pod is a member of a planned gang."""
        return any(uid in plan.members for plan in self.plans.values())

    def wait_reason(self, pod: Pod, gang: Key) -> str:
        """Return what the member waits for, or an empty string if it may be scheduled."""
        plan = self.plans.get(gang)
        if plan is not None and pod.metadata.uid in plan.members:
            # If one lease can't be acquired, no member may run.
            return "" if plan.leased else f"gang {gang[1]} is being planned"
        needs = self._requirements(gang)
        if needs is None:
            return f"gang {gang[1]}: no PodGroup exists and no claim has the annotation {GANG_SIZE}"
        if self._is_running(gang):
            return ""
        self.enqueue(gang)
        members = self._ledger.gang_members(*gang)
        if len(members) < needs.min_members:
            return f"gang {gang[1]}: {len(members)} of {needs.min_members} members exist"
        return self.notes.get(gang) or f"gang {gang[1]} is being planned"

    async def permit(self, uid: str, gang: Key, timeout_s: float) -> bool:
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

    def _is_running(self, gang: Key) -> bool:
        """Return whether enough members are bound."""
        needs = self._requirements(gang)
        bound = sum(bool(pod.spec.node_name) for pod in self._ledger.gang_members(*gang))
        return needs is not None and bound >= needs.min_members

    def _check_complete(self, plan: GangPlan) -> None:
        bound = {uid for uid in plan.members if (pod := self._ledger.pods.get(uid)) and pod.spec.node_name}
        if plan.members <= plan.arrived | bound:
            plan.complete.set()

    async def run(self) -> None:
        """Plan until cancelled."""
        while True:
            await self.step()
            try:
                async with asyncio.timeout(1.0):
                    await self._wake.wait()
            except TimeoutError:
                pass

    async def step(self) -> None:
        """Reconcile the gangs that have changed or have a plan."""
        self._wake.clear()
        due, self._dirty = self._dirty | set(self.plans), set()
        for gang in sorted(due, key=self._queue_order):
            name = "/".join(gang)
            try:
                await self._reconcile(gang)
                self._warnings.clear(name)
            except GpufleetError as error:
                self._warnings.warn(name, "gang_not_planned", gang=name, error=str(error))
                self._dirty.add(gang)
            # Planning is slow: let requests be answered between two gangs.
            await asyncio.sleep(0)

    def _queue_order(self, gang: Key) -> tuple[int, str, Key]:
        """Return the sort key: the lowest priority of the members, then age, then name."""
        members = self._ledger.gang_members(*gang)
        priority = min((pod.spec.priority or 0 for pod in members), default=0)
        oldest = min((str(pod.metadata.creation_timestamp) for pod in members), default="")
        return -priority, oldest, gang

    async def _reconcile(self, gang: Key) -> None:
        plan = self.plans.get(gang)
        members = self._ledger.gang_members(*gang)
        if plan is not None and plan.leased:
            await self._check_plan(gang, plan, members)
            return
        if plan is not None:
            # Leadership was lost, or the step failed, while the leases were being written.
            self._drop_plan(gang)
        needs = self._requirements(gang)
        if needs is None:
            self._known.discard(gang)
        if needs is None or len(members) < needs.min_members:
            self._release_holds(gang, members)
            return
        reserved_pods = [pod for pod in members if self._is_reserved(pod)]
        waiting = [pod for pod in members if not self._is_reserved(pod)]
        if sum(bool(pod.spec.node_name) for pod in reserved_pods) >= needs.min_members:
            await self._remove_gates(members)
            return
        if len(reserved_pods) >= needs.min_members:
            # Reserved before a restart: resume the plan.
            await self._start_plan(gang, reserved_pods, needs.timeout)
            return
        if waiting and all(map(self.is_own_pod, waiting)):
            await self._plan(gang, reserved_pods, waiting, *needs)

    async def _check_plan(self, gang: Key, plan: GangPlan, members: list[Pod]) -> None:
        existing = {pod.metadata.uid for pod in members}
        # Their pod or claim was deleted, or the claim names another gang.
        self._release_members(plan.members - existing)
        plan.members &= existing
        needs = self._requirements(gang)
        enough = needs is not None and len(plan.members) >= needs.min_members
        if enough:
            self._check_complete(plan)
        bound = sum(bool(pod.spec.node_name) for pod in members if pod.metadata.uid in plan.members)
        if plan.members and bound == len(plan.members):
            del self.plans[gang]
            await self._remove_gates(members)
            return
        # Some members are running already: the others keep their GPUs.
        if bound or (enough and self._timing.monotonic() < plan.deadline):
            await self._remove_gates([pod for pod in members if pod.metadata.uid in plan.members])
            return
        self._drop_plan(gang)
        reason = "timeout" if enough else "too_few_members"
        _log.warning("gang_plan_dropped", gang="/".join(gang), reason=reason, members=len(plan.members))
        await self._reclaim_members(plan, members)
        self._lease_gc.gpus_freed()
        self._dirty.add(gang)

    def _drop_plan(self, gang: Key) -> None:
        """Drop the plan of a gang."""
        self._release_members(self.plans.pop(gang).members)

    def _release_members(self, members: Iterable[str]) -> None:
        """Release the holds of pods without a plan; lease_gc reclaims their leases."""
        for uid in members:
            self._ledger.release_hold(uid)
            self._lease_gc.enqueue(uid)

    async def _reclaim_members(self, plan: GangPlan, members: list[Pod]) -> None:
        for pod in members:
            uid = pod.metadata.uid
            if uid in plan.members and not pod.spec.node_name:
                leased = {node: dict(gpus) for node, gpus in self._ledger.leases_of(uid).items()}
                if not await self._lease_gc.reclaim(pod, leased):
                    self._lease_gc.enqueue(uid)

    async def _plan(
        self, gang: Key, reserved_pods: list[Pod], waiting: list[Pod], min_members: int, seconds: float
    ) -> None:
        requests = self._requests(waiting)
        if isinstance(requests, str):
            self._refuse(gang, waiting, requests)
            return
        cluster = self._without_holds(waiting)
        nodes = eligible_nodes(self._ledger.nodes.values(), waiting)
        found = place_gang(cluster, requests, eligible_nodes=nodes)
        if not isinstance(found, GangFits) and len(waiting) > min_members - len(reserved_pods):
            waiting = waiting[: min_members - len(reserved_pods)]
            requests, nodes = requests[: len(waiting)], nodes[: len(waiting)]
            found = place_gang(cluster, requests, eligible_nodes=nodes)
        if not isinstance(found, GangFits):
            preempting = self.preempt_for_gang(gang, waiting, requests, cluster)
            self._refuse(gang, waiting, preempting or f"gang {gang[1]}: {found.summary}")
            return
        self._release_holds(gang, self._ledger.gang_members(*gang))
        until = self._timing.monotonic() + seconds
        for pod, fits in zip(waiting, found.members, strict=True):
            self._ledger.hold(pod.metadata.uid, Hold(fits, until, gang[1]))
        self.plans[gang] = GangPlan(until, {pod.metadata.uid for pod in (*reserved_pods, *waiting)})
        if await self._reserve_all(gang, waiting, found.members):
            self.notes.pop(gang, None)
            await self._start_plan(gang, [*reserved_pods, *waiting], seconds)
        else:
            self._drop_plan(gang)
            self._dirty.add(gang)

    async def _reserve_all(self, gang: Key, pods: list[Pod], places: tuple[Fits, ...]) -> bool:
        names = [self._ref(pod) for pod in pods]
        attempts = [self._reservations.reserve(name, fits) for name, fits in zip(names, places, strict=True)]
        outcomes = await asyncio.gather(*attempts, return_exceptions=True)
        failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        if not failures:
            return True
        for name, fits, reserved in zip(names, places, outcomes, strict=True):
            self._ledger.release_hold(name.uid)
            if isinstance(reserved, Reserved):
                await self._reservations.unreserve(name.uid, fits.node, reserved.new, reserved.stamp)
            self._lease_gc.enqueue(name.uid)
        if unexpected := [each for each in failures if not isinstance(each, GpufleetError)]:
            raise unexpected[0]
        _log.info("gang_not_reserved", gang="/".join(gang), error=str(failures[0]))
        return False

    async def _start_plan(self, gang: Key, members: list[Pod], seconds: float) -> None:
        plan = GangPlan(
            self._timing.monotonic() + seconds, {pod.metadata.uid for pod in members}, leased=True
        )
        self.plans[gang] = plan
        _log.info("gang_planned", gang="/".join(gang), members=len(members))
        self.on_planned(members)
        await self._remove_gates(members)

    async def _remove_gates(self, members: list[Pod]) -> None:
        gated = [pod for pod in members if any(g.name == GANG_GATE for g in pod.spec.scheduling_gates)]
        await asyncio.gather(*(self._api.remove_gate(pod, GANG_GATE) for pod in gated))

    def _refuse(self, gang: Key, pods: list[Pod], note: str) -> None:
        self.notes[gang] = note
        self.on_refused(pods, note)

    def _release_holds(self, gang: Key, members: list[Pod]) -> None:
        """Release the gang's holds of members without a plan."""
        for pod in members:
            hold = self._ledger.holds.get(pod.metadata.uid)
            if hold is not None and hold.gang == gang[1]:
                self._ledger.release_hold(pod.metadata.uid)
                self._lease_gc.gpus_freed()

    def _without_holds(self, pods: list[Pod]) -> Inventory:
        """Return a copy of the inventory without the holds of these pods."""
        trial = self._ledger.cluster.copy()
        for pod in pods:
            if hold := self._ledger.holds.get(pod.metadata.uid):
                trial.free(holder_key(pod.metadata.uid, hold.fits.node))
        return trial

    def _requests(self, pods: list[Pod]) -> list[Request] | str:
        requests = []
        for pod in pods:
            claim = self._ledger.claim_of(pod)
            if claim is None:
                return f"the claim of pod {pod.metadata.name} no longer exists"
            try:
                requests.append(request_of(claim))
            except InvalidRequest as error:
                return str(error)
        return requests

    def _is_reserved(self, pod: Pod) -> bool:
        """Return whether a member is bound or has all of its leases."""
        if pod.spec.node_name:
            return True
        claim = self._ledger.claim_of(pod)
        request = valid_request(claim) if claim is not None else None
        return request is not None and any(
            complete_allocation(request, node, leased)
            for node, leased in self._ledger.leases_of(pod.metadata.uid).items()
        )

    def _requirements(self, gang: Key) -> GangRequirements | None:
        group = self._ledger.groups.get(gang)
        claims = [
            claim
            for (namespace, _), claim in self._ledger.claims.items()
            if namespace == gang[0] and claim.spec.gang_ref == gang[1]
        ]
        found = [needs for claim in claims if (needs := gang_requirements(group, claim))]
        return max(found, default=None)

    def _ref(self, pod: Pod) -> PodRef:
        claim = self._ledger.claim_of(pod)
        meta = pod.metadata
        return PodRef(meta.uid, meta.namespace, meta.name, claim.metadata.name if claim else "")
