"""How many pods of a workload held GPUs at once over an hour, and how many GPUs at the most."""

from collections.abc import Sequence
from typing import NamedTuple

from gpufleet.accounting.allocation_periods import HourAllocation
from gpufleet.accounting.samples import Ints
from gpufleet.model.hours import PPM
from gpufleet.model.periods import AllocationPeriod


class Replicas(NamedTuple):
    """Pods at once, over the time in which there were any."""

    mean: float = 0.0
    most: int = 0
    fewest: int = 0
    most_gpus: float = 0.0
    last_end: int = 0
    """When the last of them ended, in Unix milliseconds."""


def replicas(
    stints: Sequence[HourAllocation], holdings: Sequence[AllocationPeriod], workloads: Ints, count: int
) -> list[Replicas]:
    """Count the pods of each workload 0 … count-1."""
    of_workload: list[list[HourAllocation]] = [[] for _ in range(count)]
    for stint in stints:
        of_workload[int(workloads[stint.holder])].append(stint)
    return [_count(found, holdings) for found in of_workload]


def _count(stints: list[HourAllocation], holdings: Sequence[AllocationPeriod]) -> Replicas:
    if not stints:
        return Replicas()
    if len({(stint.start, stint.end) for stint in stints}) == 1:
        pods = len({holdings[stint.holder].pod_uid for stint in stints})
        gpus = sum(stint.ppm for stint in stints) / PPM
        return Replicas(float(pods), pods, pods, gpus, stints[0].end)
    return _sweep(stints, holdings)


def _sweep(stints: list[HourAllocation], holdings: Sequence[AllocationPeriod]) -> Replicas:
    moments: dict[int, list[tuple[int, HourAllocation]]] = {}
    for stint in stints:
        moments.setdefault(stint.start, []).append((1, stint))
        moments.setdefault(stint.end, []).append((-1, stint))
    times = sorted(moments)
    running: dict[str, int] = {}
    ppm = most = most_ppm = busy = pod_time = 0
    fewest: int | None = None
    for number, moment in enumerate(times):
        for sign, stint in moments[moment]:
            pod = holdings[stint.holder].pod_uid
            running[pod] = running.get(pod, 0) + sign
            if not running[pod]:
                del running[pod]
            ppm += sign * stint.ppm
        if running:
            length = times[number + 1] - moment
            busy += length
            pod_time += length * len(running)
            most, most_ppm = max(most, len(running)), max(most_ppm, ppm)
            fewest = len(running) if fewest is None else min(fewest, len(running))
    return Replicas(pod_time / busy, most, fewest or 0, most_ppm / PPM, times[-1])
