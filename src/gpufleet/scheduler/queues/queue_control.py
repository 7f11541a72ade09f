"""Check budgets and write the statuses of GpuQueues, every few seconds while leading."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

from gpufleet.errors import GpufleetError
from gpufleet.kubernetes import GPU_QUEUES, Timing
from gpufleet.kubernetes.crds.gpu_queue import GpuQueue
from gpufleet.kubernetes.objects import ObjectReference, Pod
from gpufleet.queueing.shares.budget import Budget, BudgetState, HardBudget, period_at, price_of
from gpufleet.queueing.shares.quota import GPU
from gpufleet.runtime.logs import RepeatedWarnings, get_logger
from gpufleet.scheduler.api import SchedulerApi
from gpufleet.scheduler.metrics import SchedulerMetrics
from gpufleet.scheduler.queues.gpu_queues import GpuQueues
from gpufleet.scheduler.queues.queue_status import as_patch, status_of
from gpufleet.scheduler.state.run_times import grace_left

_log = get_logger("scheduler")

CHECK_S = 5.0
"""Seconds between checks of budgets."""

Evict = Callable[[Sequence[Pod], str, float], None]
"""Evicts pods, with a note for their events and the longest time that they have to terminate."""


class QueueControl:
    """Applies budgets and reports what queues have."""

    def __init__(
        self,
        api: SchedulerApi,
        queues: GpuQueues,
        metrics: SchedulerMetrics,
        timing: Timing,
        *,
        waiting: Callable[[], Iterable[tuple[str, int]]],
        problem: Callable[[], str],
        evict: Evict,
        grace: float,
    ) -> None:
        """`waiting` yields namespace and GPUs of waiting units, `problem` why the server can't be read."""
        self._api = api
        self._queues = queues
        self._metrics = metrics
        self._timing = timing
        self._waiting = waiting
        self._problem = problem
        self._evict = evict
        self._grace = grace
        self._warnings = RepeatedWarnings(_log, timing.monotonic)
        self._evicted: dict[str, float] = {}
        """When pods were evicted, by UID."""
        self._ended: dict[str, tuple[datetime, Budget]] = {}
        """The period in which the pods of a queue were ended for its hard budget."""
        self._reported: set[tuple[str, str]] = set()
        """The events of the last check, by queue and reason."""

    async def run(self) -> None:
        """Check and write until cancelled."""
        while True:
            if self._queues.active:
                await self.step()
            await self._timing.sleep(CHECK_S)

    def prepare(self) -> None:
        """Apply budgets before the first unit is planned; their events follow in the first step."""
        if self._queues.active:
            self.check_budgets()
            self._reported = set()

    async def step(self) -> None:
        """Check all budgets, and write the statuses that have changed."""
        self._queues.held.read_models()
        for queue, reason, note in self.check_budgets():
            meta = queue.metadata
            object = ObjectReference(GPU_QUEUES.api_version, "GpuQueue", "", meta.name, meta.uid)
            await self._api.record_event(object, reason, note, "Warning")
        await self.write_statuses()

    def check_budgets(self) -> list[tuple[GpuQueue, str, str]]:
        """Apply budgets, and evict the pods of hard ones that are used up; return the events to record."""
        queues, states, events = self._queues, dict[str, BudgetState](), list[tuple[GpuQueue, str, str]]()
        hard: dict[str, HardBudget] = {}
        for name, queue in queues.objects.items():
            budget = queues.budget(name)
            if budget is None:
                continue
            used, pods = queues.budget_use(name, budget), queues.pods_of(name)
            state = budget.state(used)
            period = (period_at(budget.period, self._timing.now())[0], budget)
            if self._ended.get(name) == period:
                state = BudgetState.USED_UP
            elif pods and budget.must_end(used, self._rate(pods, in_money=budget.in_money), self._lead(pods)):
                # What is left is not enough for units to start again.
                state, self._ended[name] = BudgetState.USED_UP, period
            states[name] = state
            if budget.hard:
                hard[name] = self._hard(budget, used, pods)
            # A hard budget is used up when its units had to end, a little before 100 percent: alerts must see that.
            least = 1.0 if state is BudgetState.USED_UP else 0.0
            ratio = used / budget.total if budget.total else 1.0
            self._metrics.queue_budget.labels(name).set(max(ratio, least))
            if state is BudgetState.NEARLY_USED:
                unit = "" if budget.in_money else " GPU-hours"
                events.append((queue, "BudgetNearlyUsed", f"{used:.4g} of {budget.total:g}{unit} are used"))
        queues.set_budgets(states, hard)
        for name, state in states.items():
            budget = queues.budget(name)
            if state is not BudgetState.USED_UP or budget is None:
                continue
            sentence = queues.budget_sentence(name)
            events.append((queues.objects[name], "BudgetUsedUp", sentence))
            if budget.hard:
                self._end_pods(name, sentence)
        return self._new(events)

    def _hard(self, budget: Budget, used: float, pods: Sequence[Pod]) -> HardBudget:
        price = max(self._queues.reading.prices.values(), default=0.0) if budget.in_money else 1.0
        grace = self._lead(pods) - 2 * CHECK_S if pods else 0.0
        return HardBudget(budget, used, self._timing.monotonic(), grace, self._grace, price)

    def _rate(self, pods: Sequence[Pod], *, in_money: bool) -> float:
        """Return what the pods use per hour, in GPU-hours or money."""
        rate = 0.0
        for pod in pods:
            for model, milli in self._queues.held.of_pod(pod.metadata.uid).items():
                price = price_of(self._queues.reading.prices, model) if in_money else 1.0
                rate += milli / GPU * price
        return rate

    def _lead(self, pods: Sequence[Pod]) -> float:
        """Return how long the pods may use their GPUs until they have terminated."""
        now = self._timing.now()
        longest = max(min(grace_left(pod, now), self._grace) for pod in pods)
        return longest + 2 * CHECK_S

    def _end_pods(self, name: str, sentence: str) -> None:
        """Evict all pods of a queue, and with them whole gangs."""
        pods = [pod for pod in self._queues.pods_of(name) if pod.metadata.deletion_timestamp is None]
        now = self._timing.monotonic()
        due = [pod for pod in pods if now - self._evicted.get(pod.metadata.uid, float("-inf")) >= CHECK_S]
        self._evicted = {
            **{uid: at for uid, at in self._evicted.items() if now - at < 10 * CHECK_S},
            **{pod.metadata.uid: now for pod in due},
        }
        if due:
            self._evict(due, f"Ended: {sentence}", self._grace)

    def _new(self, events: list[tuple[GpuQueue, str, str]]) -> list[tuple[GpuQueue, str, str]]:
        """Return the events that were not recorded in the last check."""
        known, self._reported = self._reported, {(queue.metadata.uid, reason) for queue, reason, _ in events}
        return [each for each in events if (each[0].metadata.uid, each[1]) not in known]

    async def write_statuses(self) -> None:
        """Write the statuses that have changed, and set the metrics."""
        queues, now = self._queues, self._timing.now()
        waiting: Counter[str] = Counter()
        for namespace, milli in self._waiting():
            if (name := queues.queue_of(namespace)) is not None:
                waiting[name] += milli
        use, problem = queues.decayed_use(), self._problem()
        for name, queue in list(queues.objects.items()):
            status = status_of(queues, queue, waiting, use, now, problem)
            for kind in ("used", "guaranteed", "borrowed", "pending"):
                self._metrics.queue_gpus.labels(name, kind).set(getattr(status, kind))
            self._metrics.queue_share.labels(name).set(status.share)
            patch = as_patch(status, queue.status)
            if patch is None:
                continue
            try:
                await self._api.write_queue_status(name, patch)
            except GpufleetError as error:
                self._warnings.warn(name, "queue_status_not_written", queue=name, error=str(error))
            else:
                self._warnings.clear(name)
            await asyncio.sleep(0)
        read_at = queues.reading.read_at
        self._metrics.use_age.set(now.timestamp() - read_at if read_at is not None else float("nan"))
