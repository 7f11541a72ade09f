"""Run several scenarios side by side, each in a process of its own."""

from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import Queue, get_context
from queue import Empty

from gpufleet.placement import CandidateNode
from gpufleet.simulation.engine import Simulation
from gpufleet.simulation.outcome import Outcome
from gpufleet.simulation.queues import Queues
from gpufleet.simulation.scenario import Scenario
from gpufleet.simulation.unit import Unit


@dataclass(frozen=True)
class Input:
    """What a scenario runs on."""

    nodes: list[CandidateNode]
    units: list[Unit]
    until: float
    absences: list[tuple[str, float, float]] = field(default_factory=list)
    begin: float | None = None
    """The begin of the simulated time; without it the first arrival."""
    queue_changes: Sequence[tuple[float, Queues | None]] = ()
    """The queues that apply from a time on."""


def compare(
    runs: Sequence[tuple[Scenario, Input]],
    workers: int = 1,
    progress: Callable[[str, float], None] = lambda name, share: None,
) -> list[Outcome]:
    """Return the outcome of each run, in their order; `progress` gets the name and the share that is done."""
    if workers <= 1 or len(runs) == 1:
        return [simulate(*run, lambda share, name=run[0].name: progress(name, share)) for run in runs]  # type: ignore[misc]
    context = get_context("spawn")
    shares: Queue[tuple[str, float]] = context.Queue()
    with ProcessPoolExecutor(min(workers, len(runs)), context, _report_to, (shares,)) as pool:
        futures = [pool.submit(_simulate_elsewhere, *run) for run in runs]
        while not all(future.done() for future in futures):
            with suppress(Empty):
                progress(*shares.get(timeout=0.2))
        with suppress(Empty):
            while True:
                progress(*shares.get(timeout=0.2))
        return [future.result() for future in futures]


_shares: "Queue[tuple[str, float]]"
"""In a process of the pool: where it reports how far it is."""


def _report_to(shares: "Queue[tuple[str, float]]") -> None:
    global _shares
    _shares = shares


def _simulate_elsewhere(scenario: Scenario, given: Input) -> Outcome:
    return simulate(scenario, given, lambda share: _shares.put((scenario.name, share)))


def simulate(
    scenario: Scenario, given: Input, progress: Callable[[float], None] = lambda share: None
) -> Outcome:
    """Run one scenario."""
    run = Simulation(
        given.nodes, given.units, scenario, given.until, given.absences, given.begin, given.queue_changes
    )
    return run.run(progress)
