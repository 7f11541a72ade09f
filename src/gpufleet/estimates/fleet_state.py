"""The fleet and its queue at one moment, as the estimate sees them: free GPUs per node, ends, units in order."""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Literal, Protocol

from gpufleet.estimates.node_gpus import WHOLE, NodeGpus
from gpufleet.estimates.run_times import Job

Rank = tuple[float, ...]
"""The class (0 inside a guarantee, then others) and the weighted use; the lowest is next."""
Grouping = Literal["any", "contiguous", "island"]
Used = Mapping[str, Mapping[str, int]]
"""Thousandths of GPUs that each queue has, by model."""

Reclaim = tuple[int, Collection[str]]
"""Thousandths of GPUs, and queues on borrowed GPUs that a unit of at most that size may evict."""


class QueueOrder(Protocol):
    """The order between GpuQueues, their limits and guarantees, while a simulation runs forward."""

    def copy(self) -> "QueueOrder":
        """Return an independent copy for one run."""

    def queues(self) -> Sequence[str]:
        """Return the names of all queues that units may be in."""

    def advance(self, used: Used, seconds: float) -> None:
        """Count the use of the next `seconds`."""

    def ranks(self, used: Used, waiting: Mapping[str, Sequence[tuple[str, int]]]) -> Mapping[str, Rank]:
        """Return the rank of each waiting unit, given as key and thousandths by queue in the queue's own order."""

    def limited(self, queue: str, used: Used, milli: int) -> bool:
        """Return whether a queue may not have so many more GPUs."""

    def refusal(self, queue: str, used: Used, milli: int) -> str:
        """Return which limit or budget keeps a queue from getting so many more GPUs, or an empty string."""

    def reclaims(self, queue: str, used: Used) -> Sequence[Reclaim]:
        """Return up to which size units of the queue are inside a guarantee, and whose units they may evict then."""


@dataclass(frozen=True, slots=True)
class RunningUnit:
    """A unit that runs; `places` are numbers of nodes with the thousandths of GPUs that it has there."""

    job: Job
    elapsed: float
    places: tuple[tuple[int, int], ...]
    priority: int = 0
    queue: str = ""
    models: frozenset[str] = frozenset()
    """The models that it accepts, if it is evicted and waits again."""


@dataclass(frozen=True, slots=True)
class WaitingUnit:
    """A unit that waits: `members` pods of `milli` thousandths of a GPU each, on GPUs of these models."""

    key: str
    job: Job
    milli: int
    members: int = 1
    models: frozenset[str] = frozenset()
    priority: int = 0
    waits_for: str = ""
    """Something else than GPUs that it waits for; it is not simulated then."""
    queue: str = ""
    grouping: Grouping = "any"
    """Whether the GPUs of a pod must have adjacent indexes, or be of one island."""


@dataclass(frozen=True)
class FleetState:
    """Everything at one moment. `free` are thousandths of GPUs; `waiting` is in the order of the queue."""

    capacity: Sequence[int]
    free: Sequence[int]
    models: Sequence[str]
    running: Sequence[RunningUnit]
    waiting: Sequence[WaitingUnit]
    arrivals: Sequence[WaitingUnit] = field(default_factory=tuple)
    """Units that arrived lately, from which later arrivals are drawn."""
    arrival_rates: Sequence[float] = field(default_factory=tuple)
    """Arrivals per second in each hour from now; after the last one they begin again."""
    order: QueueOrder | None = None
    """The order between queues; without it units go by priority, then by age."""
    backfill: bool = True
    reservations: bool = True
    preempt: bool = True

    @cached_property
    def _sizes(self) -> Counter[tuple[int, str]]:
        """The number of nodes by capacity and model."""
        return Counter(zip(self.capacity, self.models, strict=True))

    def could_hold(self, unit: WaitingUnit) -> bool:
        """Return whether a unit would fit if nothing else ran."""
        return not unit.milli or self.room(unit) >= unit.members  # a MIG instance has none

    def room(self, unit: WaitingUnit) -> int:
        """Return for how many pods of a unit there would be room if nothing else ran."""
        return sum(
            number * NodeGpus(size // WHOLE).room(unit.milli)
            for (size, model), number in self._sizes.items()
            if not unit.models or model in unit.models
        )

    def used(self) -> dict[str, Counter[str]]:
        """Return what each queue has, in thousandths of GPUs by model."""
        used: dict[str, Counter[str]] = {}
        for unit in self.running:
            for node, milli in unit.places:
                used.setdefault(unit.queue, Counter())[self.models[node]] += milli
        return used

    def in_order(self, used: Used | None = None) -> list[WaitingUnit]:
        """Return the waiting units, given by priority and age, in the order between queues if there are any.

        `used` is what each queue has, if it is known already.
        """
        if self.order is None:
            return list(self.waiting)
        by_queue: dict[str, list[tuple[str, int]]] = {}
        for unit in self.waiting:
            by_queue.setdefault(unit.queue, []).append((unit.key, unit.milli * unit.members))
        ranks = self.order.ranks(self.used() if used is None else used, by_queue)
        return sorted(self.waiting, key=lambda unit: ranks[unit.key])
