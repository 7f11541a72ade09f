"""Choose the victims of preemption: per node the fewest pods whose eviction makes a request fit.

The caller passes the candidates and their priorities. Among the sets that free enough GPUs, the
one with the lowest highest priority wins, then the smallest, then the one with the lowest sum of
priorities, then the first by name.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, islice

from gpufleet.placement.inventory import Inventory
from gpufleet.placement.request import Request
from gpufleet.placement.verdict import Fits

MOST_TRIES = 1_000
"""Sets tried on one node. Beyond it victims are reprieved in order of priority, as in kube-scheduler."""

MOST_CANDIDATES = 400
"""Stop after this many candidates on all nodes once one eviction is found: a pod is waiting."""


@dataclass(frozen=True, slots=True)
class Victim:
    """A holder that may be preempted."""

    holder: str
    priority: int = 0


@dataclass(frozen=True, slots=True)
class Eviction:
    """The holders to evict from a node, and what the request gets afterwards."""

    node: str
    victims: tuple[Victim, ...]
    fits: Fits

    @property
    def rank(self) -> tuple[int, int, int, str]:
        """Return a sort key; the lowest is the least harmful eviction."""
        priorities = [victim.priority for victim in self.victims]
        return max(priorities, default=-(2**31)), len(priorities), sum(priorities), self.node


def evictions(
    inventory: Inventory, request: Request, candidates: Mapping[str, Sequence[Victim]]
) -> list[Eviction]:
    """Return the eviction for each node on which preemption helps, the least harmful first."""
    found = []
    for node, victims in candidates.items():
        if node in inventory.nodes and (eviction := evict_from(inventory, request, node, victims)):
            found.append(eviction)
    return sorted(found, key=lambda eviction: eviction.rank)


def least_harmful(
    inventory: Inventory, request: Request, candidates: Iterable[tuple[str, Sequence[Victim]]], most: int
) -> Eviction | None:
    """Return the least harmful eviction of the first `most` nodes on which one helps."""
    found: list[Eviction] = []
    looked_at = 0
    for node, victims in candidates:
        eviction = evict_from(inventory, request, node, victims)
        if eviction is not None and eviction.victims:
            found.append(eviction)
        looked_at += len(victims)
        if len(found) == most or (found and looked_at >= MOST_CANDIDATES):
            break
    return min(found, key=lambda eviction: eviction.rank, default=None)


def evict_from(
    inventory: Inventory, request: Request, node: str, candidates: Iterable[Victim]
) -> Eviction | None:
    """Return the candidates to preempt on one node, or None if evicting all of them is not enough."""
    trial = _Trial(inventory, request, node)
    here = set(inventory.holders_on(node))
    victims = sorted((v for v in candidates if v.holder in here), key=lambda v: (v.priority, v.holder))
    if trial.fits_without(()):
        return Eviction(node, (), trial.placement_without(()))
    if not trial.fits_without(victims):
        return None
    enough = _least_important(trial, victims)
    chosen = _smallest(trial, enough)
    return Eviction(node, chosen, trial.placement_without(chosen))


def _least_important(trial: "_Trial", victims: list[Victim]) -> list[Victim]:
    """Return the candidates up to the lowest priority at which evicting all of them is enough."""
    for priority in sorted({victim.priority for victim in victims}):
        some = [victim for victim in victims if victim.priority <= priority]
        if trial.fits_without(some):
            return some
    return victims


def _smallest(trial: "_Trial", victims: list[Victim]) -> tuple[Victim, ...]:
    tries = 0
    for size in range(trial.fewest(victims), len(victims) + 1):
        sets = list(islice(combinations(victims, size), MOST_TRIES - tries + 1))
        tries += len(sets)
        if tries > MOST_TRIES:
            break
        sets.sort(key=lambda chosen: (sum(v.priority for v in chosen), [v.holder for v in chosen]))
        for chosen in sets:
            if trial.fits_without(chosen):
                return chosen
    return _reprieve(trial, victims)


def _reprieve(trial: "_Trial", victims: list[Victim]) -> tuple[Victim, ...]:
    leaving = list(victims)
    for victim in sorted(victims, key=lambda v: (-v.priority, v.holder)):
        rest = [other for other in leaving if other != victim]
        if trial.fits_without(rest):
            leaving = rest
    return tuple(leaving)


class _Trial:
    """A copy of one node on which evictions are tried."""

    def __init__(self, inventory: Inventory, request: Request, node: str) -> None:
        self._request = request
        self._node = node
        self._alone = Inventory([inventory.nodes[node]], score=inventory.states.score)
        for holder in inventory.holders_on(node):
            self._alone.allocate(holder, inventory.allocations[holder], observed=True)

    def fits_without(self, victims: Iterable[Victim]) -> bool:
        """Return whether the request fits after the victims are evicted."""
        return self._try(victims) is not None

    def fewest(self, victims: Iterable[Victim]) -> int:
        """Return a lower bound of the number of victims, from the GPU capacity that is missing."""
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

    def placement_without(self, victims: Iterable[Victim]) -> Fits:
        """Return what the request gets after the victims are evicted."""
        fits = self._try(victims)
        assert fits is not None
        return fits

    def _try(self, victims: Iterable[Victim]) -> Fits | None:
        gone = [allocation for victim in victims if (allocation := self._alone.free(victim.holder))]
        verdict = self._alone.place(self._request)
        for allocation in gone:
            self._alone.allocate(allocation.holder, allocation, observed=True)
        return verdict if isinstance(verdict, Fits) else None
