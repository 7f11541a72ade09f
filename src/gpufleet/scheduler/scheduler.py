"""The scheduler's desk: the parts joined, changes of the cluster handed to each, verbs answered.

Everything that the watch brings goes into the ledger first; then those who care are told.
The verbs are kube-scheduler's (`extender.py`) or the stand-alone loop's (`standalone.py`).
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any

from gpufleet.kubernetes import CacheChange
from gpufleet.kubernetes.annotations import CLAIM
from gpufleet.kubernetes.client.timing import Timing
from gpufleet.kubernetes.crds.gpu_claim import GpuClaim
from gpufleet.kubernetes.crds.gpu_node_status import GpuNodeStatus
from gpufleet.kubernetes.leases import read_lease
from gpufleet.kubernetes.objects import Lease, Node, Pod, PodGroup
from gpufleet.placement import DemandMemory, Inventory, Request, fragmentation
from gpufleet.runtime.logs import get_logger
from gpufleet.runtime.settings import SchedulerSettings
from gpufleet.scheduler.api import Api
from gpufleet.scheduler.binding import Binder
from gpufleet.scheduler.claim_status import ClaimStatuses
from gpufleet.scheduler.filtering import Choice, Filtering, Unfit
from gpufleet.scheduler.gangs import Gangs
from gpufleet.scheduler.lease_gc import LeaseGc
from gpufleet.scheduler.metrics import SchedulerMetrics
from gpufleet.scheduler.pending_pods import PendingPods
from gpufleet.scheduler.preemption import Preemption
from gpufleet.scheduler.reservation import Reservations
from gpufleet.scheduler.state import Ledger, sensible_request
from gpufleet.scheduler.state.ledger import Key

_log = get_logger("scheduler")

LEARN = 600.0
"""Seconds between two looks at what has been asked for: the scores of all nodes are found anew then."""


class Scheduler:
    """One replica's scheduler, over `api`; it acts only while `leading` says so."""

    def __init__(
        self,
        api: Api,
        settings: SchedulerSettings,
        namespace: str,
        *,
        leading: Callable[[], bool] = lambda: True,
        timing: Timing = Timing(),  # noqa: B008  (frozen)
        **leasing: Any,
    ) -> None:
        self.ledger = Ledger()
        self.metrics = SchedulerMetrics()
        self.waiting = PendingPods()
        self.leading = leading
        self._api = api
        self._settings = settings
        self._namespace = namespace
        self._timing = timing
        self._demand = DemandMemory()
        self._tasks: set[asyncio.Task[None]] = set()
        ledger = self.ledger
        self.leasing = Reservations(api, ledger, namespace, timing, **leasing)
        self.chooser = Filtering(ledger, self.waiting, self.metrics, settings.hold, timing)
        self.binder = Binder(api, ledger, self.leasing, self.metrics, settings.hold, timing)
        self.care = LeaseGc(
            api, ledger, self.leasing, self.binder, self.waiting, self.metrics, settings.grace, timing
        )
        self.statuses = ClaimStatuses(api, ledger, self.waiting, timing)
        self.gangs = Gangs(api, ledger, self.leasing, self.care, timing)
        self.preemption = Preemption(ledger, timing)
        ledger.on_freed = self.care.freed
        self.binder.on_ended = self.care.look_at
        self.care.keeps = self.binder.keeps = self.gangs.keeps
        self.care.on_freed = self.gangs.look_at_all
        self.gangs.on_planned = self._gang_planned
        self.gangs.on_refused = self._gang_refused
        self.gangs.make_room = self._make_room

    # -- verbs -----------------------------------------------------------------------------

    def filter(self, pod: Pod, among: Sequence[str]) -> Choice:
        """Choose a node and hold its GPUs (PreFilter, Filter and Score)."""
        gang = self.gangs.gang_of(pod)
        if gang is not None and (note := self.gangs.ready(pod, gang)):
            self._refused(pod, note)
            return self.chooser.refuse(pod, among, note, "wait for the whole gang of the pod")
        choice = self.chooser.choose(pod, among)
        if isinstance(choice, Unfit):
            self._refused(pod, choice.note)
            self._preempt(pod, among)
        return choice

    def prioritize(self, pod: Pod, among: Sequence[str]) -> dict[str, int]:
        """Scores for those who run several extenders."""
        return self.chooser.score(pod, among)

    async def bind(self, namespace: str, name: str, uid: str, node: str) -> str:
        """Reserve, PreBind and bind, or Unreserve; an error in words."""
        pod = self.ledger.pods.get(uid)
        gang = self.gangs.gang_of(pod) if pod else None
        if gang is not None and not await self.gangs.permit(uid, gang, self._settings.permit):
            return f"the other members of gang {gang[1]} have not come yet"
        error = await self.binder.bind(namespace, name, uid, node)
        if pod is not None:
            self.statuses.look_at(namespace, pod.metadata.annotations.get(CLAIM, ""))
        return error

    def victims(self, pod: Pod, asked: Mapping[str, Sequence[str]]) -> dict[str, list[str]]:
        """Who has to leave, by node, so that the pod gets its GPUs."""
        claim = self.ledger.claim_of(pod)
        if claim is None:
            return {node: list(uids) for node, uids in asked.items()}
        request = sensible_request(claim)
        return self.preemption.victims_on(pod, request, asked) if request else {}

    # -- what the watch tells --------------------------------------------------------------

    def on_nodes(self, changes: Sequence[CacheChange[Node]]) -> None:
        """Nodes came, changed or went; most changes are signs of life, for which nobody need be woken."""
        for change in changes:
            if change.after is None:
                self.ledger.drop_node(change.object.metadata.name)
            elif self.ledger.put_node(change.after):
                self.care.freed()

    def on_reports(self, changes: Sequence[CacheChange[GpuNodeStatus]]) -> None:
        """Agents have reported GPUs."""
        for change in changes:
            if change.after is None:
                self.ledger.drop_report(change.object.spec.node_name)
            elif self.ledger.put_report(change.after):
                self.care.freed()

    def on_leases(self, changes: Sequence[CacheChange[Lease]]) -> None:
        """Leases were written or deleted, by us or by others."""
        for change in changes:
            meta, read = change.object.metadata, read_lease(change.object)
            if meta.namespace != self._namespace or read is None:
                continue
            if change.after is None:
                self.ledger.drop_lease(meta.name, meta.uid)
                self.care.freed()
            else:
                self.ledger.put_lease(change.after)
                read = self.ledger.leases.get(meta.name)
            # Also after a deletion: it may have been by somebody's hand, under a pod that runs.
            for uid in read.holders if read else ():
                self.care.look_at(uid)

    def on_claims(self, changes: Sequence[CacheChange[GpuClaim]]) -> None:
        """Claims came, changed or went."""
        for change in changes:
            meta = change.object.metadata
            key = (meta.namespace, meta.name)
            if change.after is None:
                self.ledger.claims.pop(key, None)
                self.statuses.forget(*key)
                continue
            self.ledger.claims[key] = change.after
            # Whoever wrote it: a request of ours that was given up on may arrive after later ones.
            self.statuses.look_at(*key)
            if change.before is None:
                self._asked(change.after, len(self.ledger.pods_of(*key)))
            if change.before is None or change.before.spec != change.after.spec:
                self._claim_came(key)
            if change.after.spec.gang_ref:
                self.gangs.look_at((meta.namespace, change.after.spec.gang_ref))

    def on_groups(self, changes: Sequence[CacheChange[PodGroup]]) -> None:
        """PodGroups came, changed or went."""
        for change in changes:
            key = (change.object.metadata.namespace, change.object.metadata.name)
            if change.after is None:
                self.ledger.groups.pop(key, None)
            else:
                self.ledger.groups[key] = change.after
            self.gangs.look_at(key)

    def on_pods(self, changes: Sequence[CacheChange[Pod]]) -> None:
        """Pods came, changed, ended or went."""
        for change in changes:
            pod, uid = change.object, change.object.metadata.uid
            if change.after is None:
                self.ledger.drop_pod(uid)
                self.ledger.release_hold(uid)
                self.care.pod_gone(uid)
                self.waiting.drop(uid)
            else:
                if uid not in self.ledger.pods and (asked := self.ledger.claim_of(pod)):
                    self._asked(asked, 1)
                self.ledger.put_pod(change.after)
                if pod.spec.node_name or pod.finished or pod.metadata.deletion_timestamp:
                    self.waiting.drop(uid)
            claims = {
                state.metadata.annotations.get(CLAIM) for state in (change.before, change.after) if state
            }
            if not any(claims) and not self.ledger.parts(uid):
                continue
            self.care.look_at(uid)
            for claim in claims:
                self.statuses.look_at(pod.metadata.namespace, claim or "")
            if gang := self.gangs.gang_of(pod):
                self.gangs.look_at(gang)

    # -- running ---------------------------------------------------------------------------

    async def lead(self) -> None:
        """Look after everything until cancelled; everything is looked at once, from scratch."""
        self.care.look_at_all()
        self.statuses.look_at_all()
        self.gangs.look_at_all()
        async with asyncio.TaskGroup() as group:
            group.create_task(self.care.run())
            group.create_task(self.statuses.run())
            group.create_task(self.gangs.run())
            group.create_task(self._learn_now_and_then())

    def learn(self) -> None:
        """Place by the demand of the last days from now on."""
        self.ledger.cluster.learn(self._demand.demand(self._timing.monotonic()))

    async def _learn_now_and_then(self) -> None:
        while True:
            self.learn()
            await asyncio.sleep(LEARN)

    def refresh_metrics(self) -> None:
        """Set the gauges to what is so now."""
        leased = sum(1 for _ in self.ledger.lessees())
        self.metrics.held.labels("memory").set(len(self.ledger.holds))
        self.metrics.held.labels("lease").set(leased)
        self.metrics.waiting.set(len(self.waiting.pods))
        self.metrics.leading.set(self.leading())
        now = fragmentation(self.ledger.cluster, self._demand.demand(self._timing.monotonic()))
        self.metrics.fragmentation.set(now.percent)
        self.metrics.free.set(now.free)

    # -- between the parts -----------------------------------------------------------------

    def _refused(self, pod: Pod, note: str) -> None:
        self.statuses.look_at(pod.metadata.namespace, pod.metadata.annotations.get(CLAIM, ""))
        self.statuses.say(pod, "GpusUnavailable", note, "Warning")

    def _preempt(self, pod: Pod, among: Sequence[str]) -> None:
        claim = self.ledger.claim_of(pod)
        request = sensible_request(claim) if claim is not None else None
        if request is None or not self._settings.preempt:
            return
        name = f"{pod.metadata.namespace}/{pod.metadata.name}"
        self._evict(self.preemption.nominate(pod, request, among), name)

    def _make_room(
        self, gang: Key, pods: Sequence[Pod], requests: Sequence[Request], among: Inventory
    ) -> str:
        """Have pods of lower priority leave for a gang; what it waits for then, or nothing if none can help."""
        if not self._settings.preempt:
            return ""
        victims = self.preemption.nominate_gang(gang[1], pods, requests, among)
        if victims is None:
            return ""
        self._evict(victims, f"gang {gang[0]}/{gang[1]}")
        return f"gang {gang[1]}: GPUs are kept for it; pods of lower priority are leaving them"

    def _evict(self, victims: Sequence[Pod], by: str) -> None:
        for victim in victims:
            meta = victim.metadata
            _log.info("preempting", victim=f"{meta.namespace}/{meta.name}", by=by)
            note = f"Preempted by {by}, which has a higher priority"
            self.statuses.say(victim, "Preempted", note, "Warning")
            self.begin(self._api.evict(meta.namespace, meta.name, meta.uid))

    def _asked(self, claim: GpuClaim, pods: int) -> None:
        """Pods that name a claim have come: each is one more wish for what the claim asks for."""
        request = sensible_request(claim)
        if request is None:
            return
        for _ in range(pods):
            self._demand.observe(request, self._timing.monotonic())

    def _claim_came(self, key: tuple[str, str]) -> None:
        """The claim is there, or asks for something else: whoever was refused for it is looked at again."""
        for pod in self.ledger.pods_of(*key):
            if pod.metadata.uid in self.waiting.pods:
                self.begin(self._nudge(pod))

    def _gang_planned(self, pods: list[Pod]) -> None:
        for pod in pods:
            self.statuses.look_at(pod.metadata.namespace, pod.metadata.annotations.get(CLAIM, ""))
            if self.waiting.drop(pod.metadata.uid):
                self.begin(self._nudge(pod))

    def _gang_refused(self, pods: list[Pod], note: str) -> None:
        for pod in pods:
            self.waiting.put(pod, None, (), note)
            self._refused(pod, note)

    async def _nudge(self, pod: Pod) -> None:
        meta = pod.metadata
        await self._api.nudge(meta.namespace, meta.name, meta.uid, self.binder.mark())

    def begin(self, work: Coroutine[Any, Any, Any]) -> None:
        """Do something beside; a failure is logged."""

        async def safely() -> None:
            try:
                await work
            except Exception as error:  # noqa: BLE001  a side task must not end in silence
                _log.warning("side task failed", error=str(error))

        task = asyncio.ensure_future(safely())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
