"""Answers of a QueueOrder, remembered until a queue gets or returns GPUs.

A walk over the queue asks the same for many units of equal size.
"""

from collections import Counter
from collections.abc import Collection, Sequence

from gpufleet.estimates.fleet_state import QueueOrder, Reclaim
from gpufleet.estimates.free_gpus import Places


class QueueAnswers:
    """Limits and guarantees with the present use of a forward simulation."""

    def __init__(self, order: QueueOrder, used: dict[str, Counter[str]], models: Sequence[str]) -> None:
        self._order, self._used, self._models = order, used, models
        self._limited: dict[tuple[str, int], bool] = {}
        self._reclaims: dict[str, Sequence[Reclaim]] = {}

    def count(self, queue: str, places: Places, sign: int) -> None:
        """Count GPUs that a queue gets (1) or returns (-1)."""
        self._limited.clear()
        self._reclaims.clear()
        used = self._used.setdefault(queue, Counter())
        for node, milli in places:
            used[self._models[node]] += sign * milli

    def limited(self, queue: str, milli: int) -> bool:
        """Return whether a queue may not have so many more GPUs."""
        key = queue, milli
        if key not in self._limited:
            self._limited[key] = self._order.limited(queue, self._used, milli)
        return self._limited[key]

    def reclaimable(self, queue: str, milli: int) -> Collection[str]:
        """Return the queues on borrowed GPUs that a unit of so many GPUs may evict, because it is in a guarantee."""
        reclaims = self._reclaims.get(queue)
        if reclaims is None:
            reclaims = self._reclaims[queue] = self._order.reclaims(queue, self._used)
        for size, victims in reclaims:
            if milli <= size:
                return victims
        return ()
