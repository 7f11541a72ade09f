"""Gangs: all members get their GPUs, or none does.

When enough members are there, all of them are placed at once and their leases are taken at
once; if one can't be had, all are given back. Only then are the members' gates opened. Binds
wait for each other, so that no member runs before all have come to be bound. A gang that does
not get going in its time gives everything back and may be planned again. Two gangs can't each
hold half of what both need: planning is one step, and leases are never kept for half a gang.
A gang of higher priority may have others leave: for all of its members, or nobody leaves.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from gpufleet.errors import GpufleetError, InvalidRequest
from gpufleet.kubernetes.annotations import GANG_GATE
from gpufleet.kubernetes.client.timing import Timing
from gpufleet.kubernetes.objects import Pod
from gpufleet.placement import Fits, GangFits, Inventory, Request, place_gang
from gpufleet.runtime.logs import RepeatedWarnings, get_logger
from gpufleet.scheduler.api import Api
from gpufleet.scheduler.explain import gang_members
from gpufleet.scheduler.filtering import whole_allocation
from gpufleet.scheduler.lease_gc import LeaseGc
from gpufleet.scheduler.reservation import PodName, Reservations, Reserved
from gpufleet.scheduler.state import Hold, Ledger, request_of, sensible_request
from gpufleet.scheduler.state.claim_requests import gang_terms
from gpufleet.scheduler.state.eligible_nodes import open_to
from gpufleet.scheduler.state.ledger import Key, holder_key

_log = get_logger("scheduler")


@dataclass
class GangPlan:
    """A gang whose members have their leases, or are getting them, and are on their way to be bound."""

    deadline: float
    members: set[str]
    leased: bool = False
    arrived: set[str] = field(default_factory=set)
    complete: asyncio.Event = field(default_factory=asyncio.Event)


class Gangs:
    """Plans gangs; `step` looks at those that something happened to."""

    def __init__(
        self, api: Api, ledger: Ledger, leasing: Reservations, care: LeaseGc, timing: Timing
    ) -> None:
        self._api = api
        self._ledger = ledger
        self._leasing = leasing
        self._care = care
        self._timing = timing
        self._warnings = RepeatedWarnings(_log, timing.monotonic)
        self.plans: dict[Key, GangPlan] = {}
        self.notes: dict[Key, str] = {}
        self._dirty: set[Key] = set()
        self._known: set[Key] = set()
        self._wake = asyncio.Event()
        self.on_planned: Callable[[list[Pod]], None] = lambda pods: None
        self.on_refused: Callable[[list[Pod], str], None] = lambda pods, note: None
        self.mine: Callable[[Pod], bool] = lambda pod: True
        """Whether a pod is this scheduler's to bind; GPUs are reserved for no others."""
        self.make_room: Callable[[Key, Sequence[Pod], Sequence[Request], Inventory], str] = (
            lambda gang, pods, requests, among: ""
        )
        """Asked for a gang that does not fit: what it waits for if others leave for it, else nothing."""

    def gang_of(self, pod: Pod) -> Key | None:
        """The gang that a pod belongs to by its claim."""
        claim = self._ledger.claim_of(pod)
        if claim is None or not claim.spec.gang_ref:
            return None
        return claim.metadata.namespace, claim.spec.gang_ref

    def look_at(self, gang: Key) -> None:
        """Something about this gang has changed."""
        self._known.add(gang)
        self._dirty.add(gang)
        self._wake.set()

    def look_at_all(self) -> None:
        """GPUs became free, or this process has just begun to lead."""
        for gang in self._known:
            self.look_at(gang)

    def keeps(self, uid: str) -> bool:
        """Whether a plan answers for the pod's reservation."""
        return any(uid in plan.members for plan in self.plans.values())

    def ready(self, pod: Pod, gang: Key) -> str:
        """Nothing if the member may go on; else what it waits for."""
        plan = self.plans.get(gang)
        if plan is not None and pod.metadata.uid in plan.members:
            # Not before all have their leases: if one can't be had, none may run.
            return "" if plan.leased else f"gang {gang[1]} is being planned"
        terms = self._terms(gang)
        if terms is None:
            return f"gang {gang[1]}: there is no PodGroup, and no claim says its size"
        if self._runs(gang):
            return ""
        self.look_at(gang)
        members = gang_members(self._ledger, *gang)
        if len(members) < terms[0]:
            return f"gang {gang[1]}: {len(members)} of {terms[0]} members are there"
        return self.notes.get(gang) or f"gang {gang[1]} is being planned"

    async def permit(self, uid: str, gang: Key, patience: float) -> bool:
        """Wait until every planned member has come to be bound; whether that happened in time.

        A member that comes after its plan was given up must not run alone; nor has one that
        comes to a gang that runs anybody to wait for.
        """
        plan = self.plans.get(gang)
        if plan is None or uid not in plan.members:
            pod = self._ledger.pods.get(uid)
            return self._runs(gang) or (pod is not None and bool(pod.spec.node_name))
        plan.arrived.add(uid)
        self._check_complete(plan)
        try:
            async with asyncio.timeout(patience):
                await plan.complete.wait()
        except TimeoutError:
            return False
        return True

    def _runs(self, gang: Key) -> bool:
        """Whether as many members as the gang needs are bound."""
        terms = self._terms(gang)
        bound = sum(bool(pod.spec.node_name) for pod in gang_members(self._ledger, *gang))
        return terms is not None and bound >= terms[0]

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
        """Look at every gang that something happened to, and at the deadlines."""
        self._wake.clear()
        due, self._dirty = self._dirty | set(self.plans), set()
        for gang in sorted(due, key=self._turn):
            name = "/".join(gang)
            try:
                await self._tend(gang)
                self._warnings.clear(name)
            except GpufleetError as error:
                self._warnings.warn(name, "gang not planned", gang=name, error=str(error))
                self._dirty.add(gang)
            # Planning a gang takes its time; whoever else waits for an answer comes in between.
            await asyncio.sleep(0)

    def _turn(self, gang: Key) -> tuple[int, str, Key]:
        """Whose turn it is, as among pods: the least priority of the members, then age, then name."""
        members = gang_members(self._ledger, *gang)
        priority = min((pod.spec.priority or 0 for pod in members), default=0)
        oldest = min((str(pod.metadata.creation_timestamp) for pod in members), default="")
        return -priority, oldest, gang

    async def _tend(self, gang: Key) -> None:
        plan = self.plans.get(gang)
        members = gang_members(self._ledger, *gang)
        if plan is not None and plan.leased:
            await self._follow(gang, plan, members)
            return
        if plan is not None:
            # Its leases were being written when this process lost its office, or failed.
            self._drop(gang)
        terms = self._terms(gang)
        if terms is None:
            self._known.discard(gang)
        if terms is None or len(members) < terms[0]:
            self._release_holds(gang, members)
            return
        settled = [pod for pod in members if self._settled(pod)]
        waiting = [pod for pod in members if not self._settled(pod)]
        if sum(bool(pod.spec.node_name) for pod in settled) >= terms[0]:
            await self._open(members)
            return
        if len(settled) >= terms[0]:
            # Reserved before a restart: take the plan up where it was.
            await self._begin(gang, settled, terms[1])
            return
        if waiting and all(map(self.mine, waiting)):
            await self._plan(gang, settled, waiting, *terms)

    async def _follow(self, gang: Key, plan: GangPlan, members: list[Pod]) -> None:
        there = {pod.metadata.uid for pod in members}
        # Their pods have gone, or their claim has, or it names another gang.
        self._let_go(plan.members - there)
        plan.members &= there
        terms = self._terms(gang)
        enough = terms is not None and len(plan.members) >= terms[0]
        if enough:
            self._check_complete(plan)
        bound = sum(bool(pod.spec.node_name) for pod in members if pod.metadata.uid in plan.members)
        if plan.members and bound == len(plan.members):
            del self.plans[gang]
            await self._open(members)
            return
        # A gang of which some run already can't be taken back: the others keep their places.
        if bound or (enough and self._timing.monotonic() < plan.deadline):
            await self._open([pod for pod in members if pod.metadata.uid in plan.members])
            return
        self._drop(gang)
        why = "out of time" if enough else "too few members are left"
        _log.warning("gang given up", gang="/".join(gang), why=why, of=len(plan.members))
        await self._give_up(plan, members)
        self._care.freed()
        self._dirty.add(gang)

    def _drop(self, gang: Key) -> None:
        """Give up a plan."""
        self._let_go(self.plans.pop(gang).members)

    def _let_go(self, members: Iterable[str]) -> None:
        """No plan keeps anything for these pods: whatever they still have is care's to look after from now on."""
        for uid in members:
            self._ledger.release_hold(uid)
            self._care.look_at(uid)

    async def _give_up(self, plan: GangPlan, members: list[Pod]) -> None:
        for pod in members:
            uid = pod.metadata.uid
            if uid in plan.members and not pod.spec.node_name:
                parts = {node: dict(gpus) for node, gpus in self._ledger.parts(uid).items()}
                if not await self._care.take_back(pod, parts):
                    self._care.look_at(uid)

    async def _plan(
        self, gang: Key, settled: list[Pod], waiting: list[Pod], least: int, seconds: float
    ) -> None:
        requests = self._requests(waiting)
        if isinstance(requests, str):
            self._refuse(gang, waiting, requests)
            return
        among = self._without_holds(waiting)
        nodes = open_to(self._ledger.nodes.values(), waiting)
        found = place_gang(among, requests, eligible_nodes=nodes)
        if not isinstance(found, GangFits) and len(waiting) > least - len(settled):
            waiting = waiting[: least - len(settled)]
            requests, nodes = requests[: len(waiting)], nodes[: len(waiting)]
            found = place_gang(among, requests, eligible_nodes=nodes)
        if not isinstance(found, GangFits):
            leaving = self.make_room(gang, waiting, requests, among)
            self._refuse(gang, waiting, leaving or f"gang {gang[1]}: {found.summary}")
            return
        self._release_holds(gang, gang_members(self._ledger, *gang))
        until = self._timing.monotonic() + seconds
        for pod, fits in zip(waiting, found.members, strict=True):
            self._ledger.hold(pod.metadata.uid, Hold(fits, until, gang[1]))
        self.plans[gang] = GangPlan(until, {pod.metadata.uid for pod in (*settled, *waiting)})
        if await self._reserve_all(gang, waiting, found.members):
            self.notes.pop(gang, None)
            await self._begin(gang, [*settled, *waiting], seconds)
        else:
            self._drop(gang)
            self._dirty.add(gang)

    async def _reserve_all(self, gang: Key, pods: list[Pod], places: tuple[Fits, ...]) -> bool:
        names = [self._name(pod) for pod in pods]
        attempts = [self._leasing.reserve(name, fits) for name, fits in zip(names, places, strict=True)]
        outcomes = await asyncio.gather(*attempts, return_exceptions=True)
        failures = [outcome for outcome in outcomes if isinstance(outcome, BaseException)]
        if not failures:
            return True
        for name, fits, reserved in zip(names, places, outcomes, strict=True):
            self._ledger.release_hold(name.uid)
            if isinstance(reserved, Reserved):
                await self._leasing.unreserve(name.uid, fits.node, reserved.new, reserved.stamp)
            self._care.look_at(name.uid)
        if unexpected := [each for each in failures if not isinstance(each, GpufleetError)]:
            raise unexpected[0]
        _log.info("gang not reserved", gang="/".join(gang), error=str(failures[0]))
        return False

    async def _begin(self, gang: Key, members: list[Pod], seconds: float) -> None:
        plan = GangPlan(
            self._timing.monotonic() + seconds, {pod.metadata.uid for pod in members}, leased=True
        )
        self.plans[gang] = plan
        _log.info("gang planned", gang="/".join(gang), members=len(members))
        self.on_planned(members)
        await self._open(members)

    async def _open(self, members: list[Pod]) -> None:
        gated = [pod for pod in members if any(g.name == GANG_GATE for g in pod.spec.scheduling_gates)]
        await asyncio.gather(*(self._api.open_gate(pod, GANG_GATE) for pod in gated))

    def _refuse(self, gang: Key, pods: list[Pod], note: str) -> None:
        self.notes[gang] = note
        self.on_refused(pods, note)

    def _release_holds(self, gang: Key, members: list[Pod]) -> None:
        """Give up what was kept for members that have no plan."""
        for pod in members:
            hold = self._ledger.holds.get(pod.metadata.uid)
            if hold is not None and hold.gang == gang[1]:
                self._ledger.release_hold(pod.metadata.uid)
                self._care.freed()

    def _without_holds(self, pods: list[Pod]) -> Inventory:
        """The cluster without what is held for the members."""
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
                return f"the claim of {pod.metadata.name} is gone"
            try:
                requests.append(request_of(claim))
            except InvalidRequest as error:
                return str(error)
        return requests

    def _settled(self, pod: Pod) -> bool:
        """Whether a member is bound or has all of its leases."""
        if pod.spec.node_name:
            return True
        claim = self._ledger.claim_of(pod)
        request = sensible_request(claim) if claim is not None else None
        return request is not None and any(
            whole_allocation(request, node, parts)
            for node, parts in self._ledger.parts(pod.metadata.uid).items()
        )

    def _terms(self, gang: Key) -> tuple[int, float] | None:
        group = self._ledger.groups.get(gang)
        claims = [
            claim
            for (namespace, _), claim in self._ledger.claims.items()
            if namespace == gang[0] and claim.spec.gang_ref == gang[1]
        ]
        found = [terms for claim in claims if (terms := gang_terms(group, claim))]
        return max(found, default=None)

    def _name(self, pod: Pod) -> PodName:
        claim = self._ledger.claim_of(pod)
        meta = pod.metadata
        return PodName(meta.uid, meta.namespace, meta.name, claim.metadata.name if claim else "")
