"""Choose the victims of preemption: per node the pods whose eviction makes a request fit and costs least.

The caller passes the candidates, their priorities and what evicting each costs. A victim may take
others along: the members of a gang leave together. Among the sets that free enough GPUs, the one
with the lowest highest priority wins, then the one that loses the least work, then the smallest,
then the one with the lowest sum of priorities, then the first by name.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from gpufleet.placement.inventory import Inventory
from gpufleet.placement.lone_node import LoneNode
from gpufleet.placement.request import Request
from gpufleet.placement.verdict import Fits

MOST_TRIES = 1_000
"""Sets compared on one node. Beyond it victims are reprieved in order of priority, as in kube-scheduler."""

FEWEST_OPTIONS = 8
"""Evictions that are compared even if time is short."""

MOST_CANDIDATES = 400
"""Stop after this many candidates on all nodes once one eviction is found: a pod is waiting."""


@dataclass(frozen=True, slots=True)
class Victim:
    """A holder that may be preempted.

    `also` are the holders, on any node, that leave with it. `lost` is the work that all of them lose.
    """

    holder: str
    priority: int = 0
    also: tuple[str, ...] = ()
    lost: float = 0.0

    @property
    def holders(self) -> tuple[str, ...]:
        """Return all holders that leave."""
        return (self.holder, *self.also)


Cost = tuple[float, int, int, list[str]]


@dataclass(frozen=True, slots=True)
class Eviction:
    """The holders to evict from a node, and what the request gets afterwards."""

    node: str
    victims: tuple[Victim, ...]
    fits: Fits

    @property
    def rank(self) -> tuple[int, Cost, str]:
        """Return a sort key; the lowest is the least harmful eviction."""
        highest = max((victim.priority for victim in self.victims), default=-(2**31))
        return highest, _cost(self.victims), self.node


def _cost(victims: Iterable[Victim]) -> Cost:
    """Return what evicting these costs, apart from the highest priority."""
    victims = tuple(victims)
    return (
        sum(victim.lost for victim in victims),
        sum(len(victim.holders) for victim in victims),
        sum(victim.priority for victim in victims),
        [victim.holder for victim in victims],
    )


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
    inventory: Inventory,
    request: Request,
    candidates: Iterable[tuple[str, Sequence[Victim]]],
    most: int,
    stop: Callable[[], bool] = lambda: False,
) -> Eviction | None:
    """Return the least harmful eviction of the first `most` nodes on which one helps, found before `stop`."""
    found: list[Eviction] = []
    looked_at = 0
    for node, victims in candidates:
        eviction = evict_from(inventory, request, node, victims)
        if eviction is not None and eviction.victims:
            found.append(eviction)
        looked_at += len(victims)
        if len(found) == most or (found and looked_at >= MOST_CANDIDATES):
            break
        if len(found) >= FEWEST_OPTIONS and stop():
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
    chosen = _cheapest(trial, enough)
    return Eviction(node, chosen, trial.placement_without(chosen))


def _least_important(trial: "_Trial", victims: list[Victim]) -> list[Victim]:
    """Return the candidates up to the lowest priority at which evicting all of them is enough."""
    for priority in sorted({victim.priority for victim in victims}):
        some = [victim for victim in victims if victim.priority <= priority]
        if trial.fits_without(some):
            return some
    return victims


def _cheapest(trial: "_Trial", victims: list[Victim]) -> tuple[Victim, ...]:
    if 1 << len(victims) > MOST_TRIES:
        return _reprieve(trial, victims)
    fewest = trial.fewest(victims)
    sets = [some for size in range(fewest, len(victims) + 1) for some in combinations(victims, size)]
    return next(some for some in sorted(sets, key=_cost) if trial.fits_without(some))


def _reprieve(trial: "_Trial", victims: list[Victim]) -> tuple[Victim, ...]:
    leaving = list(victims)
    for victim in sorted(victims, key=lambda each: (each.priority, _cost((each,))), reverse=True):
        rest = [other for other in leaving if other != victim]
        if trial.fits_without(rest):
            leaving = rest
    return tuple(leaving)


class _Trial:
    """One node on which evictions are tried."""

    def __init__(self, inventory: Inventory, request: Request, node: str) -> None:
        self._request = request
        self._node = LoneNode(inventory, node)

    def fits_without(self, victims: Iterable[Victim]) -> bool:
        """Return whether the request fits after the victims are evicted."""
        return self._try(victims) is not None

    def fewest(self, victims: Iterable[Victim]) -> int:
        """Return a lower bound of the number of victims, from the GPU capacity that is missing."""
        missing = self._request.gpu_milli - self._node.free_milli()
        number = 1
        for gives in sorted(map(self._gives, victims), reverse=True):
            missing -= gives
            if missing <= 0:
                break
            number += 1
        return number

    def _gives(self, victim: Victim) -> int:
        held = (self._node.held.get(holder) for holder in victim.holders)
        return sum(len(each.gpus) * each.milli for each in held if each is not None)

    def placement_without(self, victims: Iterable[Victim]) -> Fits:
        """Return what the request gets after the victims are evicted."""
        fits = self._try(victims)
        assert fits is not None
        return fits

    def _try(self, victims: Iterable[Victim]) -> Fits | None:
        return self._node.place(self._request, (holder for victim in victims for holder in victim.holders))
