"""Keep nodes for a unit that does not fit yet, as the planner does: those that are expected to be free first."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gpufleet.estimates.fleet_state import FleetState, WaitingUnit
from gpufleet.estimates.free_gpus import FreeGpus
from gpufleet.estimates.holders import Holder, Holders

_CANDIDATES = 8
"""Nodes per member that are compared."""
_FEW_NODES = 64
"""All nodes are compared in a fleet of this size."""
_FOREVER = float("inf")

Drained = tuple[float, int, bool]
"""When a node is expected to have room, its number, and whether all units on it declare their ends."""


@dataclass(frozen=True, slots=True)
class Kept:
    """Nodes with the thousandths of GPUs that are kept there."""

    nodes: dict[int, int]
    needed_at: float | None
    """When the GPUs are needed; None if a unit on them declares no run time."""


class Reservations:
    """Chooses nodes from the free GPUs and the units that run in one forward simulation."""

    def __init__(self, state: FleetState, free: FreeGpus, holders: Holders) -> None:
        self._state, self._free, self._holders = state, free, holders

    def keep(self, unit: WaitingUnit, now: float) -> Kept | None:
        """Return the nodes to keep for all members; None if there are not enough."""
        return kept_of(self.soonest(unit, now), unit)

    def soonest(self, unit: WaitingUnit, now: float) -> list[Drained]:
        """Return nodes that are expected to have room for a member, at least enough for all, the first ones first."""
        capacity = self._state.capacity
        if len(capacity) <= _FEW_NODES:
            nodes: Sequence[int] = range(len(capacity))
        else:
            most = _CANDIDATES * unit.members
            nodes = list(dict.fromkeys((*self._free.emptiest(unit, most), *self._holders.soonest[:most])))
        found: list[Drained] = []
        for node in nodes:
            if capacity[node] >= unit.milli and (not unit.models or self._state.models[node] in unit.models):
                ends = [
                    (holder.expected_end(now), held, holder.unit.job.declared is not None)
                    for holder, held in self._ending(node)
                ]
                at, known = self._drained(node, unit.milli, now, ends)
                found.append((at, node, known))
        return sorted(found)

    def free_at(self, kept: Kept, now: float) -> float:
        """Return when the kept GPUs are free in this simulation, if nothing else starts on them."""
        at = now
        for node, milli in kept.nodes.items():
            ends = [(holder.since + holder.runtime, held, True) for holder, held in self._ending(node)]
            at = max(at, self._drained(node, milli, now, ends)[0])
        return at

    def _ending(self, node: int) -> Iterator[tuple[Holder, int]]:
        """Return the units on a node that end some time, with what they have there."""
        for _, holder in self._holders.on(node):
            if not holder.unit.job.service:
                for place, held in holder.places:
                    if place == node:
                        yield holder, held

    def _drained(
        self, node: int, milli: int, now: float, ends: Iterable[tuple[float, int, bool]]
    ) -> tuple[float, bool]:
        """Return when a node has so much free, and whether all ends before that are known.

        `ends` are the ends of its units, what they return, and whether the end is known.
        """
        free, at, all_known = self._free.on(node), now, True
        for end, held, known in sorted(ends):
            if free.fits(milli):
                break
            free.release(held)
            at, all_known = end, all_known and known
        return (at, all_known) if free.fits(milli) else (_FOREVER, False)


def kept_of(soonest: Sequence[Drained], unit: WaitingUnit) -> Kept | None:
    """Return the first of these nodes for all members of a unit; None if there are not enough."""
    chosen = soonest[: unit.members]
    if len(chosen) < unit.members or chosen[-1][0] == _FOREVER:
        return None
    needed_at = chosen[-1][0] if all(known for *_, known in chosen) else None
    return Kept({node: unit.milli for _, node, _ in chosen}, needed_at)
