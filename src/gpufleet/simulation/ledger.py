"""Make a simulation's input from recorded allocation and capacity periods.

Pods of one workload with the same request that were created and started together are a gang. A pod that ran
already at the beginning arrives then; its wait is not known. Nodes that were there for a part of the time are
absent for the rest.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from gpufleet.model.periods import AllocationPeriod, CapacityPeriod
from gpufleet.placement import CandidateGpu, CandidateNode, Exclusivity, Request
from gpufleet.placement.request import LEAST_SHARE, WHOLE
from gpufleet.simulation.unit import Unit

TOGETHER_S = 60.0
"""Seconds within which the pods of a gang are created, and started."""

RESTART_S = 600.0
"""Seconds after an interruption within which the pods are created that continue the work."""


@dataclass(frozen=True)
class Recorded:
    """What was recorded from `begin` to `end`."""

    nodes: list[CandidateNode]
    units: list[Unit]
    begin: float
    end: float
    absences: list[tuple[str, float, float]] = field(default_factory=list)
    """Nodes and the times between which they were not there."""
    mean_wait_s: float = 0.0
    """Of units, not of pods: a gang waits once."""
    allocation_percent: float = 0.0


def recorded(
    allocations: Iterable[AllocationPeriod],
    capacity: Iterable[CapacityPeriod],
    begin: float,
    end: float,
    queue_of: Callable[[str, float], str] = lambda namespace, at: namespace,
) -> Recorded:
    """Return nodes and units of the periods that overlap with `begin` to `end`.

    `queue_of` returns the queue of a namespace at a time.
    """
    nodes, absences, capacity_s = _nodes(capacity, begin, end)
    pods = _pods(allocations, begin, end)
    models = {node.gpus[0].model for node in nodes if node.gpus}
    runs = _joined(_gangs(pods))
    units = [_unit(at, run, begin, end, models) for at, run in enumerate(runs)]
    units = [replace(unit, queue=queue_of(unit.owner, unit.arrives) or unit.queue) for unit in units]
    used = sum((min(pod.end, end) - max(pod.start, begin)) * pod.gpus * pod.share for pod in pods)
    gangs = [run[0] for run in runs]
    waits = [max(pod.start for pod in gang) - gang[0].created for gang in gangs if gang[0].created >= begin]
    mean = sum(waits) / len(waits) if waits else 0.0
    return Recorded(
        nodes, units, begin, end, absences, mean, 100.0 * used / capacity_s if capacity_s else 0.0
    )


def started_units(
    allocations: Iterable[AllocationPeriod], since: float, until: float
) -> list[tuple[str, Unit]]:
    """Return the units that started in a span of time, each with the first UID of its pods."""
    pods = [pod for pod in _pods(allocations, since, until) if pod.start >= since]
    models = {pod.model for pod in pods}
    return [
        (min(pod.uid for pod in gang), _unit(at, [gang], 0.0, until, models))
        for at, gang in enumerate(_gangs(pods))
    ]


def ended_units(allocations: Iterable[AllocationPeriod], since: float, until: float) -> list[Unit]:
    """Return the units whose last pod ended in a span of time, in the order of their ends."""
    pods = _pods(allocations, since, until)
    gangs = [gang for gang in _gangs(pods) if max(pod.end for pod in gang) <= until]
    gangs.sort(key=lambda gang: max(pod.end for pod in gang))
    return [_unit(at, [gang], 0.0, until, set()) for at, gang in enumerate(gangs)]


@dataclass(frozen=True)
class _Pod:
    uid: str
    name: str
    workload: str
    workload_uid: str
    namespace: str
    gpus: int
    share: float
    model: str
    created: float
    start: float
    end: float
    priority: int
    max_runtime: float
    interrupted: bool


def _pods(periods: Iterable[AllocationPeriod], begin: float, end: float) -> list[_Pod]:
    """Join the periods of each pod; open ones end after the simulation."""
    by_pod: dict[str, list[AllocationPeriod]] = {}
    for period in periods:
        if period.gpus and (not period.end or period.end > begin) and period.start < end:
            by_pod.setdefault(period.pod_uid, []).append(period)
    found = []
    for uid, mine in by_pod.items():
        mine.sort(key=lambda period: period.start)
        first, last = mine[0], mine[-1]
        found.append(
            _Pod(
                uid,
                first.pod,
                first.workload_name,
                first.workload_uid,
                first.namespace,
                first.gpus,
                first.share,
                first.model,
                min(first.created, first.start) if first.created else first.start,
                first.start,
                last.end or end + 1.0,
                first.priority,
                first.max_runtime,
                last.interrupted,
            )
        )
    # Pods of the same second are in the order of the scheduler's queue.
    return sorted(found, key=lambda pod: (pod.created, pod.namespace, pod.name, pod.start, pod.uid))


def _gangs(pods: Sequence[_Pod]) -> list[list[_Pod]]:
    gangs: list[list[_Pod]] = []
    last: dict[tuple[object, ...], list[_Pod]] = {}
    for pod in pods:
        key = (pod.workload_uid, pod.gpus, pod.share, pod.model)
        gang = last.get(key)
        if (
            gang is not None
            and pod.created - gang[0].created <= TOGETHER_S
            and abs(pod.start - gang[0].start) <= TOGETHER_S
            and pod.created < gang[0].end  # else it replaces one that was evicted at once
        ):
            gang.append(pod)
        else:
            last[key] = [pod]
            gangs.append(last[key])
    return gangs


def _joined(gangs: Iterable[list[_Pod]]) -> list[list[list[_Pod]]]:
    """Return the runs of each unit: one that was interrupted goes on with the next equal one of its workload."""
    units: list[list[list[_Pod]]] = []
    interrupted: dict[tuple[object, ...], list[list[list[_Pod]]]] = {}
    for gang in gangs:
        first = gang[0]
        key = (first.workload_uid, first.gpus, first.share, len(gang))
        waiting = interrupted.setdefault(key, [])
        before = next((runs for runs in waiting if _follows(gang, runs[-1])), None)
        if before is None:
            units.append(before := [gang])
        else:
            waiting.remove(before)
            before.append(gang)
        if any(pod.interrupted for pod in gang):
            waiting.append(before)
    return units


def _follows(gang: Sequence[_Pod], before: Sequence[_Pod]) -> bool:
    """Return whether a gang was created while an interrupted one ended."""
    ended = max(pod.end for pod in before)
    return max(pod.start for pod in before) < gang[0].created <= ended + RESTART_S


def _unit(number: int, runs: Sequence[Sequence[_Pod]], begin: float, end: float, models: set[str]) -> Unit:
    """Return the unit of some runs: it arrives with the first and takes as long as the last one."""
    gang, first = runs[-1], runs[0][0]
    shared = first.share < 1.0
    request = Request(
        count=first.gpus,
        exclusivity=Exclusivity.SHARED if shared else Exclusivity.EXCLUSIVE,
        share_milli=max(round(first.share * WHOLE), LEAST_SHARE) if shared else WHOLE,
        models=frozenset({first.model}) & models,
    )
    # What ran before keeps its place: it arrives first and has not waited.
    started = max(gang[0].start, begin)
    return Unit(
        number,
        request,
        first.created if first.created >= begin else max(first.start, begin),
        max(max(pod.end for pod in gang) - started, 1.0),
        members=len(gang),
        priority=first.priority,
        queue=first.namespace or "default",
        owner=first.namespace,
        workload=first.workload,
        declared=first.max_runtime or None,
    )


def _nodes(
    periods: Iterable[CapacityPeriod], begin: float, end: float
) -> tuple[list[CandidateNode], list[tuple[str, float, float]], float]:
    by_node: dict[str, list[CapacityPeriod]] = {}
    for period in periods:
        if period.gpus and (not period.end or period.end > begin) and period.start < end:
            by_node.setdefault(period.node, []).append(period)
    nodes, absences, seconds = [], [], 0.0
    for name, mine in sorted(by_node.items()):
        mine.sort(key=lambda period: period.start)
        newest = mine[-1]
        gpus = tuple(CandidateGpu(at, model=newest.model) for at in range(max(p.gpus for p in mine)))
        nodes.append(CandidateNode(name, gpus, {"model": newest.model}))
        at = begin
        for period in mine:
            if period.start > at:
                absences.append((name, at, period.start))
            until = min(period.end or end, end)
            seconds += max(until - max(period.start, at), 0.0) * period.gpus
            at = max(at, until)
        if at < end:
            absences.append((name, at, end + 1.0))
    return nodes, absences, seconds
