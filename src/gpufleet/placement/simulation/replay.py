"""Replay a trace against one policy and measure the unused capacity.

The protocol of "Beware of Fragmentation" (USENIX ATC 2023): tasks arrive in the given order,
each is placed or dropped, and none ever ends.
"""

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from gpufleet.placement.demand import PRIOR, Demand, DemandMemory
from gpufleet.placement.inventory import Inventory
from gpufleet.placement.node import CandidateNode
from gpufleet.placement.node_score import Score
from gpufleet.placement.request import WHOLE, Request
from gpufleet.placement.simulation.baseline_policies import BestFit, Packing
from gpufleet.placement.usability import Usability, fgd
from gpufleet.placement.verdict import Fits

POLICIES: dict[str, Callable[[Demand], Score]] = {
    "default": Usability,
    "learned": lambda demand: Usability(PRIOR, name="learned"),
    "fgd": fgd,
    "best-fit": lambda demand: BestFit(),
    "packing": lambda demand: Packing(),
    "random": lambda demand: BestFit(name="random"),
}
"""Policies by name; each makes its score from the demand.

`learned` is the default policy without the trace's demand: it starts with the prior and learns
from arrivals. `random` draws any node that fits.
"""

LEARN_EVERY = 250
LEARN_HALF_LIFE = 20_000.0
"""Interval and half-life of the learned demand, in arrivals."""


@dataclass
class Outcome:
    """The result of one replay."""

    policy: str
    capacity_milli: int
    arrived: int = 0
    placed: int = 0
    allocated_milli: int = 0
    requested_milli: int = 0
    seconds: float = 0.0
    fragmented_milli: float = 0.0
    dropped: Counter[str] = field(default_factory=Counter)
    arrived_by_size: Counter[str] = field(default_factory=Counter)
    curve: list[tuple[float, float]] = field(default_factory=list)

    @property
    def gpu_allocation_percent(self) -> float:
        """Return the allocated GPU capacity at the end."""
        return 100.0 * self.allocated_milli / self.capacity_milli if self.capacity_milli else 0.0

    @property
    def fragmentation_percent(self) -> float:
        """Return the free GPU capacity that the next task is not expected to use, of all capacity."""
        return 100.0 * self.fragmented_milli / self.capacity_milli if self.capacity_milli else 0.0

    @property
    def dropped_cpu_only_percent(self) -> float:
        """Return the dropped share of tasks without GPU."""
        arrived = self.arrived_by_size["cpu"]
        return 100.0 * self.dropped["cpu"] / arrived if arrived else 0.0

    @property
    def decisions_per_second(self) -> float:
        """Return the tasks placed or dropped per second of the replay."""
        return self.arrived / self.seconds if self.seconds else 0.0


def replay(
    nodes: Sequence[CandidateNode], tasks: Iterable[Request], policy: str, demand: Demand, rng: random.Random
) -> Outcome:
    """Place the tasks one by one on empty nodes and return the outcome."""
    inventory = Inventory(nodes, score=POLICIES[policy](demand))
    outcome = Outcome(policy, WHOLE * sum(len(node.gpus) for node in nodes))
    memory = DemandMemory(half_life_s=LEARN_HALF_LIFE) if policy == "learned" else None
    started = time.perf_counter()
    for request in tasks:
        if memory is not None:
            memory.observe(request, outcome.arrived)
            early = outcome.arrived & (outcome.arrived - 1) == 0  # at 1, 2, 4, 8, …
            if early or outcome.arrived % LEARN_EVERY == 0:
                inventory.learn(memory.demand(outcome.arrived))
        _arrive(inventory, request, outcome, rng if policy == "random" else None)
    outcome.seconds = time.perf_counter() - started
    live, population = inventory.population()
    outcome.fragmented_milli = float(fgd(demand).loss(inventory.states.nodes(live)) @ population)
    return outcome


def size_of(request: Request) -> str:
    """Return the group of a task in the failure table: cpu, share, or its number of GPUs."""
    if not request.count:
        return "cpu"
    return "share" if request.milli_per_gpu < WHOLE else f"{request.count} gpu"


def _arrive(inventory: Inventory, request: Request, outcome: Outcome, rng: random.Random | None) -> None:
    size = size_of(request)
    outcome.arrived += 1
    outcome.arrived_by_size[size] += 1
    outcome.requested_milli += request.gpu_milli
    among = None
    if rng is not None:
        feasible = inventory.feasible(request)
        among = [rng.choice(feasible)] if feasible else None
    verdict = inventory.place(request, among)
    if isinstance(verdict, Fits):
        inventory.allocate(f"task-{outcome.arrived}", verdict)
        outcome.placed += 1
        outcome.allocated_milli += request.gpu_milli
    else:
        outcome.dropped[size] += 1
    if outcome.arrived % 100 == 0 and outcome.capacity_milli:
        requested = 100.0 * outcome.requested_milli / outcome.capacity_milli
        outcome.curve.append((requested, outcome.gpu_allocation_percent))
