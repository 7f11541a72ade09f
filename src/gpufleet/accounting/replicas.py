"""Count how many pods of a workload held GPUs at the same time in an hour, and how many GPUs."""

from collections.abc import Sequence
from typing import NamedTuple

from gpufleet.accounting.hour_allocations import HourAllocation
from gpufleet.accounting.samples import Ints
from gpufleet.model.hours import PPM
from gpufleet.model.periods import AllocationPeriod


class Replicas(NamedTuple):
    """Concurrent pods, over the time in which there were any."""

    mean: float = 0.0
    highest: int = 0
    lowest: int = 0
    highest_gpus: float = 0.0
    last_end: int = 0
    """When the last of them ended, in Unix milliseconds."""


def replicas(
    allocations: Sequence[HourAllocation],
    periods: Sequence[AllocationPeriod],
    workloads: Ints,
    count: int,
) -> list[Replicas]:
    """Return the pods of each workload 0 … count-1; `workloads` has the workload of each period."""
    by_workload: list[list[HourAllocation]] = [[] for _ in range(count)]
    for each in allocations:
        by_workload[int(workloads[each.period])].append(each)
    return [_count(found, periods) for found in by_workload]


def _count(allocations: list[HourAllocation], periods: Sequence[AllocationPeriod]) -> Replicas:
    if not allocations:
        return Replicas()
    if len({(each.start, each.end) for each in allocations}) == 1:
        pods = len({periods[each.period].pod_uid for each in allocations})
        gpus = sum(each.ppm for each in allocations) / PPM
        return Replicas(float(pods), pods, pods, gpus, allocations[0].end)
    return _sweep(allocations, periods)


def _sweep(allocations: list[HourAllocation], periods: Sequence[AllocationPeriod]) -> Replicas:
    moments: dict[int, list[tuple[int, HourAllocation]]] = {}
    for each in allocations:
        moments.setdefault(each.start, []).append((1, each))
        moments.setdefault(each.end, []).append((-1, each))
    times = sorted(moments)
    running: dict[str, int] = {}
    ppm = highest = highest_ppm = busy = pod_time = 0
    lowest: int | None = None
    for number, moment in enumerate(times):
        for sign, each in moments[moment]:
            pod = periods[each.period].pod_uid
            running[pod] = running.get(pod, 0) + sign
            if not running[pod]:
                del running[pod]
            ppm += sign * each.ppm
        if running:
            length = times[number + 1] - moment
            busy += length
            pod_time += length * len(running)
            highest, highest_ppm = max(highest, len(running)), max(highest_ppm, ppm)
            lowest = len(running) if lowest is None else min(lowest, len(running))
    return Replicas(pod_time / busy, highest, lowest or 0, highest_ppm / PPM, times[-1])
