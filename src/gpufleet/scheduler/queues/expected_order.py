"""The order between GpuQueues in the next hours, for estimates of start times and for simulations.

It is computed with the scheduler's own rules from the specs and statuses of GpuQueues. A status has the queue's part
of the recent use, not its amount, so all queues together are taken to have used what they have now for as long as use
counts. Estimates look at guarantees by queue, not by unit: a queue that has more than its guarantee has borrowed GPUs.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace

from gpufleet.estimates.fleet_state import Rank, Reclaim, Used
from gpufleet.kubernetes.crds.gpu_queue import DEFAULT_QUEUE, GpuQueue
from gpufleet.model.gpu_models import canonical_model
from gpufleet.queueing.shares.decay import decay
from gpufleet.queueing.shares.order import FIRST, WaitingUnit, ranks
from gpufleet.queueing.shares.quota import GPU, Level, Quota, Quotas, RunningUnit, gpus_text
from gpufleet.scheduler.queues.assignment import Assignment, quota_of

HALF_LIFE_S = 7 * 86400.0
"""The default of `scheduler.share_half_life`, until the scheduler has written a status."""

NO_QUEUE = "-"
"""Stands for the queue of namespaces that Kueue governs: they come first, without quota."""


class ExpectedOrder:
    """Ranks, limits and guarantees while a queue is simulated forward."""

    def __init__(
        self,
        quotas: Quotas,
        use: Mapping[str, float],
        stopped: frozenset[str],
        half_life: float = HALF_LIFE_S,
        *,
        kueue: bool = False,
    ) -> None:
        """`use` is the decayed use in GPU-seconds; `stopped` queues have used up a hard budget.

        `kueue` says whether Kueue governs some namespaces.
        """
        self._quotas = quotas
        self._use = dict(use)
        self._stopped = stopped
        self._half_life = half_life
        self._kueue = kueue
        self._guaranteed = Counter({name: quotas.shared(name).size for name in quotas.by_name})
        """The guarantees of queues and departments in thousandths of GPUs."""

    def copy(self, use: Mapping[str, float] | None = None) -> "ExpectedOrder":
        """Return an independent copy for one run, with another `use` if one is given."""
        found = copy(self)
        found._use = dict(self._use if use is None else use)
        return found

    def use(self) -> Mapping[str, float]:
        """Return the decayed use of each queue in GPU-seconds."""
        return self._use

    def queues(self) -> list[str]:
        """Return the names of all queues that units may be in, with the default one."""
        return sorted({DEFAULT_QUEUE, *self._quotas.by_name}) + ([NO_QUEUE] if self._kueue else [])

    def advance(self, used: Used, seconds: float) -> None:
        """Count the use of the next `seconds`."""
        left = decay(seconds, self._half_life)
        for queue in {*self._use, *used}:
            has = sum(used.get(queue, {}).values()) / GPU
            new = has * (1.0 - left) * _lifetime(self._half_life)
            self._use[queue] = self._use.get(queue, 0.0) * left + new

    def ranks(self, used: Used, waiting: Mapping[str, Sequence[tuple[str, int]]]) -> Mapping[str, Rank]:
        """Return the rank of each waiting unit."""
        units = {
            queue: [WaitingUnit(*unit) for unit in mine]
            for queue, mine in waiting.items()
            if queue != NO_QUEUE
        }
        found: dict[str, Rank] = dict(ranks(self._quotas, _canonical(used), self._use, units))
        found.update((key, FIRST) for key, _ in waiting.get(NO_QUEUE, ()))
        return found

    def limited(self, queue: str, used: Used, milli: int) -> bool:
        """Return whether a queue may not have so many more GPUs."""
        if not self._stopped.isdisjoint(self._quotas.chain(queue)):
            return True
        return self._quotas.limit_reached(queue, used, milli) is not None

    def refusal(self, queue: str, used: Used, milli: int) -> str:
        """Return which limit or budget keeps a queue from getting so many more GPUs, or an empty string."""
        for name in self._quotas.chain(queue):
            if name in self._stopped:
                return f"the next budget of queue {name}"
        reached = self._quotas.limit_reached(queue, used, milli)
        if reached is None or reached.limit is None:
            return ""
        if milli > reached.limit:
            return f"a higher limit of queue {reached.name}, {gpus_text(reached.limit)} now"
        return f"free GPUs below the limit of queue {reached.name}, {gpus_text(reached.limit)}"

    def entitled(self, queue: str, used: Used, milli: int) -> bool:
        """Return whether so many more GPUs are inside the guarantee of a queue."""
        if not self._guaranteed[self._quotas.department(queue)]:
            return False
        return self._quotas.entitlement(queue, _canonical(used), milli) is not None

    def reclaimable(
        self, queue: str, used: Used, milli: int, running: Iterable[tuple[str, str, Mapping[str, int], float]]
    ) -> frozenset[str]:
        """Return the units on borrowed GPUs that a unit of the queue may evict, by key.

        Running units are given as key, queue, thousandths by model, and start.
        """
        entitlement = self._quotas.entitlement(queue, _canonical(used), milli)
        if entitlement is None:
            return frozenset()
        units = [
            RunningUnit(key, other, _canonical_models(gpus), started) for key, other, gpus, started in running
        ]
        levels = self._quotas.levels(units)
        return frozenset(
            unit.key
            for unit in units
            if unit.queue != NO_QUEUE
            and self._quotas.may_evict(queue, entitlement.level, unit.queue, levels[unit.key])
            and (entitlement.models is None or entitlement.models.issuperset(unit.gpus))
        )

    def reclaims(self, queue: str, used: Used) -> list[Reclaim]:
        """Return up to which size units of the queue are inside a guarantee, and whose units they may evict then.

        It looks at the amounts of queues, not at units: first at the queue's guarantee, then at its department's.
        """
        chain = self._quotas.chain(queue)
        if self._quotas.get(queue).last or not self._guaranteed[chain[-1]]:
            return []
        over = [
            name
            for name, models in used.items()
            if name != NO_QUEUE and sum(models.values()) > self._guaranteed[name]
        ]
        if not over:
            return []
        found: list[Reclaim] = []
        for level, name in zip((Level.OWN, Level.DEPARTMENT), chain, strict=False):
            left = self._left(name, level, used)
            victims = frozenset(
                other
                for other in over
                if self._quotas.may_evict(queue, level, other, self._level(other, used))
            )
            if left and victims:
                found.append((left, victims))
        return found

    def _left(self, name: str, level: Level, used: Used) -> int:
        """Return how many GPUs of one model are left of a guarantee at most."""
        room = self._quotas.own(name) if level is Level.OWN else self._quotas.shared(name)
        if not room.parts:
            return max(room.rest - self._quotas.total(name, used), 0)
        for member in self._quotas.members(name):
            room.charge(_canonical_models(used.get(member, {})))
        return room.largest

    def _level(self, queue: str, used: Used) -> Level:
        """Return whose GPUs a queue has beyond its own guarantee."""
        department = self._quotas.department(queue)
        inside = department != queue and self._quotas.total(department, used) <= self._guaranteed[department]
        return Level.DEPARTMENT if inside else Level.BORROWED


@dataclass(frozen=True)
class QueueRules:
    """What the GpuQueues of a cluster allow at a time. It can be stored as JSON; equal rules have equal JSON."""

    quotas: tuple[Quota, ...] = ()
    namespaces: Mapping[str, str] = field(default_factory=dict)
    """The queue of each namespace; others are in the default queue."""
    stopped: tuple[str, ...] = ()
    """Queues that have used up a hard budget."""
    half_life: float = HALF_LIFE_S

    def order(self, use: Mapping[str, float]) -> ExpectedOrder | None:
        """Return the order between queues with this decayed use in GPU-seconds; None without queues."""
        if not self.quotas:
            return None
        kueue = NO_QUEUE in self.namespaces.values()
        return ExpectedOrder(Quotas(self.quotas), use, frozenset(self.stopped), self.half_life, kueue=kueue)

    def with_quotas(
        self, weights: Mapping[str, float], limits: Mapping[str, float], guarantees: Mapping[str, float]
    ) -> "QueueRules":
        """Return the rules with other quotas in GPUs for some queues."""
        known = {quota.name: quota for quota in self.quotas}
        for name in sorted({*weights, *limits, *guarantees}):
            quota = known.get(name, Quota(name))
            known[name] = replace(
                quota,
                guaranteed=round(guarantees[name] * GPU) if name in guarantees else quota.guaranteed,
                models=quota.models if name not in guarantees else {},
                limit=round(limits[name] * GPU) if name in limits else quota.limit,
                weight=weights.get(name, quota.weight),
            )
        return replace(self, quotas=tuple(known.values()))


def expected_order(queues: Iterable[GpuQueue]) -> tuple[ExpectedOrder | None, Mapping[str, str]]:
    """Return the order and the queue of each namespace; None without GpuQueues. Others are in the default queue."""
    objects = list(queues)
    rules = rules_of(objects)
    total = sum(queue.status.used for queue in objects) * _lifetime(rules.half_life)
    use = {queue.metadata.name: queue.status.share * total for queue in objects}
    return rules.order(use), rules.namespaces


def rules_of(queues: Iterable[GpuQueue]) -> QueueRules:
    """Return what GpuQueues allow, from their specs and statuses."""
    objects = {queue.metadata.name: queue for queue in queues}
    invalid = {
        name: "invalid"
        for name, queue in objects.items()
        if any(each.type == "Valid" and each.status == "False" for each in queue.status.conditions)
    }
    used_up = {name for name, queue in objects.items() if _used_up(queue)}
    soft = {name for name in used_up if not _is_hard(objects[name])}
    quotas = tuple(
        quota_of(queue, Assignment(invalid=invalid), last=bool(soft & {name, queue.spec.parent}))
        for name, queue in sorted(objects.items())
    )
    half_lives = (queue.status.half_life_seconds for queue in objects.values())
    half_life = next((float(each) for each in half_lives if each), HALF_LIFE_S)
    namespaces = {each: name for name, queue in objects.items() for each in queue.status.namespaces}
    kueue = {each for queue in objects.values() for each in queue.status.kueue_namespaces}
    namespaces.update(dict.fromkeys(kueue, NO_QUEUE))
    return QueueRules(quotas, namespaces, tuple(sorted(used_up - soft)), half_life)


def order_of_quotas(
    weights: Mapping[str, float], limits: Mapping[str, float], guarantees: Mapping[str, float]
) -> ExpectedOrder | None:
    """Return the order between queues with these quotas in GPUs and no use so far; None without any quota."""
    return QueueRules().with_quotas(weights, limits, guarantees).order({})


def queue_of(namespace: str, namespaces: Mapping[str, str]) -> str:
    """Return the queue of a namespace."""
    return namespaces.get(namespace, DEFAULT_QUEUE)


def _used_up(queue: GpuQueue) -> bool:
    """Return whether the budget is used up: for a hard one that is so as soon as its units had to end."""
    ended = any(each.type == "WithinBudget" and each.status == "False" for each in queue.status.conditions)
    return ended or (queue.status.budget is not None and queue.status.budget.percent >= 100)


def _lifetime(half_life: float) -> float:
    """Return for how many seconds use counts in full."""
    return half_life / math.log(2)


def _is_hard(queue: GpuQueue) -> bool:
    return queue.spec.budget is not None and queue.spec.budget.hard


def _canonical(used: Used) -> dict[str, dict[str, int]]:
    return {queue: _canonical_models(models) for queue, models in used.items()}


def _canonical_models(models: Mapping[str, int]) -> dict[str, int]:
    found: Counter[str] = Counter()
    for model, milli in models.items():
        found[canonical_model(model)] += milli
    return found
