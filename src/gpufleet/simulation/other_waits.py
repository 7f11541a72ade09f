"""Find out how long recorded units waited for something else than GPUs.

A pod may start late although nodes have room for it: its scheduler, a quota or a volume kept it. A replay that starts
it at once would show shorter waits than the ledger. So the free GPUs of each node are followed through the ledger. From
the last moment at which some unit that asks for the same model did not fit, a wait was not for GPUs.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Wanted:
    """A unit that waited from `created` to `start` for room for `members` pods with so many GPUs each."""

    model: str
    gpus: float
    members: int
    created: float
    start: float


@dataclass(frozen=True)
class Change:
    """So many GPUs of a node became free, or were taken if it is negative."""

    at: float
    node: str
    model: str
    gpus: float


def other_waits(units: Sequence[Wanted], changes: Iterable[Change]) -> list[float]:
    """Return for each unit the seconds at the end of its wait in which all units of its model had room."""
    nodes = _Nodes(units)
    waits, blocked_until = [0.0] * len(units), dict[str, float]()
    ordered = sorted(changes, key=lambda change: change.at)
    created = sorted(range(len(units)), key=lambda number: units[number].created)
    starts = sorted(range(len(units)), key=lambda number: units[number].start)
    times = sorted(
        {*(each.at for each in ordered), *(t for unit in units for t in (unit.created, unit.start))}
    )
    changed = came = started = 0
    for at in times:
        for model in nodes.blocked():
            blocked_until[model] = at
        while started < len(starts) and units[starts[started]].start <= at:
            number = starts[started]
            unit = units[number]
            waits[number] = unit.start - max(unit.created, blocked_until.get(unit.model, unit.created))
            nodes.leave(unit)
            started += 1
        while changed < len(ordered) and ordered[changed].at <= at:
            nodes.change(ordered[changed])
            changed += 1
        while came < len(created) and units[created[came]].created <= at:
            if units[created[came]].start > at:
                nodes.come(units[created[came]])
            came += 1
    return waits


class _Nodes:
    """The free GPUs of nodes, for how many pods of each kind they have room, and the units that wait."""

    def __init__(self, units: Iterable[Wanted]) -> None:
        self._kinds: dict[str, set[float]] = {}
        for unit in units:
            self._kinds.setdefault(unit.model, set()).add(unit.gpus)
        self._free: dict[str, float] = {}
        self._room: Counter[tuple[str, float]] = Counter()
        self._waiting: dict[tuple[str, float], Counter[int]] = {}

    def change(self, change: Change) -> None:
        """Count a change of the free GPUs of a node."""
        before = self._free.get(change.node, 0.0)
        after = before + change.gpus
        self._free[change.node] = after
        for gpus in self._kinds.get(change.model, ()):
            self._room[change.model, gpus] += _pods(after, gpus) - _pods(before, gpus)

    def come(self, unit: Wanted) -> None:
        """Add a unit that waits."""
        self._waiting.setdefault((unit.model, unit.gpus), Counter())[unit.members] += 1

    def leave(self, unit: Wanted) -> None:
        """Remove a unit that has started."""
        waiting = self._waiting.get((unit.model, unit.gpus), Counter[int]())
        waiting[unit.members] -= 1
        if waiting[unit.members] <= 0:
            del waiting[unit.members]

    def blocked(self) -> set[str]:
        """Return the models for which some unit has no room."""
        return {
            kind[0] for kind, members in self._waiting.items() if members and max(members) > self._room[kind]
        }


def _pods(free: float, gpus: float) -> int:
    return max(int(free / gpus + 1e-6), 0)
