"""Answers of a QueueOrder, remembered until a queue gets or returns GPUs.

A walk over the queue asks the same for many units of equal size.
"""

from gpufleet.estimates.fleet_state import QueueOrder, Used


class QueueAnswers:
    """Limits and guarantees with the present use of a forward simulation."""

    def __init__(self, order: QueueOrder, used: Used) -> None:
        self._order, self._used = order, used
        self._limited: dict[tuple[str, int], bool] = {}
        self._entitled: dict[tuple[str, int], bool] = {}

    def changed(self) -> None:
        """Forget the answers: the use has changed."""
        self._limited.clear()
        self._entitled.clear()

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
