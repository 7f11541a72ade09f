"""Find what a unit may evict in a forward simulation: lower priorities, and borrowed GPUs inside its guarantee."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from gpufleet.estimates.fleet_state import FleetState, WaitingUnit
from gpufleet.estimates.free_gpus import FreeGpus, Places
from gpufleet.estimates.holders import Holder, Holders
from gpufleet.estimates.queue_answers import QueueAnswers

_MOST_NODES = 64
"""Nodes on which victims of one member are sought, those with the youngest first."""
_MOST_SEEN = 1_000
"""Running units that are looked at for that."""

Victim = tuple[int, Holder]


@dataclass(frozen=True, slots=True)
class Room:
    """GPUs that were taken for a unit, and the units evicted for it."""

    places: Places
    evicted: tuple[Victim, ...]


class Victims:
    """The units that others may evict; with queues, priorities count within a queue only."""

    def __init__(
        self, state: FleetState, free: FreeGpus, holders: Holders, queues: QueueAnswers | None
    ) -> None:
        self._state, self._free, self._holders, self._queues = state, free, holders, queues

    def any_for(self, unit: WaitingUnit) -> bool:
        """Return whether there may be something for a unit to evict."""
        if not self._state.preempt:
            return False
        return unit.priority > self._holders.lowest or bool(self._reclaimable(unit))

    def make_room(self, unit: WaitingUnit, hidden: Mapping[int, int]) -> Room | None:
        """Take GPUs for all members and evict what is in their way; nothing and None if that does not help."""
        taken: list[tuple[int, int]] = []
        evicted: list[Victim] = []
        for _ in range(unit.members):
            node = self._free.find(unit, hidden)
            if node is None and (found := self._find(unit)) is not None:
                node, victims = found
                for number, holder in victims:
                    self._holders.remove(number)
                    self._free.release(holder.places)
                    self._count(holder, -1)
                    evicted.append((number, holder))
            if node is None:
                self.undo(Room(tuple(taken), tuple(evicted)))
                return None
            self._free.take(node, unit.milli)
            taken.append((node, unit.milli))
        return Room(tuple(taken), tuple(evicted))

    def undo(self, room: Room) -> None:
        """Return what was taken, and let the evicted units run on."""
        self._free.release(room.places)
        for number, holder in room.evicted:
            self._holders.restore(number)
            for node, milli in holder.places:
                self._free.take(node, milli)
            self._count(holder, 1)

    def _count(self, holder: Holder, sign: int) -> None:
        if self._queues is not None:
            self._queues.count(holder.unit.queue, holder.places, sign)

    def _find(self, unit: WaitingUnit) -> tuple[int, list[Victim]] | None:
        """Return a node and the units to evict there so that one member fits: as little as possible."""
        best: tuple[int, int, list[Victim]] | None = None
        reclaimable = self._reclaimable(unit)
        for node in self._nodes(unit, reclaimable):
            free, cost, chosen = self._free.on(node), 0, list[Victim]()
            for number, holder in sorted(self._holders.on(node), key=_harm):
                if free.fits(unit.milli):
                    break
                if self._may_evict(unit, holder, reclaimable):
                    chosen.append((number, holder))
                    cost += sum(milli for _, milli in holder.places)
                    for place, milli in holder.places:
                        if place == node:
                            free.release(milli)
            if free.fits(unit.milli) and (best is None or cost < best[0]):
                best = cost, node, chosen
        return (best[1], best[2]) if best is not None else None

    def _nodes(self, unit: WaitingUnit, reclaimable: Collection[str]) -> list[int]:
        nodes: dict[int, None] = {}
        for holder in self._youngest(unit, reclaimable):
            nodes.update(
                (node, None)
                for node, _ in holder.places
                if not unit.models or self._state.models[node] in unit.models
            )
            if len(nodes) >= _MOST_NODES:
                break
        return list(nodes)

    def _youngest(self, unit: WaitingUnit, reclaimable: Collection[str]) -> Iterator[Holder]:
        seen = 0
        for priority in self._holders.priorities:
            if priority >= unit.priority and not reclaimable:
                return
            for holder in self._holders.youngest(priority):
                seen += 1
                if seen > _MOST_SEEN:
                    return
                if self._may_evict(unit, holder, reclaimable):
                    yield holder

    def _reclaimable(self, unit: WaitingUnit) -> Collection[str]:
        """Return the queues whose units it may evict because it is inside a guarantee."""
        if self._queues is None:
            return ()
        return self._queues.reclaimable(unit.queue, unit.milli * unit.members)

    def _may_evict(self, unit: WaitingUnit, holder: Holder, reclaimable: Collection[str]) -> bool:
        if self._queues is None or holder.unit.queue == unit.queue:
            return holder.unit.priority < unit.priority
        return holder.unit.queue in reclaimable


def _harm(victim: Victim) -> tuple[int, float]:
    return victim[1].unit.priority, -victim[1].since
