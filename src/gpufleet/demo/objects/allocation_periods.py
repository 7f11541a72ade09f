"""Allocation periods of a simulated fleet, as the three sources record them."""

from collections.abc import Callable, Iterator

from msgspec import structs

from gpufleet.demo.objects import docker, slurm, workloads
from gpufleet.demo.simulation.hardware import Hardware
from gpufleet.demo.simulation.simulation import Simulation
from gpufleet.demo.simulation.timeline import Run
from gpufleet.model.periods import AllocationPeriod

_BY_SOURCE: dict[str, Callable[[Run, Hardware, float], Iterator[AllocationPeriod]]] = {
    "k8s": workloads.allocation_periods,
    "slurm": slurm.allocation_periods,
    "docker": docker.allocation_periods,
}


def allocation_periods(simulation: Simulation, start: float, end: float) -> Iterator[AllocationPeriod]:
    """Yield the periods between `start` and `end`, clipped to `start`. Open periods have `end` 0."""
    for run in simulation.runs(start, end):
        if run.bound >= end or run.ended <= start:
            continue
        for period in _BY_SOURCE[run.slot.role.source](run, simulation.hardware, end):
            yield structs.replace(period, start=max(start, period.start))
