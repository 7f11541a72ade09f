"""Order, limits and guarantees of GpuQueues while units get GPUs and leave them.

The arithmetic is that of `shares`. Use decays between two moments, and the order is computed again when it is old or
when the queues have changed. Units that no queue governs have the first rank and no quota.
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from gpufleet.queueing.shares.decay import decay
from gpufleet.queueing.shares.order import FIRST, Rank, WaitingUnit, ranks
from gpufleet.queueing.shares.quota import GPU, Entitlement, Level, Quota, Quotas, RunningUnit
from gpufleet.queueing.units import Holder, Unit

RANK_S = 1.0
"""Seconds after which the order between queues is computed again."""


class Queues:
    """The GpuQueues with their use; `stopped` queues have used up a hard budget."""

    def __init__(
        self,
        quotas: Quotas,
        use: Mapping[str, float],
        half_life: float,
        stopped: Iterable[str] = (),
        *,
        now: float = 0.0,
        rank_s: float = RANK_S,
    ) -> None:
        """`use` is the decayed use of each queue in GPU-seconds at `now`."""
        self.quotas = quotas
        self.stopped = frozenset(stopped)
        self._use = dict(use)
        self._half_life = half_life
        self._now = now
        self.rank_s = rank_s
        self._ranked_at = float("-inf")
        self.used: dict[str, Counter[str]] = {}
        """Thousandths of GPUs that each queue has, by model."""
        self._kept: Counter[str] = Counter()
        """Thousandths of GPUs that are kept for waiting units of each queue: they are no use yet."""
        self._running: dict[str, dict[str, RunningUnit]] = {}
        """The units with GPUs of each department, by key."""
        self._levels: dict[str, dict[str, Level]] = {}
        """Whose GPUs the units of each department have, as long as nothing changes there."""
        self._limits = bool(self.stopped) or any(quota.limit is not None for quota in quotas.by_name.values())
        self.guarantees = frozenset(
            name
            for name in quotas.by_name
            if quotas.own(name).size or quotas.shared(quotas.department(name)).size
        )
        """The queues that have a guarantee of their own, or share one."""

    def copy(self) -> "Queues":
        """Return an independent copy."""
        twin = Queues(
            self.quotas, self._use, self._half_life, self.stopped, now=self._now, rank_s=self.rank_s
        )
        twin._ranked_at = self._ranked_at
        twin.used = {queue: models.copy() for queue, models in self.used.items()}
        twin._kept = self._kept.copy()
        twin._running = {department: units.copy() for department, units in self._running.items()}
        twin._levels = dict(self._levels)
        return twin

    @property
    def has_limits(self) -> bool:
        """Return whether a queue may be kept from getting more GPUs."""
        return self._limits

    # -- use -------------------------------------------------------------------------------

    def take(self, holder: Holder) -> None:
        """Count the GPUs that a holder gets."""
        if holder.queue is None:
            return
        used = self.used.setdefault(holder.queue, Counter())
        used.update(holder.gpus)
        if holder.is_kept:
            self._kept[holder.queue] += sum(holder.gpus.values())
        department = self.quotas.department(holder.queue)
        unit = RunningUnit(holder.key, holder.queue, holder.gpus, holder.since)
        self._running.setdefault(department, {})[holder.key] = unit
        self._levels.pop(department, None)

    def release(self, holder: Holder) -> None:
        """Count that a holder has left its GPUs."""
        if holder.queue is None:
            return
        used = self.used[holder.queue]
        used.subtract(holder.gpus)
        if holder.is_kept:
            self._kept[holder.queue] -= sum(holder.gpus.values())
        department = self.quotas.department(holder.queue)
        del self._running[department][holder.key]
        self._levels.pop(department, None)

    def advance(self, now: float) -> None:
        """Let use decay until `now`, and count what the queues have had meanwhile."""
        seconds, self._now = now - self._now, now
        left = decay(seconds, self._half_life)
        for queue in {*self._use, *self.used}:
            has = (sum(self.used.get(queue, {}).values()) - self._kept[queue]) / GPU
            new = has * (1.0 - left) * self._half_life / math.log(2)
            self._use[queue] = self._use.get(queue, 0.0) * left + new

    # -- order -----------------------------------------------------------------------------

    def rank_due(self, now: float) -> bool:
        """Return whether the order between queues must be computed again."""
        return now - self._ranked_at >= self.rank_s

    def ranks(self, waiting: Sequence[Unit], holding: Iterable[Holder], now: float) -> dict[str, Rank]:
        """Return the rank of each waiting unit; units are given by priority and age.

        GPUs that are kept for waiting units (`holding`) count as waiting, not as used.
        """
        self._ranked_at = now
        by_queue: dict[str, list[WaitingUnit]] = {}
        for unit in waiting:
            if unit.queue is not None:
                by_queue.setdefault(unit.queue, []).append(WaitingUnit(unit.key, unit.asked))
        used: dict[str, Counter[str]] = dict(self.used)
        for holder in holding:
            if holder.queue is not None:
                used[holder.queue] = used.get(holder.queue, Counter()) - Counter(holder.gpus)
        ranked = ranks(self.quotas, used, self._use, by_queue)
        ranked.update((unit.key, FIRST) for unit in waiting if unit.queue is None)
        return ranked

    # -- limits and guarantees -------------------------------------------------------------

    def is_stopped(self, queue: str | None) -> str | None:
        """Return the queue, or its department, that has used up a hard budget."""
        if queue is None:
            return None
        return next((name for name in self.quotas.chain(queue) if name in self.stopped), None)

    def limit_reached(
        self, queue: str | None, asked: int, own: Mapping[str, int] | None = None
    ) -> Quota | None:
        """Return the queue, or its department, whose limit another `asked` thousandths would exceed.

        `own` is what the unit has already.
        """
        return None if queue is None else self.quotas.limit_reached(queue, self._without(queue, own), asked)

    def limited(self, queue: str | None, asked: int, own: Mapping[str, int] | None = None) -> bool:
        """Return whether a queue may not have so many more GPUs."""
        if queue is None or not self._limits:
            return False
        return self.is_stopped(queue) is not None or self.limit_reached(queue, asked, own) is not None

    def entitlement(
        self, queue: str | None, asked: int, own: Mapping[str, int] | None = None
    ) -> Entitlement | None:
        """Return which borrowed GPUs a unit of a queue may reclaim; None if it would exceed the guarantees."""
        if queue is None or queue not in self.guarantees or self.is_stopped(queue) is not None:
            return None
        return self.quotas.entitlement(queue, self._without(queue, own), asked)

    def may_reclaim(self, queue: str, level: Level) -> Callable[[Holder], bool]:
        """Return whether a unit of a queue, entitled at a level, may evict a holder."""

        def may(holder: Holder) -> bool:
            other = holder.queue
            return other is not None and self.quotas.may_evict(queue, level, other, self.level(holder))

        return may

    def level(self, holder: Holder) -> Level:
        """Return whose GPUs a holder of a queue has."""
        assert holder.queue is not None
        department = self.quotas.department(holder.queue)
        levels = self._levels.get(department)
        if levels is None:
            units = self._running.get(department, {}).values()
            levels = self._levels[department] = self.quotas.levels(units)
        return levels[holder.key]

    def _without(self, queue: str, own: Mapping[str, int] | None) -> Mapping[str, Counter[str]]:
        if not own:
            return self.used
        return {**self.used, queue: self.used.get(queue, Counter()) - Counter(own)}
