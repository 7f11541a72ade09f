"""What a simulation asks about GpuQueues: their order, limits and guarantees.

The scheduler's own rules answer (`scheduler/queues/expected_order.py`); a scenario brings them along.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol

Used = Mapping[str, Mapping[str, int]]
"""Thousandths of GPUs that each queue has, by model."""
Rank = tuple[float, ...]


class Held(NamedTuple):
    """The GPUs of a running unit, in thousandths by model."""

    key: str
    queue: str
    gpus: Mapping[str, int]
    started: float


class Queues(Protocol):
    """Guarantees, limits and shares while a simulation runs."""

    def copy(self, use: Mapping[str, float] | None = None) -> "Queues":
        """Return an independent copy for one run, with another `use` if one is given."""

    def use(self) -> Mapping[str, float]:
        """Return the decayed use of each queue in GPU-seconds."""

    def advance(self, used: Used, seconds: float) -> None:
        """Count the use of the next `seconds`."""

    def ranks(self, used: Used, waiting: Mapping[str, Sequence[tuple[str, int]]]) -> Mapping[str, Rank]:
        """Return the rank of each waiting unit, given as key and thousandths by queue in the queue's own order."""

    def limited(self, queue: str, used: Used, milli: int) -> bool:
        """Return whether a queue may not have so many more GPUs."""

    def entitled(self, queue: str, used: Used, milli: int) -> bool:
        """Return whether so many more GPUs are inside the guarantee of a queue."""

    def reclaimable(self, queue: str, used: Used, milli: int, running: Iterable[Held]) -> Collection[str]:
        """Return the units on borrowed GPUs that a unit of the queue may evict, by key."""
