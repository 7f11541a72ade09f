"""Units: pods and gangs that wait for GPUs or have them."""

from dataclasses import dataclass, field
from typing import Any

from gpufleet.queueing.needs import Amounts, Need

Order = tuple[Any, ...]
"""The place of a unit in its queue: negative priority, age, and a key, so that no two units are equal."""

NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class Group:
    """Equal members of a unit; at least `least` of `most` start together."""

    need: Need
    least: int = 1
    most: int = 1


@dataclass(frozen=True, slots=True)
class Level:
    """Topology labels of which all members get the same value, as numbers of `Snapshot` domains, the narrowest first."""

    kinds: tuple[int, ...]
    required: bool = False


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """A pod or a gang that waits.

    `asked` are the GPUs that all members get, in thousandths, as its queue counts them; `least_asked` those of the
    members without which it does not start. `declared` is the longest run time in seconds, if the unit declares one.
    """

    key: str
    groups: tuple[Group, ...]
    order: Order
    asked: int = 0
    least_asked: int = 0
    priority: int = 0
    queue: str | None = None
    """The GpuQueue; None if no queue governs the unit."""
    declared: float | None = None
    level: Level | None = None
    preempts: bool = True

    @property
    def is_elastic(self) -> bool:
        """Return whether the unit may start with fewer members than it has."""
        return any(group.least < group.most for group in self.groups)


@dataclass(frozen=True, slots=True)
class Place:
    """GPUs of one node for one member: `milli` of each GPU, or MIG instances; and the other resources it takes."""

    node: int
    gpus: tuple[int, ...]
    milli: int
    instances: tuple[tuple[int, str], ...] = ()
    amounts: Amounts = ()

    def overlaps(self, other: "Place") -> bool:
        """Return whether both have GPUs in common."""
        return self.node == other.node and not set(self.gpus).isdisjoint(other.gpus)


@dataclass(slots=True, eq=False)
class Holder:
    """What has GPUs: a unit that runs or terminates, a pod of others, or GPUs kept for a unit that evicts.

    `declared_end` is when it leaves at the latest, if that is known. A holder that `stays` is not expected to leave.
    """

    key: str
    places: tuple[Place, ...]
    since: float
    priority: int = 0
    queue: str | None = None
    declared_end: float | None = None
    stays: bool = False
    protected: bool = False
    """Whether it may not be evicted, such as pods of others or those that a disruption budget protects."""
    leaving: bool = False
    """Whether it has been evicted and terminates."""
    unit: Unit | None = None
    """The unit that runs, for callers that let it wait again after an eviction."""
    gpus: dict[str, int] = field(default_factory=dict)
    """Thousandths of GPUs by model, as its queue counts them."""

    @property
    def is_kept(self) -> bool:
        """Return whether the GPUs are kept for a unit that has not started: `since` is not known yet."""
        return self.since == NEVER

    def expected_end(self, now: float, least: float) -> float:
        """Return when it is expected to leave: as declared, or after as long again as it has run."""
        if self.declared_end is not None:
            return self.declared_end
        return NEVER if self.stays else now + max(now - self.since, least)
