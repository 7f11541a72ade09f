"""The order of waiting units between queues, computed now and then as the planner does.

A unit that has arrived since then comes behind all others of its queue. A unit that overtakes a reservation must be
looked at again: it may use the reserved GPUs, or get a reservation itself.
"""

from collections.abc import Sequence

from gpufleet.simulation.queue_use import QueueUse
from gpufleet.simulation.queues import Rank
from gpufleet.simulation.reservations import Reservations
from gpufleet.simulation.unit import Unit
from gpufleet.simulation.waiting_units import WaitingUnits

RANK_S = 1.0
"""Seconds after which the order is computed again, as in the scheduler."""
_FEW_WAITING = 200
_LONG_QUEUE_RANK_S = 60.0
"""With more units in the queue the order is computed only after so many seconds, times their multiple."""
_LAST: Rank = (3.0, 0.0)
"""The rank of a unit that has arrived since the last cycle: behind all others."""
_GUARANTEED = 0.0
"""The first part of the rank of units inside a guarantee."""
_LONG_AGO = -float("inf")


class Ranking:
    """Knows the rank of each waiting unit; all ranks are equal without queues."""

    def __init__(self, use: QueueUse, priorities: bool) -> None:
        self.waiting = WaitingUnits(self.rank, priorities)
        self._use = use
        self._ranks: dict[int, Rank] = {}
        self._last_ranks: dict[str, Rank] = {}
        """The rank of the last waiting unit of each queue."""
        self._due = _LONG_AGO

    def rank(self, unit: Unit) -> Rank:
        """Return the place of a unit between queues."""
        return self._ranks.get(unit.number, _LAST) if self._use.queues is not None else ()

    def is_guaranteed(self, unit: Unit) -> bool:
        """Return whether a unit is inside the guarantee of its queue, and no other one waits for that before it."""
        return self._use.queues is not None and self.rank(unit)[0] == _GUARANTEED

    def reset(self, reservations: Reservations) -> None:
        """Forget all ranks: the rules have changed."""
        self._ranks.clear()
        self._last_ranks.clear()
        self._due = _LONG_AGO
        reservations.reorder(self.waiting.order)

    def update(self, fresh: Sequence[Unit], reservations: Reservations, now: float) -> list[Unit]:
        """Compute the order, or only the ranks of `fresh` units if it is not due; return units that overtake a reservation."""
        if self._use.queues is None:
            return []
        self._use.advance(now)
        if now < self._due:
            for unit in fresh:
                self._put_last(unit)
            return []
        behind, reserving = self._reservations_ahead(reservations), reservations.numbers
        waiting = {
            queue: [(str(unit.number), unit.gpu_milli) for unit in units]
            for queue, units in self.waiting.by_queue().items()
        }
        self._ranks = {
            int(key): rank for key, rank in self._use.queues.ranks(self._use.used, waiting).items()
        }
        self._last_ranks = {queue: self._ranks[int(units[-1][0])] for queue, units in waiting.items()}
        reservations.reorder(self.waiting.order)
        self._due = now + (_LONG_QUEUE_RANK_S * (len(self.waiting) // _FEW_WAITING) or RANK_S)
        new = {unit.number for unit in fresh}
        return [
            unit
            for unit in self.waiting.up_to(reservations.last)
            if unit.number not in new
            and behind.get(unit.number, reserving) - reservations.ahead(unit, self.waiting.order(unit))
        ]

    def _reservations_ahead(self, made: Reservations) -> dict[int, set[int]]:
        """Return the reservations ahead of each waiting unit; units behind all of them are left out."""
        return {
            unit.number: made.ahead(unit, self.waiting.order(unit)) for unit in self.waiting.up_to(made.last)
        }

    def _put_last(self, unit: Unit) -> None:
        """Give a new unit the rank behind all others of its queue."""
        assert self._use.queues is not None
        key, queue = str(unit.number), unit.queue
        rank = self._use.queues.ranks(self._use.used, {queue: [(key, unit.gpu_milli)]})[key]
        self._ranks[unit.number] = self._last_ranks[queue] = max(rank, self._last_ranks.get(queue, rank))
