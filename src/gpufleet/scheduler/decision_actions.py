"""Act on the planner's new decisions: report them, evict victims, and let what was placed be bound."""

from collections.abc import Sequence

from gpufleet.kubernetes.annotations import CLAIM
from gpufleet.kubernetes.objects import Pod
from gpufleet.kubernetes.resource_claims import is_delivered_by_claim
from gpufleet.runtime.logs import get_logger
from gpufleet.scheduler.api import SchedulerApi
from gpufleet.scheduler.background import BackgroundTasks
from gpufleet.scheduler.claim_status import ClaimStatuses
from gpufleet.scheduler.delivery.allocator import ClaimAllocator
from gpufleet.scheduler.direct_binding import DirectBinding
from gpufleet.scheduler.extender.nudger import Nudger
from gpufleet.scheduler.planning.decisions import Decisions
from gpufleet.scheduler.planning.gangs import Gangs
from gpufleet.scheduler.planning.plan import Waiting
from gpufleet.scheduler.state.run_times import DEFAULT_GRACE

_log = get_logger("scheduler")

MOST_REPORTS = 200
"""Decisions for which events and statuses are prepared at once."""


class DecisionActions:
    """Acts on decisions."""

    def __init__(
        self,
        api: SchedulerApi,
        decisions: Decisions,
        statuses: ClaimStatuses,
        gangs: Gangs,
        allocator: ClaimAllocator,
        nudger: Nudger,
        direct: DirectBinding,
        tasks: BackgroundTasks,
        reclaim_grace: float,
    ) -> None:
        self._api = api
        self._decisions = decisions
        self._statuses = statuses
        self._gangs = gangs
        self._allocator = allocator
        self._nudger = nudger
        self._direct = direct
        self._tasks = tasks
        self._reclaim_grace = reclaim_grace

    def act(self) -> None:
        """Act on the planner's new decisions; reports of more than a few wait for the next call."""
        for at, each in enumerate(self._decisions.take()):
            if at >= MOST_REPORTS and isinstance(each.decision, Waiting) and not each.victims:
                self._decisions.pending.append(each)
                continue
            for pod in each.pods:
                self._statuses.enqueue(pod.metadata.namespace, pod.metadata.annotations.get(CLAIM, ""))
            if isinstance(each.decision, Waiting):
                for pod in each.pods:
                    self._statuses.record_event(pod, "GpusUnavailable", each.decision.reason, "Warning")
                if each.reclaims:
                    note = f"Reclaimed for {each.name}: these GPUs are guaranteed to queue {each.reclaims}"
                    self.evict(each.victims, note, self._reclaim_grace)
                else:
                    self.evict(each.victims, f"Preempted by {each.name}, which has a higher priority")
            elif each.gang is not None:
                self._gangs.placed(each.gang, each.pods, each.decision)
            else:
                for pod in each.pods:
                    if is_delivered_by_claim(pod):
                        self._allocator.allocate_later(pod, each.decision.members[pod.metadata.uid])
                    elif not self._direct.take(pod, each.decision.members[pod.metadata.uid].node):
                        self._nudger.add(pod)

    def evict(self, victims: Sequence[Pod], note: str, longest: float | None = None) -> None:
        """Evict pods; with `longest`, they have at most so many seconds to terminate."""
        for victim in victims:
            meta = victim.metadata
            _log.info("preempting", phase="PostFilter", victim=f"{meta.namespace}/{meta.name}", note=note)
            self._statuses.record_event(victim, "Preempted", note, "Warning")
            own = victim.spec.termination_grace_period_seconds
            if longest is None or (DEFAULT_GRACE if own is None else own) <= longest:
                self._tasks.start(self._api.evict(meta.namespace, meta.name, meta.uid))
            else:
                self._tasks.start(self._api.evict(meta.namespace, meta.name, meta.uid, longest))
