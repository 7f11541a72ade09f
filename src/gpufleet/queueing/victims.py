"""Choose the holders that leave so that a unit fits: per node those whose eviction costs least.

Among the nodes with the lowest rank, the eviction with the lowest highest rank wins, then the one that loses the least
work, then the smallest, then the first by name. A gang leaves as a whole, on all of its nodes.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

from gpufleet.placement.pick import Pick
from gpufleet.placement.request import WHOLE
from gpufleet.queueing.needs import Amounts, more
from gpufleet.queueing.placing import Sizes, Trial, in_order
from gpufleet.queueing.snapshot import Held, Snapshot, View
from gpufleet.queueing.units import Holder, Place

MOST_NODES = 200
"""Nodes that are considered, those with the lowest ranks first."""

MOST_CANDIDATES = 400
"""Stop after this many holders once one eviction is found."""

_MEMBER_OPTIONS = 4
"""Evictions that are compared for each member of a gang; few, because a gang may have many members."""

_MOST_SETS = 1_000
"""Sets of holders that are compared on one node; beyond it holders are spared in order of their cost."""

_LEAVING = -(2**31)
"""The rank of holders that terminate anyway: evicting them costs nothing."""


@dataclass(frozen=True, slots=True)
class Targets:
    """Holders that may be evicted for a unit.

    `rank` returns None for all others, and the lowest value for those to evict first. `nodes` are the only nodes on which
    they may be evicted, as bits.
    """

    key: Hashable
    rank: Callable[[Holder], int | None]
    nodes: int | None = None
    reclaims: bool = False


@dataclass(frozen=True, slots=True)
class Evictions:
    """The places that a unit gets, and the holders that must leave for them."""

    places: tuple[Place, ...]
    victims: tuple[Holder, ...]


Name = tuple[str, int]
Cost = tuple[float, int, int, tuple[Name, ...]]


@dataclass(frozen=True, slots=True)
class _Option:
    """A holder on one node that may leave."""

    holder: Holder
    rank: int
    lost: float
    here: tuple[Held, ...]

    @property
    def name(self) -> Name:
        """Return the key of the holder with the number of its first member here, which breaks ties."""
        return self.holder.key, self.holder.places.index(self.here[0][1])


@dataclass(frozen=True, slots=True)
class _Eviction:
    rank: int
    cost: Cost
    node: int
    options: tuple[_Option, ...]


def find_victims(
    snapshot: Snapshot,
    sizes: Sizes,
    targets: Targets,
    view: View,
    hidden: View | None,
    now: float,
    within: int | None = None,
) -> Evictions | None:
    """Return who must leave so that all members fit; None if that does not help.

    `view` is the snapshot as if all targets had left; `hidden` are GPUs that may not be used. `within` are the only nodes
    for the members, as bits.
    """
    if any(view.total[need] < members for need, members in sizes):
        return None
    search = _Search(snapshot, targets, view, hidden, now, within)
    most = MOST_NODES if sum(members for _, members in sizes) == 1 else _MEMBER_OPTIONS
    places: list[Place] = []
    for need, members in in_order(snapshot, sizes):
        left = members
        while left:
            placed = search.trial.place(need, left, within)
            places += placed
            left -= len(placed)
            if left:
                place = search.evict(need, most)
                if place is None:
                    return None
                places.append(place)
                left -= 1
    return Evictions(tuple(places), tuple(search.gone.values()))


class _Search:
    def __init__(
        self,
        snapshot: Snapshot,
        targets: Targets,
        view: View,
        hidden: View | None,
        now: float,
        within: int | None,
    ) -> None:
        self._snapshot, self._targets, self._view, self._now = snapshot, targets, view, now
        self._area = snapshot.all_nodes if within is None else within
        if targets.nodes is not None:
            self._area &= targets.nodes
        self.trial = Trial(snapshot, hidden)
        self.gone: dict[str, Holder] = {}
        self._ranked: list[tuple[int, int]] | None = None

    def evict(self, need: int, most: int) -> Place | None:
        """Evict those holders for one member that do the least harm, and return its place; None if that is impossible."""
        best: _Eviction | None = None
        helped = looked_at = 0
        for node, options in self._candidates(need):
            eviction = self._evict_from(node, need, options, best)
            looked_at += len(options)
            if eviction is not None:
                helped += 1
                if best is None or (eviction.rank, eviction.cost, node) < (best.rank, best.cost, best.node):
                    best = eviction
            if helped == most or (helped and looked_at >= MOST_CANDIDATES):
                break
        if best is None:
            return None
        for option in best.options:
            self._leave(option.holder)
        chosen = self.trial.fits(need, best.node)
        assert chosen is not None
        place = self._snapshot.tables.place(need, best.node, chosen)
        self.trial.take(place)
        return place

    def _leave(self, holder: Holder) -> None:
        self.gone[holder.key] = holder
        by_node: dict[int, list[Held]] = {}
        for place in holder.places:
            by_node.setdefault(place.node, []).append((holder, place))
        for node, held in by_node.items():
            self.trial.leave(node, held)

    def _candidates(self, need: int) -> Iterator[tuple[int, list[_Option]]]:
        """Yield the nodes on which a member fits if all targets leave, those with the lowest rank first."""
        if self._ranked is None:
            # The ranks on a node only change when holders leave it.
            nodes = (node for node in self._view.counts if self._area >> node & 1)
            ranked = ((self._lowest(node), node) for node in nodes)
            self._ranked = sorted((rank, node) for rank, node in ranked if rank is not None)
        looked_at = 0
        for _, node in self._ranked:
            if self._view.counts[node][need] <= 0:
                continue
            options = self._options(node)
            if options:
                yield node, options
                looked_at += 1
                if looked_at >= MOST_NODES:
                    return

    def _lowest(self, node: int) -> int | None:
        ranks = (self._targets.rank(holder) for holder, _ in self._snapshot.on[node])
        return min((rank for rank in ranks if rank is not None), default=None)

    def _options(self, node: int) -> list[_Option]:
        options: dict[str, _Option] = {}
        for holder, _ in self._snapshot.on[node]:
            if holder.key in self.gone or holder.key in options:
                continue
            rank = self._targets.rank(holder)
            if rank is not None:
                here = tuple(taken for taken in self._snapshot.on[node] if taken[0] is holder)
                lost = 0.0 if holder.leaving else lost_work(holder, self._now)
                options[holder.key] = _Option(holder, _LEAVING if holder.leaving else rank, lost, here)
        return sorted(options.values(), key=lambda option: (option.rank, option.name))

    def _evict_from(
        self, node: int, need: int, options: list[_Option], best: _Eviction | None
    ) -> _Eviction | None:
        """Return the options to evict on one node; None if that is not enough or costs more than `best` for certain."""
        enough = self._least_important(node, need, options)
        if not enough:
            return None
        highest = max(option.rank for option in enough)
        if best is not None and highest > best.rank:
            return None
        chosen = self._cheapest(node, need, enough)
        return _Eviction(max(option.rank for option in chosen), _cost(chosen), node, chosen)

    def _least_important(self, node: int, need: int, options: list[_Option]) -> list[_Option]:
        """Return the options up to the lowest rank at which evicting all of them is enough."""
        for rank in sorted({option.rank for option in options}):
            some = [option for option in options if option.rank <= rank]
            if self._fits_without(node, need, some):
                return some
        return []

    def _cheapest(self, node: int, need: int, options: list[_Option]) -> tuple[_Option, ...]:
        if len(options) == 1:
            return tuple(options)
        if 1 << len(options) > _MOST_SETS:
            return self._spare(node, need, options)
        fewest = self._fewest(node, need, options)
        sets = [some for size in range(fewest, len(options) + 1) for some in combinations(options, size)]
        return next(some for some in sorted(sets, key=_cost) if self._fits_without(node, need, some))

    def _spare(self, node: int, need: int, options: list[_Option]) -> tuple[_Option, ...]:
        leaving = list(options)
        for option in sorted(options, key=lambda each: (each.rank, _cost((each,))), reverse=True):
            rest = [other for other in leaving if other is not option]
            if self._fits_without(node, need, rest):
                leaving = rest
        return tuple(leaving)

    def _fewest(self, node: int, need: int, options: Iterable[_Option]) -> int:
        """Return a lower bound of the number of holders that must leave, from the GPUs that are missing."""
        tables = self._snapshot.tables
        missing = tables.needs[need].request.gpu_milli - tables.free_milli(self.trial.on(node)[0])
        number = 1
        for gives in sorted((_milli(option.here) for option in options), reverse=True):
            missing -= gives
            if missing <= 0:
                break
            number += 1
        return number

    def _fits_without(self, node: int, need: int, options: Sequence[_Option]) -> bool:
        occupancy, free = self._without(node, options)
        chosen = self._snapshot.fits(need, node, occupancy, free)
        return isinstance(chosen, Pick)

    def _without(self, node: int, options: Sequence[_Option]) -> tuple[int, Amounts]:
        leaving = [held for option in options for held in option.here]
        if any(place.instances for _, place in leaving):
            trial = self.trial.copy_of(node)
            trial.leave(node, leaving)
            return trial.on(node)
        occupancy, free = self.trial.on(node)
        for _, place in leaving:
            occupancy = self._snapshot.tables.returned(occupancy, place)
            free = more(free, place.amounts)
        return occupancy, free


def lost_work(holder: Holder, now: float) -> float:
    """Return the GPU-seconds that are lost if a holder leaves now."""
    gpus = sum(len(place.gpus) * max(place.milli, 1) / WHOLE for place in holder.places)
    return gpus * max(now - holder.since, 0.0)


def _milli(held: Iterable[Held]) -> int:
    return sum(len(place.gpus) * place.milli for _, place in held)


def _cost(options: Iterable[_Option]) -> Cost:
    options = tuple(options)
    return (
        sum(option.lost for option in options),
        sum(len(option.holder.places) for option in options),
        sum(option.rank for option in options),
        tuple(option.name for option in options),
    )
