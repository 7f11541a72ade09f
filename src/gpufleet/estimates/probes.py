"""Find out in a forward simulation when hypothetical units would start; they take no GPUs.

A unit that joins the end of its queue changes nothing for others until it starts or gets a reservation. So a run shows
the starts of many hypothetical units at once: each is looked at when its turn comes. Where it would get the reservation,
it starts at the latest when the nodes that would be kept for it are free.
"""

from collections.abc import Iterable, Mapping

from gpufleet.estimates.fleet_state import FleetState, WaitingUnit
from gpufleet.estimates.free_gpus import NONE_HIDDEN, FreeGpus
from gpufleet.estimates.queue_answers import QueueAnswers
from gpufleet.estimates.reservations import Drained, Reservations, kept_of
from gpufleet.estimates.victims import Victims

_FOREVER = float("inf")


class Probes:
    """Hypothetical units at the end of each queue in one run; those of no queue are behind all others."""

    def __init__(
        self,
        state: FleetState,
        units: Iterable[WaitingUnit],
        free: FreeGpus,
        victims: Victims,
        reservations: Reservations,
        answers: QueueAnswers | None,
    ) -> None:
        self._reserving = state.reservations
        self._free, self._victims, self._reservations, self._answers = free, victims, reservations, answers
        self._left: dict[str, dict[str, WaitingUnit]] = {}
        for unit in sorted(units, key=_asked):
            self._left.setdefault(unit.queue, {})[unit.key] = unit
        self._largest = {
            (unit.milli, unit.models): unit for units in self._left.values() for unit in units.values()
        }
        """The unit with most members of each kind."""
        self._starts: dict[str, float] = {}
        self._latest: dict[str, float] = {}
        """When the nodes that would be kept for a unit are free."""
        self._soonest: dict[tuple[int, frozenset[str]], list[Drained]] = {}
        self._soonest_at = -1.0

    def queues(self) -> list[str]:
        """Return the queues of units that have not started."""
        return list(self._left)

    def starts(self) -> dict[str, float]:
        """Return the starts so far, and those that a reservation would bring."""
        return {**self._latest, **self._starts}

    def look(self, queue: str, now: float, reserved: Mapping[int, int] | None, refused: set[object]) -> None:
        """Note which units of a queue start now; GPUs are `reserved` for a unit ahead of them unless that is None.

        `refused` has what was tried in vain since GPUs became free.
        """
        hidden = NONE_HIDDEN if reserved is None else reserved
        left, evicts = self._left[queue], True
        for key, unit in list(left.items()):
            evicts = evicts and self._victims.any_for(unit)
            if self._latest.get(key, _FOREVER) <= now:
                del left[key]
            elif self._is_limited(unit):
                continue
            elif self._starts_now(unit, hidden, refused, evicts=evicts):
                self._starts[key] = now
                del left[key]
            elif reserved is None and self._reserving and key not in self._latest:
                self._promise(unit, now)
        if not left:
            del self._left[queue]

    def _is_limited(self, unit: WaitingUnit) -> bool:
        return self._answers is not None and self._answers.limited(unit.queue, _asked(unit))

    def _starts_now(
        self, unit: WaitingUnit, hidden: Mapping[int, int], refused: set[object], *, evicts: bool
    ) -> bool:
        fits = (unit.milli, unit.members, unit.models, hidden is NONE_HIDDEN)
        if fits not in refused:
            if self._free.fits(unit, hidden):
                return True
            refused.add(fits)
        key = ("evict", unit.priority, unit.queue, unit.milli, unit.members, unit.models)
        if not evicts or key in refused:
            return False
        room = self._victims.make_room(unit, hidden)
        if room is None:
            refused.add(key)
            return False
        self._victims.undo(room)
        return True

    def _promise(self, unit: WaitingUnit, now: float) -> None:
        """Note when a unit starts at the latest, because nodes would be kept for it from now on."""
        if now != self._soonest_at:
            self._soonest, self._soonest_at = {}, now
        kind = unit.milli, unit.models
        if kind not in self._soonest:
            self._soonest[kind] = self._reservations.soonest(self._largest[kind], now)
        kept = kept_of(self._soonest[kind], unit)
        if kept is not None and (at := self._reservations.free_at(kept, now)) < _FOREVER:
            self._latest[unit.key] = at


def _asked(unit: WaitingUnit) -> int:
    """Return the thousandths of GPUs of all members."""
    return unit.milli * unit.members
