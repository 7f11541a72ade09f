"""The GpuQueues of the cluster, as the planner sees them.

Everything is computed from the ledger and the last reading of the use; there is no I/O. Without GpuQueue objects all
units have the same rank, nothing is limited and nothing is counted.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from gpufleet.kubernetes import Timing
from gpufleet.kubernetes.crds.gpu_queue import DEFAULT_QUEUE, GpuQueue
from gpufleet.kubernetes.objects import KubeObject, Pod
from gpufleet.placement.request import Exclusivity, Request
from gpufleet.queueing.shares.budget import Budget, BudgetState, HardBudget, period_at
from gpufleet.queueing.shares.order import FIRST, HORIZON, Rank, WaitingUnit, ranks
from gpufleet.queueing.shares.quota import (
    GPU,
    Amounts,
    Entitlement,
    Level,
    Quotas,
    RunningUnit,
    gpus_text,
)
from gpufleet.scheduler.queues.assignment import Assignment, assign, budget_of, quota_of
from gpufleet.scheduler.queues.held_gpus import HeldGpus, mig_milli
from gpufleet.scheduler.queues.recent_use import NO_READING, UseReading, decayed_by_queue, used_of_budget
from gpufleet.scheduler.state import Ledger
from gpufleet.scheduler.state.run_times import grace_left

RANK_S = 1.0
"""Seconds after which the order between queues is computed again."""

USE_S = 10.0
"""Seconds after which the decayed use is computed again: it changes little in that time."""


@dataclass(frozen=True)
class Standing:
    """Whose GPUs a running pod has, as a member of its unit."""

    queue: str
    level: Level
    started: float


class GpuQueues:
    """Queues, their namespaces and what they have."""

    def __init__(self, ledger: Ledger, timing: Timing, half_life: float) -> None:
        self._ledger = ledger
        self._timing = timing
        self.half_life = half_life
        self.objects: dict[str, GpuQueue] = {}
        self._labels: dict[str, Mapping[str, str]] = {}
        self._local_queues: Counter[str] = Counter()
        """The number of Kueue's LocalQueues by namespace."""
        self.held = HeldGpus(ledger, timing)
        self.reading: UseReading = NO_READING
        self.assignment = Assignment()
        self.quotas = Quotas(())
        self.budgets: dict[str, BudgetState] = {}
        """How much of their budgets queues have used, as of the last check."""
        self._hard: Mapping[str, HardBudget] = {}
        self._used: tuple[object, dict[str, Counter[str]]] = (None, {})
        self._standings: dict[str, tuple[object, dict[str, Standing]]] = {}
        self._ranked_at = float("-inf")
        self._waiting: Counter[str] = Counter()
        self._use: dict[str, float] = {}
        self._use_at = float("-inf")
        self._ranked = False
        """Whether units have ranks other than the first."""
        self._generation = 0

    @property
    def active(self) -> bool:
        """Return whether there are any queues."""
        return bool(self.objects)

    # -- objects ---------------------------------------------------------------------------

    def put(self, queue: GpuQueue) -> None:
        """Store a queue."""
        known = self.objects.get(queue.metadata.name)
        self.objects[queue.metadata.name] = queue
        self.held.follow()
        if known is None or known.spec != queue.spec:
            self._changed()

    def drop(self, name: str) -> None:
        """Remove a queue."""
        self.objects.pop(name, None)
        self.budgets.pop(name, None)
        self._changed()

    def put_namespace(self, namespace: KubeObject) -> None:
        """Store the labels of a namespace."""
        meta = namespace.metadata
        if self._labels.get(meta.name) != meta.labels:
            self._labels[meta.name] = meta.labels
            self._labels_changed()

    def drop_namespace(self, name: str) -> None:
        """Remove a namespace."""
        self._labels.pop(name, None)
        self._labels_changed()

    def _labels_changed(self) -> None:
        if any(queue.spec.namespace_selector is not None for queue in self.objects.values()):
            self._changed()

    def local_queues_changed(self, namespace: str, by: int) -> None:
        """Count one more or one less LocalQueue of Kueue in a namespace."""
        self._local_queues[namespace] += by
        self._changed()

    def set_reading(self, reading: UseReading) -> None:
        """Use a new reading of the server's accounting."""
        self.reading = reading
        self.held.forget(reading.until)
        self._ranked_at = self._use_at = float("-inf")

    def set_budgets(self, states: Mapping[str, BudgetState], hard: Mapping[str, HardBudget]) -> None:
        """Apply how much of their budgets queues have used."""
        more = any(name not in hard or _left(hard[name]) > _left(known) for name, known in self._hard.items())
        self._hard = hard
        if self.budgets != states or more:
            self.budgets = dict(states)
            self._changed()

    def _changed(self) -> None:
        """Assign namespaces again; units that waited for a limit or a budget may start."""
        if not self.objects and not self.quotas.by_name:
            return
        self.assignment = assign(self.objects.values(), self._labels, self.kueue_namespaces)
        self.quotas = Quotas(
            quota_of(queue, self.assignment, last=self._budget_used_up(name, hard=False) is not None)
            for name, queue in self.objects.items()
        )
        self._generation += 1
        self._ranked_at = self._use_at = float("-inf")
        self._ledger.note_freed()

    # -- namespaces ------------------------------------------------------------------------

    @property
    def kueue_namespaces(self) -> frozenset[str]:
        """Return the namespaces in which Kueue has a LocalQueue."""
        return frozenset(namespace for namespace, number in self._local_queues.items() if number > 0)

    def queue_of(self, namespace: str) -> str | None:
        """Return the queue of a namespace; None if Kueue governs it, or if there are no queues."""
        if not self.objects or self._local_queues.get(namespace, 0) > 0:
            return None
        return self.assignment.queues.get(namespace, DEFAULT_QUEUE)

    # -- use -------------------------------------------------------------------------------

    def used(self) -> dict[str, Counter[str]]:
        """Return what each queue has now, also by holds, in thousandths by model."""
        key = (self.held.changes, self._generation)
        if self._used[0] != key:
            found: dict[str, Counter[str]] = {}
            for namespace, use in self.held.namespaces.items():
                if (queue := self.queue_of(namespace)) is not None and use.gpus:
                    found.setdefault(queue, Counter()).update(use.gpus)
            self._used = key, found
        return self._used[1]

    def decayed_use(self) -> dict[str, float]:
        """Return the decayed GPU-seconds of each queue, not older than a few seconds."""
        if self._timing.monotonic() - self._use_at >= USE_S:
            self._use_at, now = self._timing.monotonic(), self._timing.now().timestamp()
            spans = self.held.spans()
            self._use = decayed_by_queue(self.reading, spans, self.queue_of, now, self.half_life)
        return self._use

    def units(self, department: str) -> dict[str, tuple[RunningUnit, list[str]]]:
        """Return the units of a department that have GPUs, with the UIDs of their pods, by key."""
        found: dict[str, tuple[RunningUnit, list[str]]] = {}
        now = self._timing.now().timestamp()
        for namespace in self.held.namespaces:
            queue = self.queue_of(namespace)
            if queue is None or self.quotas.department(queue) != department:
                continue
            for held in self.held.of(namespace):
                pod = self._ledger.pods.get(held.uid)
                gang = self._ledger.gangs.of(pod) if pod is not None else None
                key = "/".join(("gang", *gang)) if gang is not None else held.uid
                bound = pod is not None and bool(pod.spec.node_name)
                started = self.held.started(held, pod) if pod is not None and bound else now
                if key in found:
                    unit, uids = found[key]
                    gpus = Counter(unit.gpus)
                    gpus.update(held.gpus)
                    unit = RunningUnit(key, queue, gpus, min(unit.started, started))
                    found[key] = unit, [*uids, held.uid]
                else:
                    found[key] = RunningUnit(key, queue, held.gpus, started), [held.uid]
        return found

    def standings(self, department: str) -> dict[str, Standing]:
        """Return whose GPUs the pods of a department have, by UID."""
        version = (
            self._generation,
            sum(
                use.version
                for namespace, use in self.held.namespaces.items()
                if (queue := self.queue_of(namespace)) is not None
                and self.quotas.department(queue) == department
            ),
        )
        known = self._standings.get(department)
        if known is None or known[0] != version:
            units = self.units(department)
            levels = self.quotas.levels(unit for unit, _ in units.values())
            known = (
                version,
                {
                    uid: Standing(unit.queue, levels[key], unit.started)
                    for key, (unit, uids) in units.items()
                    for uid in uids
                },
            )
            self._standings[department] = known
        return known[1]

    def inside_guarantee(self, queue: str) -> int:
        """Return how much of what a queue has is inside its guarantee, in thousandths."""
        standings = self.standings(self.quotas.department(queue))
        return sum(
            sum(held.gpus.values())
            for namespace in self.held.namespaces
            if self.queue_of(namespace) == queue
            for held in self.held.of(namespace)
            if held.uid in standings and standings[held.uid].level is Level.OWN
        )

    # -- waiting units ---------------------------------------------------------------------

    def entitlement(self, pods: Sequence[Pod], requests: Sequence[Request]) -> Entitlement | None:
        """Return which borrowed GPUs the pods of a unit may reclaim; None if they would exceed the guarantee."""
        queue = self.queue_of(pods[0].metadata.namespace)
        if queue is None or self._budget_used_up(queue, hard=True) is not None:
            return None
        return self.quotas.entitlement(
            queue, self._used_without(self.used(), queue, pods), milli_of(requests)
        )

    def refusal(self, pods: Sequence[Pod], requests: Sequence[Request]) -> str:
        """Return why the queue of these pods may not have more GPUs, or an empty string."""
        queue = self.queue_of(pods[0].metadata.namespace) if pods else None
        if queue is None:
            return ""
        if (name := self._budget_used_up(queue, hard=True)) is not None:
            return self.budget_sentence(name)
        asked, used = milli_of(requests), self._used_without(self.used(), queue, pods)
        if (name := self._budget_too_small(queue, used, asked, pods)) is not None:
            left = _left(self._hard[name])
            return f"the budget of queue {name} has {left:.2g} of {self._hard[name].budget.total:g} left, too little to start {gpus_text(asked)}"
        quota = self.quotas.limit_reached(queue, used, asked)
        if quota is None or quota.limit is None:
            return ""
        if asked > quota.limit:
            return (
                f"{gpus_text(asked)} are more than the limit of queue {quota.name}, {gpus_text(quota.limit)}"
            )
        return f"queue {quota.name} has reached its limit of {gpus_text(quota.limit)}"

    def note(self, pod: Pod) -> str:
        """Return what else is to be said about the reason of a waiting pod, as the end of a sentence."""
        namespace = pod.metadata.namespace
        queue = self.queue_of(namespace)
        if queue is None and (own := self.assignment.queues.get(namespace)) is not None:
            return f"; Kueue's quotas apply in namespace {namespace}, and those of queue {own} do not"
        name = self._budget_used_up(queue, hard=False) if queue is not None else None
        if name is None:
            return ""
        return f"; {self.budget_sentence(name)}, until then it gets only GPUs that no other queue waits for"

    def _used_without(
        self, used: Mapping[str, Counter[str]], queue: str, pods: Iterable[Pod]
    ) -> Mapping[str, Counter[str]]:
        """Return what each queue has, without what these pods of one queue have already."""
        own: Counter[str] = Counter()
        for pod in pods:
            own.update(self.held.of_pod(pod.metadata.uid))
        return {**used, queue: used.get(queue, Counter()) - own} if own else used

    # -- order -----------------------------------------------------------------------------

    def new_rank(self, pod: Pod, milli: int) -> Rank:
        """Return the rank of a unit that has just arrived, behind all of its queue; the next ranking corrects it."""
        queue = self.queue_of(pod.metadata.namespace)
        if queue is None:
            return FIRST
        department, used = self.quotas.department(queue), self.used()
        ahead = self._waiting[queue]
        self._waiting[queue] += milli
        names = [name for name in {*used, *self._use, queue} if self.quotas.department(name) == department]
        has = self.quotas.total(department, used) + sum(self._waiting[name] for name in names) - milli
        use = sum(self._use.get(name, 0.0) for name in names)
        value = (use + HORIZON * has / GPU) / self.quotas.get(department).weight
        if self.quotas.get(queue).last:
            return 2, value
        return (0 if self.quotas.entitlement(queue, used, ahead + milli) else 1), value

    def rank_due(self) -> bool:
        """Return whether the order between queues must be computed again."""
        if not self.active:
            return self._ranked
        return self._timing.monotonic() - self._ranked_at >= RANK_S

    def ranks(
        self, waiting: Mapping[str, Sequence[WaitingUnit]], holding: Iterable[Pod] = ()
    ) -> dict[str, Rank]:
        """Return the ranks of all units, given by queue in their own order.

        What is held for waiting pods counts as waiting, not as used.
        """
        self._ranked_at, self._ranked = self._timing.monotonic(), self.active
        use = self.decayed_use()
        self._waiting = Counter(
            {queue: sum(unit.milli for unit in units) for queue, units in waiting.items()}
        )
        used: Mapping[str, Counter[str]] = self.used()
        for pod in holding:
            if (queue := self.queue_of(pod.metadata.namespace)) is not None:
                used = self._used_without(used, queue, [pod])
        return ranks(self.quotas, used, use, waiting)

    # -- budgets ---------------------------------------------------------------------------

    def budget(self, name: str) -> Budget | None:
        """Return the budget of a queue, if it has one."""
        queue = self.objects.get(name)
        return budget_of(queue) if queue is not None else None

    def budget_use(self, name: str, budget: Budget) -> float:
        """Return what a queue, or a department with its queues, has used of its budget."""
        spans = self.held.spans(partial(self._counts_for, name))
        return used_of_budget(
            self.reading, spans, partial(self._counts_for, name), budget, self._timing.now()
        )

    def pods_of(self, name: str) -> list[Pod]:
        """Return the bound pods with GPUs of a queue, or of a department with its queues."""
        found = (
            self._ledger.pods.get(held.uid)
            for namespace in self.held.namespaces
            if self._counts_for(name, namespace)
            for held in self.held.of(namespace)
        )
        return [pod for pod in found if pod is not None and pod.spec.node_name and not pod.finished]

    def budget_sentence(self, name: str) -> str:
        """Return that a queue has used up its budget, and when it gets a new one."""
        budget = self.budget(name)
        assert budget is not None
        unit = "" if budget.in_money else " GPU-hours"
        renewed = period_at(budget.period, self._timing.now())[1]
        return f"queue {name} has used up its budget of {budget.total:g}{unit}, which is renewed on {renewed:%Y-%m-%d}"

    def _budget_used_up(self, queue: str, *, hard: bool) -> str | None:
        """Return the queue, or its department, whose hard or soft budget is used up."""
        for name in self._chain(queue):
            budget = self.budget(name) if self.budgets.get(name) is BudgetState.USED_UP else None
            if budget is not None and budget.hard == hard:
                return name
        return None

    def _budget_too_small(
        self, queue: str, used: Mapping[str, Amounts], asked: int, pods: Iterable[Pod]
    ) -> str | None:
        """Return the queue, or its department, whose hard budget would be used up soon after so many GPUs start."""
        for name in self._chain(queue):
            if (hard := self._hard.get(name)) is None:
                continue
            grace = max(grace_left(pod, self._timing.now()) for pod in pods)
            gpus = (self.quotas.total(name, used) + asked) / GPU
            if not hard.allows(gpus, grace, self._timing.monotonic()):
                return name
        return None

    def _chain(self, queue: str) -> tuple[str, ...]:
        item = self.objects.get(queue)
        parent = item.spec.parent if item is not None and queue not in self.assignment.invalid else ""
        return (queue, parent) if parent else (queue,)

    def _counts_for(self, name: str, namespace: str) -> bool:
        queue = self.queue_of(namespace)
        return queue is not None and name in self._chain(queue)


def _left(hard: HardBudget) -> float:
    return hard.budget.total - hard.used


def milli_of(requests: Iterable[Request]) -> int:
    """Return how many thousandths of GPUs these requests take in all."""
    return sum(
        request.count * mig_milli(request.mig_profile)
        if request.exclusivity is Exclusivity.MIG
        else request.gpu_milli
        for request in requests
    )
