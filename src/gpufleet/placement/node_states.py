"""A table of all node states seen so far, and the cost of each request in each state.

A state is an occupancy with free CPU and memory. Nodes in one state form one bucket: they give
the same GPUs at the same cost. States are only ever added, so the costs of a request (a `Row`)
stay valid; costs in new states are computed together when the request is placed again. Copies
of an inventory share one table.
"""

from collections import OrderedDict
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from gpufleet.placement.node import CandidateNode
from gpufleet.placement.node_score import UNIT, UNKNOWN, Floats, Nodes, Numbers, Score
from gpufleet.placement.node_shape import Occupancy, Shape
from gpufleet.placement.pick import Pick, pick
from gpufleet.placement.reasons import Reason
from gpufleet.placement.request import Request

NEVER = 1 << 61
"""The cost of an impossible placement. Costs at or above half of it are impossible."""

UNSEEN = -(1 << 60)
"""Marks a cost that is not computed yet. Costs at or below half of it are unknown."""

QUALITY = 1 << 36  # one step of quality outweighs every cost; all steps stay below NEVER // 2
_MAX_CACHED_COSTS = 1 << 25  # over all rows, 9 bytes each
_MAX_CACHED_PICKS = 512
_Kind = TypeVar("_Kind", bound=np.generic)


class Row:
    """The cost and the reason of one request in each state; UNSEEN where not computed."""

    __slots__ = ("cost", "picks", "reason", "then")

    def __init__(self, picks: "Picks") -> None:
        self.picks = picks
        self.then: dict[int, int] = {}
        self.cost: Numbers = np.empty(0, np.int64)
        self.reason: NDArray[np.uint8] = np.empty(0, np.uint8)


class Picks:
    """The GPUs that one kind of request takes in each occupancy, as far as computed."""

    __slots__ = ("of", "quality", "reason", "take")

    def __init__(self) -> None:
        self.of: dict[int, Pick | Reason] = {}
        self.reason: NDArray[np.uint8] = np.empty(0, np.uint8)
        self.quality: Numbers = np.empty(0, np.int64)
        self.take: NDArray[np.int16] = np.empty((0, 0), np.int16)


class NodeStates:
    """The shapes, occupancies and states, and the rows of requests under one score."""

    def __init__(self, score: Score) -> None:
        self.score = score
        self.shapes: list[Shape] = []
        self.occupancies: list[Occupancy] = []
        self.size = 0
        self.occupancy: NDArray[np.int32] = np.empty(64, np.int32)
        self.cpu: Numbers = np.empty(64, np.int64)
        self.memory: Numbers = np.empty(64, np.int64)
        self._shape_at: dict[tuple[object, ...], int] = {}
        self._occupancy_at: dict[tuple[int, tuple[int, ...], tuple[int, ...]], int] = {}
        self._state_at: dict[tuple[int, int, int], int] = {}
        self._shape_of: NDArray[np.int32] = np.zeros(64, np.int32)
        self._open: Numbers = np.zeros((64, 1), np.int64)
        self._loss: Floats = np.empty(0, np.float64)
        self._picks: OrderedDict[tuple[object, ...], Picks] = OrderedDict()
        self._rows: OrderedDict[Request, Row] = OrderedDict()

    def shape_for(self, node: CandidateNode) -> int:
        """Return the number of the node's shape, adding it if new."""
        key = (node.gpus, node.cordoned, node.ready)
        number = self._shape_at.get(key)
        if number is None:
            number = self._shape_at[key] = len(self.shapes)
            self.shapes.append(Shape(*key))
            widest = len(node.gpus)
            if widest > self._open.shape[1]:
                self._open = np.pad(self._open, ((0, 0), (0, widest - self._open.shape[1])))
        return number

    def occupancy_for(self, shape: int, free: tuple[int, ...], mig: tuple[int, ...]) -> int:
        """Return the number of an occupancy, adding it if new."""
        key = (shape, free, mig)
        number = self._occupancy_at.get(key)
        if number is None:
            number = self._occupancy_at[key] = len(self.occupancies)
            occupancy = Occupancy(self.shapes[shape], free, mig)
            self.occupancies.append(occupancy)
            if number >= len(self._open):
                self._open = np.pad(self._open, ((0, len(self._open)), (0, 0)))
                self._shape_of = _doubled(self._shape_of)
            self._shape_of[number] = shape
            self._open[number, : len(free)] = occupancy.open_milli()
        return number

    def state_for(self, occupancy: int, cpu: int, memory: int) -> int:
        """Return the number of a state, adding it if new."""
        key = (occupancy, cpu, memory)
        number = self._state_at.get(key)
        if number is None:
            number = self._state_at[key] = self.size
            if number >= len(self.cpu):
                self.occupancy = _doubled(self.occupancy)
                self.cpu = _doubled(self.cpu)
                self.memory = _doubled(self.memory)
            self.occupancy[number], self.cpu[number], self.memory[number] = occupancy, cpu, memory
            self.size += 1
        return number

    def shape_of(self, state: int) -> int:
        """Return the shape of a state."""
        return int(self._shape_of[self.occupancy[state]])

    def row(self, request: Request) -> Row:
        """Return the costs of a request as far as they are computed."""
        row = self._rows.get(request)
        if row is None:
            row = self._rows[request] = Row(self._picks_of(request))
            if len(self._rows) * len(self.cpu) > _MAX_CACHED_COSTS:
                self._rows.popitem(last=False)
        self._rows.move_to_end(request)
        if len(row.cost) < self.size:
            more = len(self.cpu) - len(row.cost)
            row.cost = np.pad(row.cost, (0, more), constant_values=UNSEEN)
            row.reason = np.pad(row.reason, (0, more))
        return row

    def nodes(self, states: NDArray[np.intp]) -> Nodes:
        """Return these states as columns for scoring."""
        occupancy = self.occupancy[states]
        shape = self._shape_of[occupancy]
        return Nodes(self.shapes, shape, self._open[occupancy], self.cpu[states], self.memory[states])

    def after(self, row: Row, request: Request, state: int) -> int:
        """Return the state of a node after it takes the request."""
        then = row.then.get(state)
        if then is None:
            at = int(self.occupancy[state])
            occupancy, found = self.occupancies[at], row.picks.of[at]
            assert isinstance(found, Pick)
            left = occupancy.without(found.gpus, request.milli_per_gpu, found.instances)
            cpu, memory = (
                _left(self.cpu[state], request.cpu_milli),
                _left(self.memory[state], request.memory_mib),
            )
            then = row.then[state] = self.state_for(
                self.occupancy_for(self.shape_of(state), *left), cpu, memory
            )
        return then

    def fill(self, row: Row, request: Request, states: NDArray[np.intp]) -> None:
        """Compute the cost of a request in these states."""
        occupancy = self.occupancy[states]
        picks = row.picks
        self._pick(picks, request, occupancy)
        reason = picks.reason[occupancy]
        reason[(reason == 0) & (self.cpu[states] < request.cpu_milli)] = Reason.CPU
        reason[(reason == 0) & (self.memory[states] < request.memory_mib)] = Reason.MEMORY
        row.reason[states] = reason
        row.cost[states] = NEVER
        fits = reason == 0
        if not fits.any():
            return
        states, occupancy = states[fits], occupancy[fits]
        before = self.nodes(states)
        after = Nodes(
            self.shapes,
            before.shape,
            before.free - picks.take[occupancy, : before.free.shape[1]],
            _less(before.cpu, request.cpu_milli),
            _less(before.memory, request.memory_mib),
        )
        cost = self.score.loss(after) - self._loss_of(states) + self.score.tie_break(request, before, after)
        row.cost[states] = picks.quality[occupancy] * QUALITY + np.rint(cost * UNIT).astype(np.int64)

    def _loss_of(self, states: NDArray[np.intp]) -> Floats:
        if len(self._loss) < self.size:
            self._loss = np.pad(self._loss, (0, len(self.cpu) - len(self._loss)), constant_values=np.nan)
        new = states[np.isnan(self._loss[states])]
        if len(new):
            self._loss[new] = self.score.loss(self.nodes(new))
        known: Floats = self._loss[states]
        return known

    def _picks_of(self, request: Request) -> Picks:
        picks = self._picks.get(request.gpus)
        if picks is None:
            picks = self._picks[request.gpus] = Picks()
            if len(self._picks) > _MAX_CACHED_PICKS:
                self._picks.popitem(last=False)
        return picks

    def _pick(self, picks: Picks, request: Request, occupancies: NDArray[np.int32]) -> None:
        """Pick GPUs in the occupancies that have no pick yet."""
        rows, width = self._open.shape
        if len(picks.reason) < rows or picks.take.shape[1] < width:
            more = rows - len(picks.reason)
            picks.reason = np.pad(picks.reason, (0, more), constant_values=255)
            picks.quality = np.pad(picks.quality, (0, more))
            picks.take = np.pad(picks.take, ((0, more), (0, width - picks.take.shape[1])))
        for number in set(occupancies[picks.reason[occupancies] == 255].tolist()):
            occupancy = self.occupancies[number]
            found = picks.of[number] = pick(request, occupancy)
            if isinstance(found, Reason):
                picks.reason[number] = found
                continue
            picks.reason[number] = Reason.NONE
            picks.quality[number] = found.quality
            if not found.instances:
                picks.take[number, [occupancy.shape.position[gpu] for gpu in found.gpus]] = (
                    request.milli_per_gpu
                )


def _less(amount: Numbers, taken: int) -> Numbers:
    """Subtract; an unknown amount stays unknown."""
    return np.where(amount < UNKNOWN // 2, amount - taken, amount)


def _left(amount: np.int64, taken: int) -> int:
    return int(amount) - (taken if amount < UNKNOWN // 2 else 0)


def _doubled(column: NDArray[_Kind]) -> NDArray[_Kind]:
    return np.concatenate([column, np.empty_like(column)])
