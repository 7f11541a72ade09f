"""Run several scenarios side by side, each in a process of its own."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from multiprocessing import get_context

from gpufleet.placement import CandidateNode
from gpufleet.simulation.engine import Simulation
from gpufleet.simulation.outcome import Outcome
from gpufleet.simulation.scenario import Scenario
from gpufleet.simulation.unit import Unit


@dataclass(frozen=True)
class Input:
    """What a scenario runs on."""

    nodes: list[CandidateNode]
    units: list[Unit]
    until: float
    absences: list[tuple[str, float, float]] = field(default_factory=list)


def compare(
    runs: Sequence[tuple[Scenario, Input]],
    workers: int = 1,
    progress: Callable[[str, float], None] = lambda name, share: None,
) -> list[Outcome]:
    """Return the outcome of each run, in their order; `progress` gets the name and the share that is done."""
    if workers <= 1 or len(runs) == 1:
        return [simulate(*run, lambda share, name=run[0].name: progress(name, share)) for run in runs]  # type: ignore[misc]
    with ProcessPoolExecutor(min(workers, len(runs)), mp_context=get_context("spawn")) as pool:
        futures: dict[Future[Outcome], str] = {pool.submit(simulate, *run): run[0].name for run in runs}
        for done in as_completed(futures):
            progress(futures[done], 1.0)
        return [future.result() for future in futures]


def simulate(
    scenario: Scenario, given: Input, progress: Callable[[float], None] = lambda share: None
) -> Outcome:
    """Run one scenario."""
    return Simulation(given.nodes, given.units, scenario, given.until, given.absences).run(progress)
