"""Answers of a QueueOrder, remembered until a queue gets or returns GPUs.

A walk over the queue asks the same for many units of equal size.
"""

from collections import Counter
from collections.abc import Sequence

from gpufleet.estimates.fleet_state import QueueOrder
from gpufleet.estimates.free_gpus import Places


class QueueAnswers:
    """Limits and guarantees with the present use of a forward simulation."""

    def __init__(self, order: QueueOrder, used: dict[str, Counter[str]], models: Sequence[str]) -> None:
        self._order, self._used, self._models = order, used, models
        self._limited: dict[tuple[str, int], bool] = {}
        self._entitled: dict[tuple[str, int], bool] = {}
        self._lending: bool | None = None

    def count(self, queue: str, places: Places, sign: int) -> None:
        """Count GPUs that a queue gets (1) or returns (-1)."""
        self._limited.clear()
        self._entitled.clear()
        self._lending = None
        used = self._used.setdefault(queue, Counter())
        for node, milli in places:
            used[self._models[node]] += sign * milli

    def limited(self, queue: str, milli: int) -> bool:
        """Return whether a queue may not have so many more GPUs."""
        key = queue, milli
        if key not in self._limited:
            self._limited[key] = self._order.limited(queue, self._used, milli)
        return self._limited[key]

    def entitled(self, queue: str, milli: int) -> bool:
        """Return whether so many more GPUs are inside the guarantee of a queue."""
        key = queue, milli
        if key not in self._entitled:
            self._entitled[key] = self._order.entitled(queue, self._used, milli)
        return self._entitled[key]

    def borrows(self, queue: str) -> bool:
        """Return whether a queue has more GPUs than its guarantee."""
        return self._order.borrows(queue, self._used)

    def lending(self) -> bool:
        """Return whether any queue has more GPUs than its guarantee."""
        if self._lending is None:
            self._lending = any(self.borrows(queue) for queue in self._used)
        return self._lending
