"""The nodes and allocations of a cluster, with nodes in buckets of equal state.

`place` looks up the request's cost in each state and takes a node from the cheapest bucket, so
its run time depends on the number of different states, not of nodes. Placing allocates nothing.
`allocate` and `free` move a node between buckets and are exact inverses. Allocations are kept
when their node is removed and apply again when it returns.
"""

from collections.abc import Iterable, Mapping
from heapq import heapify, heappop, heappush

import numpy as np
from numpy.typing import NDArray

from gpufleet.errors import OperationRefused
from gpufleet.placement.allocation import Allocation
from gpufleet.placement.demand import PRIOR, Demand
from gpufleet.placement.node import CandidateNode
from gpufleet.placement.node_index import NodeIndex
from gpufleet.placement.node_score import UNIT, UNKNOWN, Score
from gpufleet.placement.node_shape import Occupancy
from gpufleet.placement.node_states import NEVER, QUALITY, UNSEEN, NodeStates, Row
from gpufleet.placement.pick import Pick
from gpufleet.placement.reasons import Reason
from gpufleet.placement.request import WHOLE, Request
from gpufleet.placement.usability import Usability
from gpufleet.placement.verdict import Fits, Refused, Verdict


class Inventory:
    """Nodes and allocations; mutable and not thread-safe."""

    def __init__(self, nodes: Iterable[CandidateNode] = (), *, score: Score | None = None) -> None:
        self._states = NodeStates(score or Usability(PRIOR))
        self._nodes: dict[str, CandidateNode] = {}
        self._state: dict[str, int] = {}
        self._held: dict[str, Allocation] = {}
        self._holders: dict[str, tuple[str, ...]] = {}
        self._population = np.zeros(64, np.int64)
        self._empty = np.full(64, NEVER, np.int64)
        self._buckets: dict[int, list[str]] = {}
        self._first: dict[int, str] = {}
        self._index: NodeIndex | None = None
        for node in nodes:
            self.put_node(node)

    # -- contents --------------------------------------------------------------------------

    @property
    def nodes(self) -> Mapping[str, CandidateNode]:
        """Return the nodes by name."""
        return self._nodes

    @property
    def allocations(self) -> Mapping[str, Allocation]:
        """Return the allocation of each holder."""
        return self._held

    @property
    def states(self) -> NodeStates:
        """Return the table that numbers the nodes' states."""
        return self._states

    def holders_on(self, node: str) -> tuple[str, ...]:
        """Return the holders of GPUs of a node."""
        return self._holders.get(node, ())

    def free_milli(self, node: str) -> dict[int, int]:
        """Return the free capacity of each GPU of a node in thousandths, healthy or not."""
        occupancy = self._states.occupancies[self._states.occupancy[self._state[node]]]
        return {gpu.id: left for gpu, left in zip(occupancy.shape.gpus, occupancy.free, strict=True)}

    def offers(self, fits: Fits) -> bool:
        """Return whether these GPUs (and MIG instances) are usable, allocated or not."""
        node = self._nodes.get(fits.node)
        usable = {gpu.id: gpu for gpu in node.gpus if gpu.usable} if node else {}
        return usable.keys() >= set(fits.gpus) and all(
            any(each.id == instance for each in usable[gpu].mig) for gpu, instance in fits.instances
        )

    def has_taken(self, fits: Fits) -> bool:
        """Return whether something other than an allocation holds one of these GPUs."""
        node = self._nodes.get(fits.node)
        return node is not None and any(gpu.taken for gpu in node.gpus if gpu.id in fits.gpus)

    def population(self) -> tuple[NDArray[np.intp], NDArray[np.int64]]:
        """Return the states that nodes are in, and the number of nodes in each."""
        live = np.flatnonzero(self._population)
        return live, self._population[live]

    def index(self) -> NodeIndex:
        """Return the index of nodes by name and label."""
        if self._index is None:
            self._index = NodeIndex(self._nodes, self._state)
        return self._index

    # -- changes ---------------------------------------------------------------------------

    def put_node(self, node: CandidateNode) -> None:
        """Add or replace a node; its allocations stay."""
        old = self._nodes.get(node.name)
        if old is None or old.labels != node.labels:
            self._index = None
        states = self._states
        shape_number = states.shape_for(node)
        shape = states.shapes[shape_number]
        left = shape.idle, shape.idle_mig
        cpu = UNKNOWN if node.cpu_milli is None else node.cpu_milli
        memory = UNKNOWN if node.memory_mib is None else node.memory_mib
        for holder in self._holders.get(node.name, ()):
            held = self._held[holder]
            left = Occupancy(shape, *left).without(held.gpus, held.milli, held.instances)
            cpu = cpu if node.cpu_milli is None else cpu - held.cpu_milli
            memory = memory if node.memory_mib is None else memory - held.memory_mib
        self._nodes[node.name] = node
        occupancy = states.occupancy_for(shape_number, *left)
        self._move(node.name, states.state_for(occupancy, cpu, memory))

    def remove_node(self, name: str) -> None:
        """Remove a node. An unknown one is ignored."""
        if self._nodes.pop(name, None) is not None:
            self._leave(self._state.pop(name), name)
            self._index = None

    def allocate(self, holder: str, what: Fits | Allocation, *, observed: bool = False) -> Allocation:
        """Allocate a placement to `holder`. Repeating the same allocation changes nothing.

        `observed` allocations were made elsewhere and are recorded even beyond a GPU's capacity.
        """
        allocation = what if isinstance(what, Allocation) else Allocation.of(holder, what)
        have = self._held.get(holder)
        if have is not None:
            if have == allocation:
                return have
            raise OperationRefused(
                f"{holder} already holds GPUs {list(have.gpus)} of {have.node}; free them first"
            )
        if allocation.node in self._state:
            self._check(allocation, observed)
            self._apply(allocation, 1)
        self._held[holder] = allocation
        self._holders[allocation.node] = (*self._holders.get(allocation.node, ()), holder)
        return allocation

    def free(self, holder: str) -> Allocation | None:
        """Free the allocation of `holder` and return it; None if it has none."""
        allocation = self._held.pop(holder, None)
        if allocation is None:
            return None
        left = tuple(other for other in self._holders[allocation.node] if other != holder)
        if left:
            self._holders[allocation.node] = left
        else:
            del self._holders[allocation.node]
        if allocation.node in self._state:
            if allocation.instances:
                self.put_node(self._nodes[allocation.node])
            else:
                self._apply(allocation, -1)
        return allocation

    def learn(self, demand: Demand) -> None:
        """Use another demand for scoring, if the score depends on demand."""
        score = self._states.score
        if isinstance(score, Usability) and score.demand != demand:
            self._rebuild(Usability(demand, score.weights, score.name))

    def copy(self) -> "Inventory":
        """Return an independent copy; immutable parts are shared."""
        twin = Inventory.__new__(Inventory)
        twin._states = self._states
        twin._nodes = self._nodes.copy()
        twin._state = self._state.copy()
        twin._held = self._held.copy()
        twin._holders = self._holders.copy()
        twin._population = self._population.copy()
        twin._empty = self._empty.copy()
        twin._buckets = {state: names.copy() for state, names in self._buckets.items()}
        twin._first = self._first.copy()
        twin._index = self._index.copy() if self._index else None
        return twin

    # -- placement -------------------------------------------------------------------------

    def place(self, request: Request, among: Iterable[str] | NDArray[np.intp] | None = None) -> Verdict:
        """Return the best node and GPUs, or why there are none; `among` limits it to names or index positions."""
        if self._states.size > 4096 + 4 * len(self._nodes):
            self._rebuild(self._states.score)
        row = self._states.row(request)
        if among is None and not request.match_labels:
            return self._place_anywhere(request, row)
        return self._place_among(request, row, among)

    def take(self, request: Request, among: Iterable[str] | NDArray[np.intp] | None = None) -> Verdict:
        """Place and consume the GPUs without a holder: a faster `allocate` for trials on a copy."""
        verdict = self.place(request, among)
        if isinstance(verdict, Fits):
            states = self._states
            self._move(verdict.node, states.after(states.row(request), request, self._state[verdict.node]))
        return verdict

    def take_alike(self, request: Request, number: int) -> tuple[list[Fits], Refused | None]:
        """Take the same request `number` times, or until it is refused.

        A placement changes the first node of only two buckets, so the buckets are kept in a heap.
        """
        found: list[Fits] = []
        if not number or isinstance(self.place(request), Refused):
            return found, self._refusal(request) if number else None
        states, row = self._states, self._states.row(request)
        live = self._population.nonzero()[0]
        heap = [self._offer(row, state) for state in live[row.cost[live] < NEVER // 2].tolist()]
        heapify(heap)
        while heap and len(found) < number:
            cost, name, state = heap[0]
            if self._first.get(state) != name:
                heappop(heap)
                continue
            found.append(self._fits(request, row, name, state, cost))
            then = states.after(row, request, state)
            self._move(name, then)
            if then >= len(row.cost):
                row = states.row(request)
            if row.cost[then] <= UNSEEN // 2:
                states.fill(row, request, np.array([then], np.intp))
            for changed in (state, then):
                if changed in self._first and row.cost[changed] < NEVER // 2:
                    heappush(heap, self._offer(row, changed))
        return found, None if len(found) == number else self._refusal(request)

    def _offer(self, row: Row, state: int) -> tuple[int, str, int]:
        """Return a bucket with its first node as a sort key."""
        return int(row.cost[state]), self._first[state], state

    def _refusal(self, request: Request) -> Refused:
        verdict = self.place(request)
        assert isinstance(verdict, Refused)
        return verdict

    def feasible(self, request: Request) -> list[str]:
        """Return every node that could take the request, sorted by name."""
        row, index = self._states.row(request), self.index()
        self._compute_costs(request, row, index.state)
        fits = (row.reason[index.state] == 0) & index.matching(request.match_labels)
        return [index.names[at] for at in np.flatnonzero(fits).tolist()]

    def _place_anywhere(self, request: Request, row: Row) -> Verdict:
        size = self._states.size
        if size > len(self._empty):
            self._grow(size)
        total = row.cost[:size] + self._empty[:size]
        if not size or (best := total[state := int(total.argmin())]) >= NEVER // 2:
            index = self.index()
            return refused(request, index.names, row.reason[index.state])
        if best <= UNSEEN // 2:
            self._states.fill(row, request, np.flatnonzero(total <= UNSEEN // 2))
            return self._place_anywhere(request, row)
        ties = (total == best).nonzero()[0]
        if len(ties) > 1:
            state = self._state[min(map(self._first.__getitem__, ties.tolist()))]
        return self._fits(request, row, self._first[state], state, int(best))

    def _place_among(
        self, request: Request, row: Row, among: Iterable[str] | NDArray[np.intp] | None
    ) -> Verdict:
        index = self.index()
        unknown: tuple[str, ...] = ()
        if isinstance(among, np.ndarray):
            places = among
        elif among is None:
            places = np.arange(len(index.names))
        else:
            places, unknown = index.places(among)
        if len(places) == len(index.names) and not request.match_labels and not unknown:
            return self._place_anywhere(request, row)
        matching = index.matching(request.match_labels)[places]
        self._compute_costs(request, row, index.state[places[matching]])
        costs = np.where(matching, row.cost[index.state[places]], NEVER)
        if len(costs) and (best := costs[at := int(costs.argmin())]) < NEVER // 2:
            place = int(places[at])
            return self._fits(request, row, index.names[place], int(index.state[place]), int(best))
        codes = np.where(matching, row.reason[index.state[places]], np.uint8(Reason.SELECTOR))
        names = tuple(map(index.names.__getitem__, places.tolist())) + unknown
        return refused(
            request, names, np.concatenate([codes, np.full(len(unknown), Reason.UNKNOWN_NODE, np.uint8)])
        )

    def _compute_costs(self, request: Request, row: Row, states: NDArray[np.intp]) -> None:
        """Compute the costs in these states where they are unknown."""
        new = states[row.cost[states] <= UNSEEN // 2]
        if len(new):
            self._states.fill(row, request, np.unique(new))

    def _fits(self, request: Request, row: Row, name: str, state: int, cost: int) -> Fits:
        found = row.picks.of[int(self._states.occupancy[state])]
        assert isinstance(found, Pick)
        lost = max(cost - found.quality * QUALITY, 0) / (UNIT * WHOLE)
        score = 1.0 / (1.0 + lost + (found.quality > 0))
        return Fits(request, name, found.gpus, found.instances, score)

    def _check(self, allocation: Allocation, observed: bool) -> None:
        occupancy = self._states.occupancies[self._states.occupancy[self._state[allocation.node]]]
        short = occupancy.shortage(allocation.gpus, allocation.milli, allocation.instances)
        if short and not observed:
            raise OperationRefused(
                f"{allocation.holder} can't have GPU {short[0]} of {allocation.node}: {short[1]}"
            )

    # -- buckets ---------------------------------------------------------------------------

    def _apply(self, allocation: Allocation, sign: int) -> None:
        states, state = self._states, self._state[allocation.node]
        occupancy = states.occupancies[states.occupancy[state]]
        left = occupancy.without(allocation.gpus, sign * allocation.milli, allocation.instances)
        cpu, memory = int(states.cpu[state]), int(states.memory[state])
        if cpu < UNKNOWN // 2:
            cpu -= sign * allocation.cpu_milli
        if memory < UNKNOWN // 2:
            memory -= sign * allocation.memory_mib
        number = states.occupancy_for(states.shape_of(state), *left)
        self._move(allocation.node, states.state_for(number, cpu, memory))

    def _move(self, name: str, state: int) -> None:
        old = self._state.get(name)
        if old == state:
            return
        if state >= len(self._empty):
            self._grow(state + 1)
        self._state[name] = state
        if old is not None:
            self._leave(old, name)
        self._population[state] += 1
        bucket = self._buckets.get(state)
        if bucket is None:
            self._buckets[state] = [name]
            self._empty[state] = 0
            self._first[state] = name
        else:
            heappush(bucket, name)
            if name < self._first[state]:
                self._first[state] = name
            if len(bucket) > 2 * self._population[state] + 16:
                bucket[:] = {other for other in bucket if self._state.get(other) == state}
                heapify(bucket)
        if self._index is not None:
            self._index.moved(name, state)

    def _leave(self, state: int, name: str) -> None:
        """Remove a node from a bucket. Stale names in its heap are dropped when they reach the top."""
        self._population[state] -= 1
        if not self._population[state]:
            self._empty[state] = NEVER
            del self._buckets[state], self._first[state]
        elif self._first[state] == name:
            bucket = self._buckets[state]
            while self._state.get(bucket[0]) != state:
                heappop(bucket)
            self._first[state] = bucket[0]

    def _grow(self, size: int) -> None:
        more = max(size, 2 * len(self._empty)) - len(self._empty)
        self._population = np.pad(self._population, (0, more))
        self._empty = np.pad(self._empty, (0, more), constant_values=NEVER)

    def _rebuild(self, score: Score) -> None:
        """Start a new table with the current states, so that old ones do not accumulate."""
        fresh, old = Inventory(score=score), self._states
        fresh._nodes, fresh._held, fresh._holders = self._nodes, self._held, self._holders
        for name, state in self._state.items():
            occupancy = old.occupancies[old.occupancy[state]]
            number = fresh._states.occupancy_for(
                fresh._states.shape_for(self._nodes[name]), occupancy.free, occupancy.mig
            )
            fresh._move(name, fresh._states.state_for(number, int(old.cpu[state]), int(old.memory[state])))
        self.__dict__.update(fresh.__dict__)


def refused(request: Request, names: tuple[str, ...], codes: NDArray[np.uint8]) -> Refused:
    """Return the refusal with the reason of each node."""
    numbers = np.bincount(codes, minlength=len(Reason)).tolist()
    return Refused(request, {reason: numbers[reason] for reason in Reason if numbers[reason]}, names, codes)
