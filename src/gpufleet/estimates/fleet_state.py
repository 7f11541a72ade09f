"""The fleet and its queue at one moment, as the estimate sees them: free GPUs per node, ends, units in order."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from gpufleet.estimates.run_times import Job


@dataclass(frozen=True, slots=True)
class RunningUnit:
    """A unit that runs; `places` are numbers of nodes with the thousandths of GPUs that it has there."""

    job: Job
    elapsed: float
    places: tuple[tuple[int, int], ...]
    priority: int = 0


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
    arrivals_per_s: float = 0.0
    backfill: bool = True
    reservations: bool = True
