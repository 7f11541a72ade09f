"""Whom to preempt: for each node the fewest pods whose leaving makes a request fit.

Pure: who may be preempted, and with what priority, comes in. Of all sets of candidates that
make room the one is taken whose most important member matters least, then the smallest, then
the one with the least priority in all, then by name.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice

from gpufleet.placement.inventory import Inventory
from gpufleet.placement.request import Request
from gpufleet.placement.verdict import Fits

MOST_TRIES = 1_000
"""Sets tried on one node; beyond it whoever can stay, most important first, stays (as kube-scheduler does it)."""

MOST_CANDIDATES = 400
"""So many candidates on all nodes together are looked at once one eviction is found that helps: somebody waits."""


@dataclass(frozen=True, slots=True)
class Victim:
    """A holder that may be preempted."""

    holder: str
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Eviction:
    """The holders that have to leave a node, and what the request gets then."""

    node: str
    victims: tuple[Victim, ...]
    fits: Fits

    @property
    def rank(self) -> tuple[int, int, int, str]:
        """The least is the eviction that hurts least."""
        priorities = [victim.priority for victim in self.victims]
        return max(priorities, default=-(2**31)), len(priorities), sum(priorities), self.node


def evictions(
    cluster: Inventory, request: Request, candidates: Mapping[str, Sequence[Victim]]
) -> list[Eviction]:
    """For each node where preempting candidates helps, whom; the one that hurts least first."""
    found = []
    for node, victims in candidates.items():
        if node in cluster.nodes and (eviction := evict_from(cluster, request, node, victims)):
            found.append(eviction)
    return sorted(found, key=lambda eviction: eviction.rank)


def least_harmful(
    cluster: Inventory, request: Request, candidates: Iterable[tuple[str, Sequence[Victim]]], most: int
) -> Eviction | None:
    """The eviction that hurts least, of the first `most` nodes on which somebody's leaving helps."""
    found: list[Eviction] = []
    looked_at = 0
    for node, victims in candidates:
        eviction = evict_from(cluster, request, node, victims)
        if eviction is not None and eviction.victims:
            found.append(eviction)
        looked_at += len(victims)
        if len(found) == most or (found and looked_at >= MOST_CANDIDATES):
            break
    return min(found, key=lambda eviction: eviction.rank, default=None)


def evict_from(
    cluster: Inventory, request: Request, node: str, candidates: Iterable[Victim]
) -> Eviction | None:
    """The set of candidates to preempt on one node, or None if not even all of them make room."""
    room = _Room(cluster, request, node)
    here = set(cluster.holders_on(node))
    victims = sorted((v for v in candidates if v.holder in here), key=lambda v: (v.priority, v.holder))
    if room.without(()):
        return Eviction(node, (), room.without_fits(()))
    if not room.without(victims):
        return None
    enough = _least_important(room, victims)
    chosen = _smallest(room, enough)
    return Eviction(node, chosen, room.without_fits(chosen))


def _least_important(room: "_Room", victims: list[Victim]) -> list[Victim]:
    """The candidates up to the lowest priority at which all of them together make room."""
    for priority in sorted({victim.priority for victim in victims}):
        some = [victim for victim in victims if victim.priority <= priority]
        if room.without(some):
            return some
    return victims


def _smallest(room: "_Room", victims: list[Victim]) -> tuple[Victim, ...]:
    tries = 0
    for size in range(room.fewest(victims), len(victims) + 1):
        sets = list(islice(combinations(victims, size), MOST_TRIES - tries + 1))
        tries += len(sets)
        if tries > MOST_TRIES:
            break
        sets.sort(key=lambda chosen: (sum(v.priority for v in chosen), [v.holder for v in chosen]))
        for chosen in sets:
            if room.without(chosen):
                return chosen
    return _spare_the_important(room, victims)


def _spare_the_important(room: "_Room", victims: list[Victim]) -> tuple[Victim, ...]:
    leaving = list(victims)
    for victim in sorted(victims, key=lambda v: (-v.priority, v.holder)):
        rest = [other for other in leaving if other != victim]
        if room.without(rest):
            leaving = rest
    return tuple(leaving)


class _Room:
    """One node alone, on which leaving is tried out."""

    def __init__(self, cluster: Inventory, request: Request, node: str) -> None:
        self._request = request
        self._node = node
        self._alone = Inventory([cluster.nodes[node]], score=cluster.states.score)
        for holder in cluster.holders_on(node):
            self._alone.allocate(holder, cluster.allocations[holder], observed=True)

    def without(self, victims: Iterable[Victim]) -> bool:
        """Whether the request fits once they are gone."""
        return self._try(victims) is not None

    def fewest(self, victims: Iterable[Victim]) -> int:
        """So many must leave at least: all that is free then has to be as much as is asked for."""
        missing = self._request.gpu_milli - sum(
            max(left, 0) for left in self._alone.free_milli(self._node).values()
        )
        held = (self._alone.allocations[victim.holder] for victim in victims)
        number = 1
        for gives in sorted((len(each.gpus) * each.milli for each in held), reverse=True):
            missing -= gives
            if missing <= 0:
                break
            number += 1
        return number

    def without_fits(self, victims: Iterable[Victim]) -> Fits:
        """What it gets then."""
        fits = self._try(victims)
        assert fits is not None
        return fits

    def _try(self, victims: Iterable[Victim]) -> Fits | None:
        gone = [allocation for victim in victims if (allocation := self._alone.free(victim.holder))]
        verdict = self._alone.place(self._request)
        for allocation in gone:
            self._alone.allocate(allocation.holder, allocation, observed=True)
        return verdict if isinstance(verdict, Fits) else None
