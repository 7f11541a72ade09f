"""The nodes of a simulation and what runs on them, on the placement core of the scheduler."""

import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from gpufleet.placement import Allocation, CandidateNode, Demand, Fits, Inventory
from gpufleet.placement.request import Request
from gpufleet.placement.simulation.replay import POLICIES
from gpufleet.placement.victims import Eviction, Victim, least_harmful
from gpufleet.simulation.unit import Unit

_MOST_VICTIMS_SEEN = 64
"""Nodes on which victims of one pod are sought, those with the youngest first."""

_TERMINATING = -(2**62)
"""The rank of units that leave anyway."""


@dataclass(eq=False, slots=True)
class Running:
    """A unit that runs."""

    unit: Unit
    started: float
    ends: float
    places: list[Fits]


@dataclass(frozen=True, slots=True)
class Nomination:
    """GPUs that are kept for a unit until the units evicted for it have left them."""

    unit: Unit
    places: list[Fits]
    ready_at: float


@dataclass(frozen=True, slots=True)
class Targets:
    """Units that may be evicted: `rank` returns None for all others, and the lowest value for those to evict first."""

    key: object
    """Equal for searches among the same units."""
    numbers: Callable[[], Iterable[int]]
    """Returns the running units in the order in which to look at them; `rank` leaves some out."""
    rank: Callable[[Running], int | None]


class Fleet:
    """Places units, whole gangs at once, and finds what to preempt."""

    def __init__(
        self, nodes: Sequence[CandidateNode], policy: str, demand: Demand, rng: random.Random
    ) -> None:
        self.inventory = Inventory(nodes, score=POLICIES[policy](demand))
        self.running: dict[int, Running] = {}
        self.holders: dict[str, int] = {}
        """The number of the unit of each holder."""
        self.terminating: dict[int, Running] = {}
        """Evicted units that still have their GPUs."""
        self.nominated: dict[int, Nomination] = {}
        self.held_until: dict[str, float] = {}
        """When these leave their GPUs, by holder."""
        self.just_evicted: set[int] = set()
        """Units evicted in this walk over the queue: reservations do not rest on that yet."""
        self.changed: set[str] = set()
        """Nodes whose holders have changed since somebody cleared this."""
        self._nodes = nodes
        self._possible: dict[tuple[Request, int], bool] = {}
        self._rng = rng if policy == "random" else None
        self._by_priority: dict[int, dict[int, None]] = {}

    def start(self, unit: Unit, now: float) -> Running | None:
        """Place all members of a unit, or none."""
        places: list[Fits] = []
        for member in range(unit.members):
            fits = self._place(unit)
            if fits is None:
                for other in range(member):
                    self._free(f"{unit.number}.{other}")
                return None
            self._allocate(unit, member, fits)
            places.append(fits)
        return self._started(unit, places, now)

    def is_possible(self, unit: Unit) -> bool:
        """Return whether a unit would fit if nothing else ran."""
        key = (unit.request, unit.members)
        if key not in self._possible:
            placed, _ = Inventory(self._nodes).take_alike(*key)
            self._possible[key] = len(placed) == unit.members
        return self._possible[key]

    def end(self, number: int) -> Running:
        """Free the GPUs of a unit."""
        running = self.running.pop(number)
        del self._by_priority[running.unit.priority][number]
        for member in range(running.unit.members):
            self._free(f"{number}.{member}")
        return running

    def lower_priorities(self, unit: Unit, *, own_queue: bool) -> Targets:
        """Return the units of lower priority, the lowest and youngest first; with `own_queue` only of its queue."""

        def rank(running: Running) -> int | None:
            other = running.unit
            if other.priority >= unit.priority or (own_queue and other.queue != unit.queue):
                return None
            return other.priority

        def numbers() -> Iterator[int]:
            yield from self.terminating
            for priority in sorted(each for each in self._by_priority if each < unit.priority):
                yield from reversed(self._by_priority[priority])

        return Targets((unit.priority, unit.queue if own_queue else ""), numbers, rank)

    def youngest_of(self, numbers: Iterable[int], key: object) -> Targets:
        """Return these units, the youngest first."""
        ordered = sorted(numbers, key=lambda number: (-self._of(number).started, number))
        may = frozenset(ordered)

        def rank(running: Running) -> int | None:
            return -int(running.started) if running.unit.number in may else None

        def numbers_now() -> Iterator[int]:
            return (number for number in ordered if number in self.running or number in self.terminating)

        return Targets(key, numbers_now, rank)

    def preempt(
        self, unit: Unit, now: float, targets: Targets, grace: float = 0.0
    ) -> tuple[Running, list[Running]] | None:
        """Evict targets so that a unit fits, and start it when they have left; None if that does not help.

        Units that terminate already are preferred.
        """
        evicted: list[Running] = []
        leaving: list[float] = []
        places: list[Fits] = []
        for member in range(unit.members):
            fits = self._place(unit)
            if fits is None:
                found = self._victims(unit, now, targets)
                if found is None:
                    self._undo(unit, member, evicted, now)
                    return None
                holders = [holder for victim in found.victims for holder in victim.holders]
                numbers = dict.fromkeys(self.holders[each] for each in holders if each in self.holders)
                leaving += (self.held_until[holder] for holder in holders if holder in self.held_until)
                evicted.extend(map(self.end, numbers))
                fits = found.fits
            self._allocate(unit, member, fits, again=bool(self.terminating))
            places.append(fits)
        leaving += (min(now + grace, running.ends) for running in evicted)
        return self._started(unit, places, max([now, *leaving])), evicted

    def nominate(self, number: int) -> Nomination:
        """Let a unit that preempts others wait until its GPUs are free, and keep them for it."""
        running = self.end(number)
        found = self.nominated[number] = Nomination(running.unit, running.places, running.started)
        self.keep(found)
        return found

    def keep(self, nomination: Nomination) -> None:
        """Keep the GPUs of a nominated unit."""
        for member, fits in enumerate(nomination.places):
            self.hold(f"n{nomination.unit.number}.{member}", fits)

    def uncover(self, nomination: Nomination) -> None:
        """Release the GPUs of a nominated unit for a trial."""
        for member in range(len(nomination.places)):
            self.release(f"n{nomination.unit.number}.{member}")

    def withdraw(self, number: int) -> Nomination | None:
        """Give up a nomination."""
        found = self.nominated.pop(number, None)
        if found is not None:
            self.uncover(found)
        return found

    def start_nominated(self, unit: Unit, now: float) -> Running:
        """Start a unit on the GPUs that were kept for it."""
        found = self.withdraw(unit.number)
        assert found is not None
        for member, fits in enumerate(found.places):
            self._allocate(unit, member, fits, again=True)
        return self._started(unit, found.places, now)

    def terminate(self, running: Running, until: float) -> None:
        """Let an evicted unit keep its GPUs until then."""
        number = running.unit.number
        self.terminating[number] = running
        self.just_evicted.add(number)
        for member, fits in enumerate(running.places):
            holder = f"t{number}.{member}"
            self.held_until[holder] = until
            self.hold(holder, fits)

    def terminated(self, number: int) -> Running:
        """Release the GPUs of an evicted unit."""
        running = self.terminating.pop(number)
        for member in range(len(running.places)):
            holder = f"t{number}.{member}"
            del self.held_until[holder]
            self.release(holder)
        return running

    def fail(self, node: str) -> list[Running]:
        """Take a node out of service; return the units that ran on it."""
        found = self.inventory.nodes[node]
        self.inventory.put_node(replace(found, ready=False))
        numbers = {self.holders[held] for held in self.inventory.holders_on(node) if held in self.holders}
        for nomination in list(self.nominated.values()):
            if any(fits.node == node for fits in nomination.places):
                self.withdraw(nomination.unit.number)
        return [self.end(number) for number in sorted(numbers)]

    def repair(self, node: str) -> None:
        """Put a node back into service."""
        self.inventory.put_node(replace(self.inventory.nodes[node], ready=True))
        self.changed.add(node)

    def lowest_priority(self) -> float:
        """Return the lowest priority of a running unit."""
        return min((priority for priority, units in self._by_priority.items() if units), default=float("inf"))

    def hold(self, holder: str, fits: Fits) -> None:
        """Keep GPUs, free or not."""
        self.inventory.allocate(holder, Allocation.of(holder, fits), observed=True)
        self.changed.add(fits.node)

    def release(self, holder: str) -> None:
        """Release kept GPUs."""
        if (allocation := self.inventory.free(holder)) is not None:
            self.changed.add(allocation.node)

    def _place(self, unit: Unit) -> Fits | None:
        among: list[str] | None = None
        if self._rng is not None:
            feasible = self.inventory.feasible(unit.request)
            among = [self._rng.choice(feasible)] if feasible else None
        verdict = self.inventory.place(unit.request, among)
        return verdict if isinstance(verdict, Fits) else None

    def _started(self, unit: Unit, places: list[Fits], now: float) -> Running:
        ends = now + unit.runtime if unit.leaves_at is None else unit.leaves_at
        running = self.running[unit.number] = Running(unit, now, ends, places)
        self._by_priority.setdefault(unit.priority, {})[unit.number] = None
        return running

    def _allocate(self, unit: Unit, member: int, fits: Fits, *, again: bool = False) -> None:
        """Give GPUs to a member; `again` if something else may still keep them."""
        holder = f"{unit.number}.{member}"
        self.inventory.allocate(holder, Allocation.of(holder, fits) if again else fits, observed=again)
        self.holders[holder] = unit.number
        self.changed.add(fits.node)

    def _free(self, holder: str) -> None:
        allocation = self.inventory.free(holder)
        del self.holders[holder]
        if allocation is not None:
            self.changed.add(allocation.node)

    def _undo(self, unit: Unit, members: int, evicted: Iterable[Running], now: float) -> None:
        for member in range(members):
            self._free(f"{unit.number}.{member}")
        for running in evicted:
            for member, fits in enumerate(running.places):
                self._allocate(running.unit, member, fits, again=True)
            self.running[running.unit.number] = running
            self._by_priority[running.unit.priority][running.unit.number] = None

    def _of(self, number: int) -> Running:
        """Return a unit that runs or terminates."""
        return self.running.get(number) or self.terminating[number]

    def _victims(self, unit: Unit, now: float, targets: Targets) -> Eviction | None:
        nodes: dict[str, None] = {}
        for number in targets.numbers():
            running = self._of(number)
            if targets.rank(running) is not None:
                nodes.update(dict.fromkeys(fits.node for fits in running.places))
            if len(nodes) >= _MOST_VICTIMS_SEEN:
                break
        candidates = ((node, self._candidates(node, now, targets)) for node in nodes)
        return least_harmful(self.inventory, unit.request, candidates, _MOST_VICTIMS_SEEN)

    def _candidates(self, node: str, now: float, targets: Targets) -> list[Victim]:
        found = []
        for holder in self.inventory.holders_on(node):
            if holder in self.held_until:
                leaving = self.terminating[int(holder[1:].partition(".")[0])]
                if targets.rank(leaving) is not None:
                    found.append(Victim(holder, _TERMINATING))
                continue
            running = self.running.get(self.holders.get(holder, -1))
            rank = targets.rank(running) if running is not None else None
            if running is None or rank is None:
                continue
            number, members = running.unit.number, running.unit.members
            others = tuple(f"{number}.{at}" for at in range(members) if f"{number}.{at}" != holder)
            lost = running.unit.gpu_milli * (now - running.started)
            found.append(Victim(holder, rank, others, lost))
        return found
