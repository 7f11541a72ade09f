"""Simulate a queue forward once, with sampled ends, on the free GPUs of each node.

It follows the order and the rules of the planner (priority, then age, or the order between GpuQueues; the first unit
that does not fit gets a reservation; a unit with a declared run time is backfilled; units of higher priority, and units
inside a guarantee, evict others) but counts GPUs per node instead of choosing them. Units that may still arrive are
drawn from those of the last time. After an end only units that the freed nodes could take are tried again, so one run
over a large fleet takes milliseconds.
"""

import random
from bisect import insort
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np
from numpy.typing import NDArray

from gpufleet.estimates.fleet_state import FleetState, Rank, WaitingUnit
from gpufleet.estimates.free_gpus import NONE_HIDDEN, FreeGpus, Places
from gpufleet.estimates.holders import Holder, Holders
from gpufleet.estimates.probes import Probes
from gpufleet.estimates.queue_answers import QueueAnswers
from gpufleet.estimates.reservations import Kept, Reservations
from gpufleet.estimates.victims import Victims

_MOST_EVENTS = 3_000
_MOST_PROBING = 1_000
"""Events after which hypothetical units alone do not keep a run going."""
_PROBE_ALWAYS, _PROBE_EVERY = 50, 25
"""Probes are tried after each of the first ends, then only now and then."""
_RANK_S = 60.0
"""Seconds after which the order between queues is computed again; more by as much for every 5 waiting units."""
_HOUR = 3600.0
_FOREVER = float("inf")
_BEHIND: Rank = (_FOREVER,)
"""The rank of units behind all others."""

Order = tuple[int, float, int]
"""Negative priority, arrival and number."""


@dataclass(frozen=True)
class Forward:
    """When units start, by key, and when a unit of a probe's size would have started behind all others."""

    starts: dict[str, float]
    probes: dict[str, float]
    until: float


@dataclass(frozen=True, slots=True)
class Sampled:
    """What one run assumes: remaining run times of running units, run times of waiting and of arriving ones."""

    ends: NDArray[np.float64]
    waiting: Sequence[float]
    arriving: Sequence[float]


@dataclass(eq=False, slots=True)
class _Entry:
    order: Order
    unit: WaitingUnit
    runtime: float
    key: str
    evicted: float = -1.0
    """When it was evicted: at the same moment it evicts nothing itself."""

    @property
    def queue(self) -> str:
        return self.unit.queue

    @property
    def asked(self) -> int:
        return self.unit.milli * self.unit.members


@dataclass(frozen=True, slots=True)
class _Reservation:
    entry: _Entry
    kept: Kept


class _Turn:
    """The place in a queue where hypothetical units that come now are looked at."""

    order: Order = (0, 0.0, 0)
    asked = 0

    def __init__(self, queue: str) -> None:
        self.queue = queue
        self.key = f"turn {queue}"


class ForwardRuns:
    """Runs over one state; what the runs have in common is prepared once."""

    def __init__(self, state: FleetState, probes: Sequence[WaitingUnit], horizon: float) -> None:
        self._state, self._probes, self._horizon = state, probes, horizon
        self._free = FreeGpus(state.free, state.models, state.running)
        self._holders = Holders(state.running)
        self._used = state.used() if state.order is not None else {}

    def run(self, sampled: Sampled, rng: random.Random) -> Forward:
        """Run once, until all waiting units have started."""
        used = {queue: models.copy() for queue, models in self._used.items()}
        holders = self._holders.copy(sampled.ends)
        run = _Run(self._state, self._free.copy(), holders, used, self._probes, sampled, rng)
        return run.run(self._horizon)


class _Run:
    def __init__(
        self,
        state: FleetState,
        free: FreeGpus,
        holders: Holders,
        used: dict[str, Counter[str]],
        probes: Sequence[WaitingUnit],
        sampled: Sampled,
        rng: random.Random,
    ) -> None:
        self._state, self._free, self._holders, self._rng = state, free, holders, rng
        self._arriving = sampled.arriving
        order = np.argsort(sampled.ends, kind="stable")
        self._first_ends: Iterator[int] = iter(order.tolist())
        self._ends = sampled.ends
        self._next_first = next(self._first_ends, -1)
        self._later: list[tuple[float, int]] = []
        self._waiting: list[_Entry] = [
            _Entry((-unit.priority, -1.0, at), unit, sampled.waiting[at], unit.key)
            for at, unit in enumerate(state.waiting)
            if not unit.waits_for and state.could_hold(unit)
        ]
        self._waiting.sort(key=_order)
        self._number = len(state.waiting)
        self._open = {entry.key for entry in self._waiting}
        self._starts: dict[str, float] = {}
        self._reservation: _Reservation | None = None
        self._queues = state.order.copy() if state.order is not None else None
        self._used = used
        self._answers = QueueAnswers(self._queues, used, state.models) if self._queues is not None else None
        self._victims = Victims(state, free, holders, self._answers)
        self._reservations = Reservations(state, free, holders)
        self._probes = Probes(state, probes, free, self._victims, self._reservations, self._answers)
        self._ranks: Mapping[str, Rank] = {}
        self._rank_due = 0.0
        self._counted_to = 0.0
        self._least = 0

    def run(self, horizon: float) -> Forward:
        """Handle events until all units have started."""
        now, handled, ended = 0.0, 0, 0
        arrival = self._next_arrival(0.0)
        self._walk(0.0, _FOREVER, probing=True)
        while handled < _MOST_EVENTS:
            probing = bool(self._probes.queues())
            if not (self._open or (probing and handled < _MOST_PROBING)):
                break
            end = self._next_end()
            if min(end, arrival) > horizon:
                now = horizon
                break
            now = min(end, arrival)
            handled += 1
            if self._queues is not None:
                self._queues.advance(self._used, now - self._counted_to)
                self._counted_to = now
            if arrival <= end:
                self._arrive(now)
                arrival = self._next_arrival(now)
            else:
                ended += 1
                freed = self._end_units(now)
                room = max(map(self._free.free, freed), default=0)
                self._walk(now, room, probing=probing and (ended < _PROBE_ALWAYS or not ended % _PROBE_EVERY))
        return Forward(self._starts, self._probes.starts(), now)

    # -- events ----------------------------------------------------------------------------

    def _next_end(self) -> float:
        first = float(self._ends[self._next_first]) if self._next_first >= 0 else _FOREVER
        return min(first, self._later[0][0] if self._later else _FOREVER)

    def _end_units(self, now: float) -> list[int]:
        """End the units whose time has come; return the nodes with more free GPUs."""
        freed: list[int] = []
        while self._next_first >= 0 and self._ends[self._next_first] <= now:
            freed += self._end(self._next_first)
            self._next_first = next(self._first_ends, -1)
        while self._later and self._later[0][0] <= now:
            freed += self._end(heappop(self._later)[1])
        return freed

    def _end(self, number: int) -> list[int]:
        holder = self._holders.remove(number)
        self._holders.forget(number)
        if holder is None:  # evicted before
            return []
        self._free.release(holder.places)
        self._count(holder.unit.queue, holder.places, -1)
        return [node for node, _ in holder.places]

    def _next_arrival(self, now: float) -> float:
        """Return the next arrival of a Poisson process whose rate changes every hour (by thinning)."""
        rates = self._state.arrival_rates
        highest = max(rates, default=0.0)
        if highest <= 0.0 or not self._state.arrivals:
            return _FOREVER
        at = now
        while True:
            at += self._rng.expovariate(highest)
            if self._rng.random() * highest <= rates[int(at // _HOUR) % len(rates)]:
                return at

    def _arrive(self, now: float) -> None:
        """Add a unit to the queue, and start it if it fits; no other unit fits better than before."""
        at = self._rng.randrange(len(self._state.arrivals))
        unit = self._state.arrivals[at]
        self._number += 1
        entry = _Entry((-unit.priority, now, self._number), unit, self._arriving[at], f"later {self._number}")
        reserved = self._reservation
        overtakes = self._queues is None and reserved is not None and entry.order < reserved.entry.order
        if not overtakes and (self._state.backfill or not self._waiting):
            if self._try(entry, now):
                return
            if not self._limited(unit) and (victims := self._evict(entry, now, set())) is not None:
                self._wait_again(victims, now)
                return
        insort(self._waiting, entry, key=self._place)
        self._least = min(self._least, unit.milli)
        if overtakes:
            self._walk(now, 0, entry)

    # -- the queue -------------------------------------------------------------------------

    def _walk(self, now: float, room: float, new: _Entry | None = None, *, probing: bool = False) -> None:
        """Start what fits, in order: `new`, and units whose pods are not larger than the room that became free."""
        if new is None and room < self._least and not probing:
            return
        reserved, self._reservation = self._reservation, None
        left: list[_Entry] = []
        victims: list[_Entry] = []
        refused: set[object] = set()
        entries = self._ordered(now, probing)
        for at, entry in enumerate(entries):
            if isinstance(entry, _Turn):
                self._look(entry.queue, now, refused)
                continue
            unit = entry.unit
            fits = entry is new or unit.milli <= room
            evicts = entry.evicted < now and self._victims.any_for(unit)
            if (fits or evicts) and not self._limited(unit):
                if fits and self._try_once(entry, now, refused):
                    if reserved is not None and reserved.entry is entry:
                        room, reserved = _FOREVER, None  # others may use what was kept for it
                        refused.clear()
                    continue
                if evicts and (found := self._evict(entry, now, refused)) is not None:
                    victims += found
                    continue
            left.append(entry)
            if not self._state.backfill:
                left += [other for other in entries[at + 1 :] if isinstance(other, _Entry)]
                break
            if self._reservation is None and self._state.reservations and not self._limited(unit):
                same = reserved is not None and reserved.entry is entry
                self._reservation = reserved if same else self._reserve(entry, now)
        self._waiting = left
        self._least = min((entry.unit.milli for entry in left), default=0)
        if victims:
            self._wait_again(victims, now)

    def _wait_again(self, victims: Sequence[_Entry], now: float) -> None:
        """Add evicted units to the queue, and start what fits on the GPUs that they left."""
        self._waiting = sorted([*self._waiting, *victims], key=self._place)
        self._walk(now, _FOREVER)

    def _look(self, queue: str, now: float, refused: set[object]) -> None:
        """Look at the hypothetical units at the end of a queue."""
        made = self._reservation
        self._probes.look(queue, now, made.kept.nodes if made is not None else None, refused)

    def _ordered(self, now: float, probing: bool) -> Sequence[_Entry | _Turn]:
        """Return the waiting units in order, with the turns of hypothetical units between them if `probing`.

        Hypothetical units inside a guarantee do not need a higher rank than others: they evict others.
        """
        turns = [_Turn(queue) for queue in self._probes.queues()] if probing else []
        both: list[_Entry | _Turn] = [*self._waiting, *turns]
        if self._queues is not None and now >= self._rank_due:
            by_queue: dict[str, list[tuple[str, int]]] = {}
            for entry in sorted(both, key=_order):
                if entry.queue or isinstance(entry, _Entry):  # a turn of no queue is behind all others
                    by_queue.setdefault(entry.queue, []).append((entry.key, entry.asked))
            self._ranks = self._queues.ranks(self._used, by_queue)
            self._rank_due = now + _RANK_S * (1 + len(self._waiting) / 5)
            self._waiting.sort(key=self._place)
        return sorted(both, key=self._place) if turns else self._waiting

    def _place(self, entry: _Entry | _Turn) -> tuple[Rank, Order]:
        """Return the sort key of the queue: the rank between GpuQueues, if it is known, then priority and age."""
        return self._ranks.get(entry.key, _BEHIND), entry.order

    def _limited(self, unit: WaitingUnit) -> bool:
        return self._answers is not None and self._answers.limited(unit.queue, unit.milli * unit.members)

    def _hidden(self, entry: _Entry, now: float) -> Mapping[int, int]:
        """Return the reserved GPUs that a unit may not use."""
        made, declared = self._reservation, entry.unit.job.declared
        if made is None or made.entry is entry:
            return NONE_HIDDEN
        needed_at = made.kept.needed_at
        if declared is not None and needed_at is not None and now + declared <= needed_at:
            return NONE_HIDDEN
        return made.kept.nodes

    def _try_once(self, entry: _Entry, now: float, refused: set[object]) -> bool:
        """Start a unit if it fits, unless an equal one was refused in this walk."""
        unit = entry.unit
        key = (unit.milli, unit.members, unit.models, self._hidden(entry, now) is NONE_HIDDEN)
        if key in refused:
            return False
        if self._try(entry, now):
            return True
        refused.add(key)
        return False

    def _try(self, entry: _Entry, now: float) -> bool:
        if self._limited(entry.unit):
            return False
        places = self._free.place(entry.unit, self._hidden(entry, now))
        if places is None:
            return False
        self._start(entry, places, now)
        return True

    def _start(self, entry: _Entry, places: Places, now: float) -> None:
        self._count(entry.unit.queue, places, 1)
        number = self._holders.add(Holder(entry.unit, places, now, entry.runtime))
        heappush(self._later, (now + entry.runtime, number))
        if entry.key in self._open:
            self._open.discard(entry.key)
            self._starts[entry.key] = now

    def _count(self, queue: str, places: Places, sign: int) -> None:
        if self._answers is not None:
            self._answers.count(queue, places, sign)

    def _reserve(self, entry: _Entry, now: float) -> _Reservation | None:
        """Keep nodes for a unit until it starts."""
        kept = self._reservations.keep(entry.unit, now)
        return _Reservation(entry, kept) if kept is not None else None

    def _evict(self, entry: _Entry, now: float, refused: set[object]) -> list[_Entry] | None:
        """Start a unit on GPUs of units that it may evict; return these, or None if that does not help."""
        unit = entry.unit
        key = ("evict", unit.priority, unit.queue, unit.milli, unit.members, unit.models)
        if key in refused or not self._victims.any_for(unit):
            return None
        room = self._victims.make_room(unit, self._hidden(entry, now))
        if room is None:
            refused.add(key)
            return None
        self._start(entry, room.places, now)
        for number, _ in room.evicted:
            self._holders.forget(number)
        return [self._waiting_again(number, holder, now) for number, holder in room.evicted]

    def _waiting_again(self, number: int, holder: Holder, now: float) -> _Entry:
        """Return an evicted unit as one that has just arrived and runs from its beginning."""
        self._number += 1
        order = (-holder.unit.priority, now, self._number)
        return _Entry(order, holder.unit, holder.runtime, f"evicted {number}", now)


def _order(entry: _Entry | _Turn) -> Order:
    return entry.order
