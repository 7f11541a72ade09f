"""Numbers for shapes, occupancies, node states and needs, and what follows from them for ever.

A *state* is the class of a node with the free part of each of its GPUs. `row(state)[need]` is how many members of a need
fit on a node in that state. Fleets have few states, so rows, picks and costs are computed once and serve all nodes, and
all copies of a snapshot share them.
"""

from collections.abc import Hashable, Sequence

import numpy as np
from numpy.typing import NDArray

from gpufleet.placement.demand import PRIOR
from gpufleet.placement.node import CandidateGpu
from gpufleet.placement.node_score import UNIT, UNKNOWN, Nodes, Score
from gpufleet.placement.node_shape import Occupancy, Shape
from gpufleet.placement.node_states import QUALITY
from gpufleet.placement.pick import Pick, pick
from gpufleet.placement.reasons import Reason
from gpufleet.placement.request import MOST_GPUS
from gpufleet.placement.usability import Usability
from gpufleet.queueing.needs import UNLIMITED, Amounts, Exclusion, Need, labels_exclude
from gpufleet.queueing.units import Place

Counts = NDArray[np.int64]
IMPOSSIBLE = 1 << 61
"""The cost of a state in which a need does not fit."""


class Tables:
    """What is known about states and needs; only ever added to."""

    def __init__(
        self,
        resources: Sequence[str] = (),
        exclusion: Exclusion = labels_exclude,
        score: Score | None = None,
    ) -> None:
        """`resources` are the names of what needs ask besides GPUs, in the order of their `amounts`."""
        self.resources = tuple(resources)
        self.needs: list[Need] = []
        self.shapes: list[Shape] = []
        self.occupancies: list[Occupancy] = []
        self.states: list[tuple[int, int]] = []
        """Class and occupancy of each state."""
        self._exclusion = exclusion
        self._score = score or Usability(PRIOR)
        self._need_at: dict[Need, int] = {}
        self._shape_at: dict[tuple[object, ...], int] = {}
        self._shape_of: list[int] = []
        self._occupancy_at: dict[tuple[int, tuple[int, ...], tuple[int, ...]], int] = {}
        self._state_at: dict[tuple[int, int], int] = {}
        self._classes: list[Hashable] = []
        self._class_at: dict[Hashable, int] = {}
        self._excluded: dict[tuple[int, Hashable], Reason] = {}
        self._admits: list[Counts | None] = []
        self._kind_at: dict[tuple[object, ...], int] = {}
        self._kind_of: list[int] = []
        self._picks: list[dict[int, Pick | Reason]] = []
        self._copies: list[dict[int, int]] = []
        self._costs: list[dict[int, int]] = []
        self._losses: dict[int, float] = {}
        self._moves: dict[tuple[object, ...], int] = {}
        self._rows: list[Counts | None] = []
        self._ample: list[Amounts] = []
        self._columns: dict[int, Counts] = {}
        self.amounts: list[Amounts] = []
        """What each need takes of all resources."""
        self._amounts: Counts = np.zeros((0, len(self.resources)), np.int64)

    # -- numbers ---------------------------------------------------------------------------

    def need(self, need: Need) -> int:
        """Return the number of a need, adding it if it is new."""
        number = self._need_at.get(need)
        if number is not None:
            return number
        number = self._need_at[need] = len(self.needs)
        kind = self._kind_at.setdefault(need.request.gpus, len(self._picks))
        if kind == len(self._picks):
            self._picks.append({})
            self._copies.append({})
            self._costs.append({})
        self.needs.append(need)
        self._kind_of.append(kind)
        self.amounts.append((*need.amounts, *(0,) * (len(self.resources) - len(need.amounts))))
        self._amounts = np.array(self.amounts, np.int64).reshape(len(self.needs), len(self.resources))
        self._admits = [None] * len(self._classes)
        self._rows = [None] * len(self.states)
        self._columns.clear()
        return number

    def shape(self, gpus: tuple[CandidateGpu, ...], cordoned: bool, ready: bool) -> int:
        """Return the number of a shape, adding it if it is new."""
        key = gpus, cordoned, ready
        number = self._shape_at.setdefault(key, len(self.shapes))
        if number == len(self.shapes):
            self.shapes.append(Shape(*key))
        return number

    def idle(self, shape: int) -> int:
        """Return the occupancy of a node of this shape on which nothing runs."""
        return self._occupancy(shape, self.shapes[shape].idle, self.shapes[shape].idle_mig)

    def node_class(self, what: Hashable) -> int:
        """Return the number of a class of nodes, adding it if it is new."""
        number = self._class_at.setdefault(what, len(self._classes))
        if number == len(self._classes):
            self._classes.append(what)
            self._admits.append(None)
        return number

    @property
    def class_count(self) -> int:
        """Return how many classes there are."""
        return len(self._classes)

    def state(self, node_class: int, occupancy: int) -> int:
        """Return the number of a state, adding it if it is new."""
        key = node_class, occupancy
        number = self._state_at.setdefault(key, len(self.states))
        if number == len(self.states):
            self.states.append(key)
            self._rows.append(None)
            self._ample.append(())
        return number

    def _occupancy(self, shape: int, free: tuple[int, ...], mig: tuple[int, ...]) -> int:
        key = shape, free, mig
        number = self._occupancy_at.setdefault(key, len(self.occupancies))
        if number == len(self.occupancies):
            self.occupancies.append(Occupancy(self.shapes[shape], free, mig))
            self._shape_of.append(shape)
        return number

    # -- GPUs ------------------------------------------------------------------------------

    def taken(self, occupancy: int, place: Place) -> int:
        """Return the occupancy after the GPUs of a place are taken; they may become overbooked."""
        return self._moved(occupancy, place.gpus, place.milli, place.instances)

    def returned(self, occupancy: int, place: Place) -> int:
        """Return the occupancy after the GPUs of a place are returned; not for MIG instances."""
        return self._moved(occupancy, place.gpus, -place.milli, ())

    def _moved(
        self, occupancy: int, gpus: tuple[int, ...], milli: int, instances: tuple[tuple[int, str], ...]
    ) -> int:
        key = occupancy, gpus, milli, instances
        number = self._moves.get(key)
        if number is None:
            left = self.occupancies[occupancy].without(gpus, milli, instances)
            number = self._moves[key] = self._occupancy(self._shape_of[occupancy], *left)
        return number

    def pick(self, need: int, occupancy: int) -> Pick | Reason:
        """Return the GPUs that a member gets on a node in this occupancy, or why it gets none."""
        return self._pick(self._kind_of[need], need, occupancy)

    def _pick(self, kind: int, need: int, occupancy: int) -> Pick | Reason:
        chosen = self._picks[kind].get(occupancy)
        if chosen is None:
            request = self.needs[need].request
            chosen = self._picks[kind][occupancy] = pick(request, self.occupancies[occupancy])
        return chosen

    def place(self, need: int, node: int, chosen: Pick) -> Place:
        """Return the place of a member that gets these GPUs of a node."""
        milli = self.needs[need].request.milli_per_gpu
        return Place(node, chosen.gpus, milli, chosen.instances, self.amounts[need])

    def open_milli(self, occupancy: int) -> int:
        """Return the free thousandths of all GPUs that new work may use."""
        return sum(self.occupancies[occupancy].open_milli())

    def free_milli(self, occupancy: int) -> int:
        """Return the free thousandths of all GPUs, healthy or not."""
        return sum(max(left, 0) for left in self.occupancies[occupancy].free)

    # -- counts ----------------------------------------------------------------------------

    def exclusion(self, node_class: int, need: int) -> Reason:
        """Return why nodes of a class do not admit a need; Reason.NONE if they do."""
        admission = self.needs[need].admission
        reason = self._excluded.get((node_class, admission))
        if reason is None:
            reason = self._exclusion(self._classes[node_class], admission)
            self._excluded[node_class, admission] = reason
        return reason

    def row(self, state: int) -> Counts:
        """Return how many members of each need fit on a node in this state, by its GPUs and class.

        Needs that name their nodes have 0 there: they are counted node by node.
        """
        row = self._rows[state]
        if row is None:
            node_class, occupancy = self.states[state]
            row = self._rows[state] = self._admitted(node_class) * np.array(
                [self._copies_on(kind, need, occupancy) for need, kind in enumerate(self._kind_of)], np.int64
            )
            self._ample[state] = tuple((row[:, None] * self._amounts).max(axis=0, initial=0).tolist())
        return row

    def limited(self, state: int, free: Amounts) -> Counts:
        """Return the row of a state, less what the free resources of a node do not allow."""
        row = self.row(state)
        if all(left >= enough for left, enough in zip(free, self._ample[state], strict=True)):
            return row
        free_copies = np.where(self._amounts > 0, np.array(free) // np.maximum(self._amounts, 1), UNLIMITED)
        limited: Counts = np.minimum(row, np.maximum(free_copies.min(axis=1), 0))
        return limited

    def count(self, need: int, state: int, free: Amounts) -> int:
        """Return how many members of a need fit on a node in this state, whatever nodes the need names."""
        node_class, occupancy = self.states[state]
        if self.exclusion(node_class, need) is not Reason.NONE:
            return 0
        amounts = zip(free, self.amounts[need], strict=True)
        most = min((left // ask for left, ask in amounts if ask), default=UNLIMITED)
        return max(min(self._copies_on(self._kind_of[need], need, occupancy), most), 0)

    def _admitted(self, node_class: int) -> Counts:
        admitted = self._admits[node_class]
        if admitted is None:
            admitted = self._admits[node_class] = np.array(
                [
                    wanted.nodes is None and self.exclusion(node_class, need) is Reason.NONE
                    for need, wanted in enumerate(self.needs)
                ],
                np.int64,
            )
        return admitted

    def _copies_on(self, kind: int, need: int, occupancy: int) -> int:
        number = self._copies[kind].get(occupancy)
        if number is None:
            number, current = 0, occupancy
            milli = self.needs[need].request.milli_per_gpu
            while isinstance(chosen := self._pick(kind, need, current), Pick):
                number += 1
                if number >= MOST_GPUS or not chosen.gpus:
                    number = MOST_GPUS
                    break
                current = self._moved(current, chosen.gpus, milli, chosen.instances)
            self._copies[kind][occupancy] = number
        return number

    # -- costs -----------------------------------------------------------------------------

    def column(self, need: int) -> Counts:
        """Return the cost of a need in each state; IMPOSSIBLE where it does not fit."""
        column = self._columns.get(need)
        have = 0 if column is None else len(column)
        if have < len(self.states):
            fitting = [state for state in range(have, len(self.states)) if self.row(state)[need]]
            self._learn_costs(need, [self.states[state][1] for state in fitting])
            more = np.full(len(self.states) - have, IMPOSSIBLE, np.int64)
            costs = self._costs[self._kind_of[need]]
            for state in fitting:
                more[state - have] = costs[self.states[state][1]]
            column = self._columns[need] = more if column is None else np.append(column, more)
        assert column is not None
        return column

    def cost(self, need: int, occupancy: int) -> int:
        """Return the cost of a need in an occupancy in which it fits."""
        costs = self._costs[self._kind_of[need]]
        if occupancy not in costs:
            self._learn_costs(need, [occupancy])
        return costs[occupancy]

    def _learn_costs(self, need: int, occupancies: Sequence[int]) -> None:
        """Compute the costs in these occupancies together, where they are unknown."""
        kind, request = self._kind_of[need], self.needs[need].request
        costs = self._costs[kind]
        new = [occupancy for occupancy in dict.fromkeys(occupancies) if occupancy not in costs]
        if not new:
            return
        chosen = [self._pick(kind, need, occupancy) for occupancy in new]
        after = [
            self._moved(occupancy, choice.gpus, request.milli_per_gpu, choice.instances)
            for occupancy, choice in zip(new, chosen, strict=True)
            if isinstance(choice, Pick)
        ]
        assert len(after) == len(new)
        added = self._loss(after) - self._loss(new)
        added += self._score.tie_break(request, self._columns_of(new), self._columns_of(after))
        for occupancy, choice, cost in zip(
            new, chosen, np.rint(added * UNIT).astype(np.int64).tolist(), strict=True
        ):
            assert isinstance(choice, Pick)
            costs[occupancy] = choice.quality * QUALITY + cost

    def _loss(self, occupancies: Sequence[int]) -> NDArray[np.float64]:
        new = [occupancy for occupancy in dict.fromkeys(occupancies) if occupancy not in self._losses]
        if new:
            self._losses.update(zip(new, self._score.loss(self._columns_of(new)).tolist(), strict=True))
        return np.array([self._losses[occupancy] for occupancy in occupancies])

    def _columns_of(self, occupancies: Sequence[int]) -> Nodes:
        width = max((len(self.occupancies[occupancy].free) for occupancy in occupancies), default=0)
        free = np.zeros((len(occupancies), width), np.int64)
        for row, occupancy in enumerate(occupancies):
            left = self.occupancies[occupancy].open_milli()
            free[row, : len(left)] = left
        unknown = np.full(len(occupancies), UNKNOWN)
        shape = np.array([self._shape_of[occupancy] for occupancy in occupancies], np.int32)
        return Nodes(self.shapes, shape, free, unknown, unknown)
