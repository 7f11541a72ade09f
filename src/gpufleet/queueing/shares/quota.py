"""Guarantees and limits of queues: which units are inside a guarantee, which borrow, and what a waiting unit is entitled to.

Amounts are integers in thousandths of a GPU, by canonical GPU model. A guarantee has parts for certain models and
a rest for any model. A department's guarantee is at least the sum of its queues' guarantees: what one of them does
not use is lent to the others first.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from functools import lru_cache

from gpufleet.model.gpu_models import accepted_models, canonical_model

GPU = 1000
"""One whole GPU."""

Amounts = Mapping[str, int]
"""Thousandths of GPUs by model."""

NOTHING: Amounts = {}


@dataclass(frozen=True)
class Quota:
    """What a queue gets. `guaranteed` includes the parts in `models`."""

    name: str
    guaranteed: int = 0
    models: Amounts = field(default_factory=dict)
    limit: int | None = None
    weight: float = 1
    parent: str = ""
    last: bool = False
    """Whether the queue gets only GPUs that no other queue waits for: its soft budget is used up."""


class Level(IntEnum):
    """Whose GPUs a running unit has."""

    OWN = 0
    """Inside the guarantee of its queue."""
    DEPARTMENT = 1
    """Borrowed from other queues of its department."""
    BORROWED = 2
    """Borrowed from other departments, or beyond all guarantees."""


@dataclass(frozen=True)
class RunningUnit:
    """A pod or gang with GPUs. Its `started` time decides who is inside a guarantee: the oldest first."""

    key: str
    queue: str
    gpus: Amounts
    started: float


@dataclass(frozen=True)
class Entitlement:
    """What a waiting unit may reclaim: borrowed GPUs of these models, or of any if it is None."""

    level: Level
    models: frozenset[str] | None = None


class Quotas:
    """The queues by name. A queue without a department is a department of its own."""

    def __init__(self, quotas: Iterable[Quota]) -> None:
        self.by_name = {quota.name: quota for quota in quotas}
        self._children: dict[str, list[Quota]] = {}
        for quota in self.by_name.values():
            if quota.parent in self.by_name:
                self._children.setdefault(quota.parent, []).append(quota)

    def get(self, queue: str) -> Quota:
        """Return the quota of a queue; one without a guarantee if there is none of that name."""
        return self.by_name.get(queue) or Quota(queue)

    def department(self, queue: str) -> str:
        """Return the department of a queue."""
        parent = self.get(queue).parent
        return parent if parent in self.by_name else queue

    def chain(self, queue: str) -> tuple[str, ...]:
        """Return the queue and, if it has one, its department."""
        department = self.department(queue)
        return (queue,) if department == queue else (queue, department)

    def members(self, name: str) -> tuple[str, ...]:
        """Return a queue and, if it is a department, its queues."""
        return (name, *(child.name for child in self._children.get(name, ())))

    def own(self, queue: str) -> "Room":
        """Return the guarantee of a queue; that of a department belongs to its queues."""
        quota = self.get(queue)
        return Room(0, {}) if queue in self._children or quota.last else Room(quota.guaranteed, quota.models)

    def shared(self, department: str) -> "Room":
        """Return the guarantee of a department: its own, or the sum of those of its queues if that is more."""
        quota, children = self.get(department), self._children.get(department, [])
        if not children:
            return self.own(department)
        models = dict(quota.models)
        for model in {model for child in children for model in child.models}:
            together = sum(child.models.get(model, 0) for child in children)
            models[model] = max(models.get(model, 0), together)
        return Room(max(quota.guaranteed, sum(child.guaranteed for child in children)), models)

    def levels(self, units: Iterable[RunningUnit]) -> dict[str, Level]:
        """Return whose GPUs each unit has; units inside guarantees are found by age.

        A unit that is only partly inside a guarantee is borrowed as a whole, because a gang leaves as a whole.
        """
        own, shared = dict[str, Room](), dict[str, Room]()
        ordered = sorted(units, key=lambda unit: (unit.started, unit.key))
        levels: dict[str, Level] = {}
        for unit in ordered:
            room = own.setdefault(unit.queue, self.own(unit.queue))
            if room.take(unit.gpus):
                levels[unit.key] = Level.OWN
                department = self.department(unit.queue)
                shared.setdefault(department, self.shared(department)).charge(unit.gpus)
        for unit in ordered:
            if unit.key not in levels:
                department = self.department(unit.queue)
                room = shared.setdefault(department, self.shared(department))
                may = len(self.chain(unit.queue)) > 1 or department in self._children
                inside = may and not self.get(unit.queue).last and room.take(unit.gpus)
                levels[unit.key] = Level.DEPARTMENT if inside else Level.BORROWED
        return levels

    def entitlement(self, queue: str, used: Mapping[str, Amounts], asked: int) -> Entitlement | None:
        """Return what a unit of the queue may reclaim; None if it would exceed the guarantees.

        `used` has the current use of every queue.
        """
        if self.get(queue).last:
            return None
        room = self.own(queue)
        room.charge(used.get(queue, NOTHING))
        if found := room.offer(asked):
            return Entitlement(Level.OWN, found.models)
        department = self.department(queue)
        if department not in self._children:
            return None
        room = self.shared(department)
        for name in self.members(department):
            room.charge(used.get(name, NOTHING))
        found = room.offer(asked)
        return Entitlement(Level.DEPARTMENT, found.models) if found else None

    def may_evict(self, queue: str, level: Level, other: str, other_level: Level) -> bool:
        """Return whether a unit entitled at `level` may evict a unit of another queue at `other_level`."""
        if other == queue or other_level is Level.OWN:
            return False
        if other_level is Level.BORROWED:
            return True
        return level is Level.OWN and self.department(other) == self.department(queue)

    def limit_reached(self, queue: str, used: Mapping[str, Amounts], asked: int) -> Quota | None:
        """Return the queue, or its department, whose limit another `asked` thousandths would exceed."""
        for name in self.chain(queue):
            quota = self.get(name)
            if quota.limit is not None and self.total(name, used) + asked > quota.limit:
                return quota
        return None

    def total(self, name: str, used: Mapping[str, Amounts]) -> int:
        """Return what a queue or department uses, of all models."""
        return sum(sum(used.get(each, NOTHING).values()) for each in self.members(name))


@dataclass(frozen=True)
class Offer:
    """GPUs that are left of a guarantee: of these models, or of any if it is None."""

    models: frozenset[str] | None


class Room:
    """What is left of a guarantee: parts for certain models, and a rest for any."""

    def __init__(self, guaranteed: int, models: Amounts) -> None:
        self.parts = dict(models)
        self.rest = max(guaranteed - sum(models.values()), 0)

    @property
    def size(self) -> int:
        """Return how many GPUs are left of all models."""
        return self.rest + sum(self.parts.values())

    @property
    def largest(self) -> int:
        """Return how many GPUs of one model are left at most."""
        return self.rest + max(self.parts.values(), default=0)

    def take(self, gpus: Amounts) -> bool:
        """Take all of these GPUs if they are left."""
        beyond = sum(max(amount - self.parts.get(part, 0), 0) for part, amount in self._by_part(gpus).items())
        if beyond > self.rest:
            return False
        self.charge(gpus)
        return True

    def charge(self, gpus: Amounts) -> None:
        """Take these GPUs as far as they are left."""
        for part, amount in self._by_part(gpus).items():
            here = min(amount, self.parts.get(part, 0))
            if here:
                self.parts[part] -= here
            self.rest = max(self.rest - (amount - here), 0)

    def offer(self, asked: int) -> Offer | None:
        """Return of which models the guarantee still has so many GPUs; None if of no model."""
        if asked <= self.rest:
            return Offer(None)
        parts = [part for part, left in self.parts.items() if asked <= left + self.rest]
        models = frozenset(model for part in parts for model in accepted(part))
        return Offer(models) if models else None

    def _by_part(self, gpus: Amounts) -> dict[str, int]:
        """Return the amounts by the guarantee's names of models; others are under their own names."""
        found: dict[str, int] = {}
        for model, amount in gpus.items():
            part = next((part for part in self.parts if model in accepted(part)), model)
            found[part] = found.get(part, 0) + amount
        return found


@lru_cache(maxsize=1024)
def accepted(model: str) -> frozenset[str]:
    """Return the canonical names of the models that a name in a guarantee stands for."""
    return frozenset(accepted_models(model)) | {canonical_model(model)}


def gpus_text(milli: int) -> str:
    """Return a number of GPUs in words."""
    return f"{milli / GPU:g} GPU{'' if milli == GPU else 's'}"
