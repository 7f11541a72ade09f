"""Walk the queue and decide for each unit: it starts, others leave for it, GPUs are kept for it, or it waits.

The rules of the walk:

1. Units are looked at in order. The next one is the first that may start or evict by its counts, or the first whose
   reservation is missing or due while the limit of reservations is not reached. All others are refused by their counts.
2. A unit that fits past the reservations ahead of it starts. Otherwise it may evict. Otherwise it gets its reservation
   before any unit behind it is tried.
3. A start drops the unit's own reservation and those behind it on its nodes. Units ahead are not affected.
4. After an eviction the walk begins again.
5. A reservation is chosen again after `RECHOOSE_S`, and only if GPUs have become free since the unit was last looked at.
   It moves only if the remaining wait halves.
6. A reservation ignores those behind it. If one ahead has no known time, those behind are dropped.
7. Ties are broken by the number of nodes and the keys of units. Nothing depends on random names.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from gpufleet.queueing.evictions import EvictionSearch
from gpufleet.queueing.placing import place_members
from gpufleet.queueing.queues import Queues
from gpufleet.queueing.reservations import Reservation, Reservations
from gpufleet.queueing.shares.order import FIRST
from gpufleet.queueing.snapshot import Snapshot, View
from gpufleet.queueing.units import NEVER, Holder, Place, Unit
from gpufleet.queueing.victims import Evictions
from gpufleet.queueing.waiting import Integers, WaitingUnits

Models = Callable[[int, Place], dict[str, int]]
"""Returns the GPUs of a place by model, in thousandths, as queues count them."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What the walk does for units that do not fit."""

    reservations: int = 4
    backfill: bool = True
    """Whether units behind one that does not fit may start."""
    preempt: bool = True
    grace: float = 0.0
    """Seconds that evicted units take to leave."""


@dataclass(frozen=True, slots=True)
class Start:
    """A unit that has GPUs from now on."""

    unit: Unit
    holder: Holder


@dataclass(frozen=True, slots=True)
class Eviction:
    """Holders that leave for a unit; it starts on the kept GPUs when they have left."""

    unit: Unit
    victims: tuple[Holder, ...]


class Core:
    """The queue, the nodes and the rules; `now` is passed to every call."""

    def __init__(
        self,
        snapshot: Snapshot,
        rules: Rules,
        queues: Queues | None = None,
        models: Models | None = None,
        reservations: Reservations | None = None,
    ) -> None:
        self.snapshot = snapshot
        self.rules = rules
        self.queues = queues
        self._models = models or _any_model
        self.waiting = WaitingUnits(snapshot)
        self.reservations = reservations or Reservations(snapshot, rules.reservations)
        self.evictions = EvictionSearch(snapshot, self.waiting, queues)
        self.nominated: dict[str, Holder] = {}
        """GPUs that are kept for units until the units evicted for them have left, by unit."""
        self.decisions: list[Start | Eviction] = []
        """What was decided; the caller takes it."""
        self._refused: dict[Hashable, int] = {}
        """The value of `Snapshot.freed` when equal units were refused, or searched victims, in vain."""
        self._has_unranked = False
        """Whether a unit has come since the last ranking."""

    def copy(self) -> "Core":
        """Return an independent copy, for a forward run."""
        snapshot = self.snapshot.copy()
        queues = self.queues.copy() if self.queues else None
        twin = Core(snapshot, self.rules, queues, self._models, self.reservations.copy(snapshot))
        twin.waiting = self.waiting.copy(snapshot)
        twin.evictions = EvictionSearch(snapshot, twin.waiting, queues)
        twin.nominated = self.nominated.copy()
        twin._has_unranked = self._has_unranked
        return twin

    # -- events ----------------------------------------------------------------------------

    def advance(self, now: float) -> None:
        """Count what the queues have had until `now`, before anything changes."""
        if self.queues is not None:
            self.queues.advance(now)

    def put(self, unit: Unit) -> None:
        """Add a waiting unit."""
        for group in unit.groups:
            self.snapshot.tables.need(group.need)
        governed = self.queues is not None and unit.queue is not None
        self.waiting.put(unit, _BEHIND if governed else FIRST)
        self._has_unranked = self._has_unranked or governed

    def drop(self, unit: Unit) -> None:
        """Remove a waiting unit."""
        self.waiting.drop(unit)
        self.reservations.drop(unit)
        if (kept := self.nominated.pop(unit.key, None)) is not None:
            self._release(kept)

    def take(self, holder: Holder) -> None:
        """Add something that has GPUs."""
        self.snapshot.take(holder)
        if self.queues is not None:
            self.queues.take(holder)

    def release(self, key: str) -> Holder | None:
        """Remove what has GPUs; return None if it has left before."""
        holder = self.snapshot.holders.get(key)
        if holder is not None:
            self._release(holder)
        return holder

    def _release(self, holder: Holder) -> None:
        self.snapshot.release(holder.key)
        if self.queues is not None:
            self.queues.release(holder)

    # -- the walk --------------------------------------------------------------------------

    def decide(self, now: float) -> list[Start | Eviction]:
        """Decide for all units as of now, and return what was decided."""
        self.snapshot.sync()
        self._move_ends(now)
        if self.queues is not None:
            self._rank_if_due(now)
        self._walk(now)
        while self.reservations.are_due(now):  # some were dropped after others were looked at
            self._walk(now)
        self.reservations.looked_at()
        decisions, self.decisions = self.decisions, []
        return decisions

    def _walk(self, now: float) -> None:
        begin, promising, version = 0, np.zeros(0, np.int64), (-1, -1, -1)
        while begin < len(self.waiting):
            if version != (version := self._version()):
                promising = self._promising(now)
            near = int(np.searchsorted(promising, begin))
            nearest = int(promising[near]) if near < len(promising) else len(self.waiting)
            index = self._next_reserving(begin, nearest, now)
            if index >= len(self.waiting):
                return
            unit = self.waiting[index]
            outcome = self._try(unit, index, now) if index == nearest else None
            if outcome is _EVICTS:
                begin = 0
            elif outcome is _STARTS:
                begin = index
            elif not self.rules.backfill:
                return
            else:
                self._reserve(unit, index, now)
                begin = index + 1

    def _move_ends(self, now: float) -> None:
        """Expect units that wait for their victims to run from now on."""
        for kept in self.nominated.values():
            if kept.unit is not None and kept.unit.declared is not None:
                kept.declared_end = now + kept.unit.declared
                self._note_changed(kept)

    def _note_changed(self, holder: Holder) -> None:
        for place in holder.places:
            if self.snapshot.changed is not None:
                self.snapshot.changed(place.node)

    def _version(self) -> tuple[int, int, int]:
        return self.waiting.version, self.reservations.version, self.snapshot.version

    def _rank_if_due(self, now: float) -> None:
        assert self.queues is not None
        if not self._has_unranked and not self.queues.rank_due(now):
            return
        self._has_unranked = False
        ranks = self.queues.ranks(self.waiting.by_age(), self.nominated.values(), now)
        if self.waiting.rank(ranks):
            self.reservations.reorder(self.waiting.position)

    def _ahead(self, index: int) -> list[Reservation]:
        """Return the reservations ahead of a unit."""
        return [made for made in self.reservations.made if self.waiting.position(made.unit) < index]

    def _promising(self, now: float) -> Integers:
        """Return which units may start now, or may evict, by their counts alone."""
        waiting = self.waiting
        if not len(waiting):
            return waiting.need
        total, made = self.snapshot.total, self.reservations.made
        need, members = waiting.need, waiting.members
        good = total[need] >= members
        if made:
            past = np.zeros(len(good), np.bool_)
            cuts = [waiting.position(reservation.unit) + 1 for reservation in made]
            for ahead, (begin, end) in enumerate(zip([0, *cuts], [*cuts, len(past)], strict=True)):
                view = self.reservations.view(made[:ahead])
                left = total if view is None else view.total
                past[begin:end] = left[need[begin:end]] >= members[begin:end]
            latest = max(
                (reservation.needed_at for reservation in made if reservation.needed_at is not None),
                default=-NEVER,
            )
            good &= past | (now + waiting.declared <= latest)
        if self.rules.preempt:
            lowest, units = (
                self.snapshot.lowest_priority(),
                np.bincount(waiting.target, minlength=len(waiting.targets)),
            )
            self.evictions.drop_old_views(units)
            for (queue, priority), number in waiting.targets.items():
                if units[number] and priority > lowest:
                    view = self.evictions.view(self.evictions.lower(queue, priority))
                    good |= (waiting.target == number) & (view.total[need] >= members)
        if self.queues is not None:
            good |= self._reclaiming()
            good &= ~self._are_limited()
        for kept in self.nominated.values():
            assert kept.unit is not None
            good[self.waiting.position(kept.unit)] = True
        return np.flatnonzero(good)

    def _next_reserving(self, at: int, before: int, now: float) -> int:
        """Return the next unit, before this index, whose reservation is missing or due."""
        if not self.reservations.most or not self.rules.backfill:
            return before
        ahead = self._ahead(at)
        mine = {made.unit: made for made in self.reservations.made}
        limited = self._are_limited() if self.queues is not None else None
        for index in range(at, before):
            unit = self.waiting[index]
            made = mine.get(unit)
            full = self.reservations.is_full(ahead)
            if full and not any(self.waiting.position(other.unit) >= index for other in mine.values()):
                return before
            if full or (limited is not None and limited[index]):
                if made is not None and made.looked_at != self.snapshot.freed:
                    return index
                continue
            if unit.key not in self.nominated and self.reservations.is_due(unit, made, now):
                return index
            if made is not None:
                ahead.append(made)
        return before

    # -- one unit --------------------------------------------------------------------------

    def _try(self, unit: Unit, index: int, now: float) -> object:
        if not self.rules.backfill and index:
            return None
        own = self.nominated.get(unit.key)
        if own is not None and not self._is_blocked(own):
            self._start(unit, index, own.places, now)
            return _STARTS
        if self._is_limited(unit, own):
            return None
        respected = self.reservations.respected(self._ahead(index), unit, now)
        hidden = self.reservations.view(respected)
        places = self._fit(unit, hidden, respected, own)
        if places is not None:
            self._start(unit, index, tuple(places), now)
            return _STARTS
        if own is not None or not self.rules.preempt or not unit.preempts:
            return None
        sizes = self.waiting.sizes(unit)[-1]
        for targets in self.evictions.targets(unit):
            key = ("victims", targets.key, sizes, unit.level, *map(id, respected))
            if self._refused.get(key) == self.snapshot.freed:
                continue
            found = self.evictions.find(unit, sizes, targets, hidden, now)
            if found is not None:
                self._evict(unit, index, found, now)
                return _EVICTS if self.rules.grace == 0.0 else _STARTS
            self._refuse(key)
        return None

    def _fit(
        self, unit: Unit, hidden: View | None, respected: Sequence[Reservation], own: Holder | None
    ) -> list[Place] | None:
        """Return places for as many members as possible, or for those without which the unit does not start."""
        if own is not None:
            with self.snapshot.excluding(own):
                tries = (
                    place_members(self.snapshot, sizes, unit.level, hidden)
                    for sizes in self.waiting.sizes(unit)
                )
                return next((places for places in tries if places is not None), None)
        least = self.waiting.sizes(unit)[-1]
        for sizes in self.waiting.sizes(unit):
            key = ("place", sizes, unit.level, *map(id, respected))
            if self._refused.get(key) == self.snapshot.freed or (sizes is not least and self._exceeds(unit)):
                continue
            places = place_members(self.snapshot, sizes, unit.level, hidden)
            if places is not None:
                return places
            self._refuse(key)
        return None

    def _refuse(self, key: Hashable) -> None:
        if len(self._refused) > 10_000:
            self._refused.clear()
        self._refused[key] = self.snapshot.freed

    def _start(self, unit: Unit, index: int, places: tuple[Place, ...], now: float) -> None:
        behind = [made for made in self.reservations.made if self.waiting.position(made.unit) > index]
        self.reservations.drop(unit)
        self.drop(unit)
        self.reservations.yielded(behind, places)
        holder = self._holder(unit.key, unit, places, now)
        self.take(holder)
        self.decisions.append(Start(unit, holder))

    def _holder(self, key: str, unit: Unit, places: tuple[Place, ...], now: float) -> Holder:
        gpus: dict[str, int] = {}
        if unit.queue is not None:
            for place in places:
                for model, milli in self._models(place.node, place).items():
                    gpus[model] = gpus.get(model, 0) + milli
        declared = None if unit.declared is None else now + unit.declared
        return Holder(
            key, places, now, unit.priority, unit.queue, declared_end=declared, unit=unit, gpus=gpus
        )

    def _evict(self, unit: Unit, index: int, found: Evictions, now: float) -> None:
        """Let victims leave: at once, or after their grace period while the GPUs are kept for the unit."""
        if self.rules.grace == 0.0:
            self.decisions.append(Eviction(unit, found.victims))
            for victim in found.victims:
                self._release(victim)
            self._start(unit, index, found.places, now)
            return
        behind = [made for made in self.reservations.made if self.waiting.position(made.unit) > index]
        self.reservations.drop(unit)
        self.reservations.yielded(behind, found.places)
        leaving = tuple(
            replace(victim, leaving=True, declared_end=now + self.rules.grace) for victim in found.victims
        )
        for victim in leaving:
            self.snapshot.replace(victim)
        self.decisions.append(Eviction(unit, leaving))
        kept = self._holder(f"for {unit.key}", unit, found.places, now)
        kept.protected, kept.since = True, NEVER
        self.take(kept)
        self.nominated[unit.key] = kept
        self.waiting.version += 1

    def _is_blocked(self, own: Holder) -> bool:
        """Return whether something else still has GPUs that are kept for a unit."""
        return any(
            taken.overlaps(place)
            for place in own.places
            for holder, taken in self.snapshot.on[place.node]
            if holder is not own
        )

    def _reserve(self, unit: Unit, index: int, now: float) -> None:
        own = self.nominated.get(unit.key)
        if own is not None:
            return
        if self._is_limited(unit, None):
            self.reservations.drop(unit)
            return
        self.reservations.reserve(unit, self._ahead(index), now)

    # -- quotas ----------------------------------------------------------------------------

    def _is_limited(self, unit: Unit, own: Holder | None) -> bool:
        if self.queues is None:
            return False
        return self.queues.limited(unit.queue, unit.least_asked, own.gpus if own is not None else None)

    def _exceeds(self, unit: Unit) -> bool:
        return self.queues is not None and self.queues.limited(unit.queue, unit.asked)

    def _are_limited(self) -> "NDArrayBool":
        """Return which units their queues keep from starting."""
        assert self.queues is not None
        if not self.queues.has_limits:
            return np.zeros(len(self.waiting), np.bool_)
        limited = np.array([self.queues.limited(*pair) for pair in self.waiting.asks], np.bool_)
        return limited[self.waiting.asked]

    def _reclaiming(self) -> "NDArrayBool":
        """Return which units are inside a guarantee and were not refused since GPUs became free."""
        reclaiming = np.zeros(len(self.waiting), np.bool_)
        if self.rules.preempt and self.queues is not None and self.queues.guarantees:
            for index, unit in enumerate(self.waiting):
                if self.waiting.ranks[unit.key][0] != FIRST[0]:
                    break
                reclaiming[index] = unit.preempts and unit.queue in self.queues.guarantees
        return reclaiming


NDArrayBool = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]

_STARTS, _EVICTS = object(), object()
_BEHIND = (3, 0.0)
"""The rank of units that were not ranked yet: behind all others."""


def _any_model(node: int, place: Place) -> dict[str, int]:
    return {"": len(place.gpus) * place.milli}
