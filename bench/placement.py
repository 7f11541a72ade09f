"""Measure placement: single decisions, gangs and candidate lists on 12,500 nodes, and the openb trace.

The trace is not part of the project. With GPUFLEET_OPENB set to its folder (nodes.csv and
pods_default.csv) it is replayed, as published and with the variations of its authors:
more shared tasks, more multi-GPU tasks, more tasks without a GPU, more tasks bound to a model.
"""

import os
import random
import statistics
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from bench.result import Result
from gpufleet.placement import (
    CandidateGpu,
    CandidateNode,
    Demand,
    Fits,
    GangFits,
    Inventory,
    Request,
    place_gang,
)
from gpufleet.placement.simulation.replay import Outcome, replay
from gpufleet.placement.simulation.trace import Task, arrivals, read_nodes, read_tasks

NODES = 12_500
SEEDS = range(42, 52)


def measure() -> Iterable[Result]:
    yield from _decisions("empty cluster", _fleet())
    yield from _decisions("in use, CPU and memory known", _used_fleet())
    folder = os.environ.get("GPUFLEET_OPENB")
    if not folder:
        yield Result(
            "openb replay", 0, "", note="not measured: set GPUFLEET_OPENB to the folder of the trace"
        )
        return
    yield from _openb(Path(folder))


def _fleet(cpu_milli: int | None = None) -> Inventory:
    gpus = tuple(CandidateGpu(at, island="nvlink", bandwidth_gbps=600) for at in range(8))
    return Inventory(
        CandidateNode(
            f"node-{at:05}", gpus, {"rack": f"rack-{at // 20}"}, cpu_milli=cpu_milli, memory_mib=cpu_milli
        )
        for at in range(NODES)
    )


def _used_fleet() -> Inventory:
    """Return a half-full cluster after many allocations and releases: well over a thousand node states."""
    cluster, rng = _fleet(128_000), random.Random(1)
    for number in range(30_000):
        request = Request(
            count=rng.choice([1, 1, 1, 2, 4, 8]), cpu_milli=rng.choice([1000, 2000, 4000, 8000])
        )
        verdict = cluster.place(request)
        assert isinstance(verdict, Fits)
        cluster.allocate(f"old-{number}", verdict)
    for number in rng.sample(range(30_000), 12_000):
        cluster.free(f"old-{number}")
    return cluster


def _decisions(what: str, cluster: Inventory) -> Iterator[Result]:
    one, four = Request(cpu_milli=4000), Request(count=4, cpu_milli=4000)
    cluster.place(one)

    def place_and_allocate() -> None:
        for number in range(2000):
            verdict = cluster.place(one)
            assert isinstance(verdict, Fits)
            cluster.allocate(f"pod-{number}", verdict)
        for number in range(2000):
            cluster.free(f"pod-{number}")

    def gang() -> None:
        assert isinstance(place_gang(cluster, [four] * 1000), GangFits)

    def in_rack() -> None:
        assert isinstance(place_gang(cluster, [four] * 4, prefer_label="rack"), GangFits)

    names = [f"node-{at:05}" for at in range(5000)]
    states = len(cluster.population()[0])
    seconds = _best(place_and_allocate)
    yield Result(
        f"place, allocate and free, {what}", 2000 / seconds, "1/s", at_least=5000, note=f"{states} states"
    )
    yield Result(f"gang of 1,000 × 4 GPUs, {what}", 1e3 * _best(gang), "ms", at_most=50)
    yield Result(f"gang of 4 in one rack of 625, {what}", 1e3 * _best(in_rack), "ms")
    yield Result(
        f"one of 5,000 candidates by name, {what}", 1e3 * _best(lambda: cluster.place(one, list(names))), "ms"
    )
    nine = Request(count=9)
    yield Result(f"refusal with all reasons, {what}", 1e3 * _best(lambda: cluster.place(nine)), "ms")


def _best(work: Callable[[], object], times: int = 7) -> float:
    """Return the shortest of some runs: other load only adds time."""
    work()
    took = []
    for _ in range(times):
        started = time.perf_counter()
        work()
        took.append(time.perf_counter() - started)
    return min(took)


def _openb(folder: Path) -> Iterator[Result]:
    with (folder / "nodes.csv").open() as nodes_file, (folder / "pods_default.csv").open() as pods_file:
        nodes, tasks = read_nodes(nodes_file), read_tasks(pods_file)
    ours = [_replay(nodes, tasks, "default", seed) for seed in SEEDS]
    fgd = [_replay(nodes, tasks, "fgd", seed) for seed in SEEDS]
    yield Result(
        "openb replay", min(o.seconds for o in ours), "s", at_most=20, note=f"{ours[0].arrived:,} tasks"
    )
    yield _allocation("openb default, seeds 42–51", ours, fgd, at_least=95.9)
    for name, mix in MIXES.items():
        mixed = mix(nodes, tasks, random.Random(7))
        ours, fgd = ([_replay(nodes, mixed, policy, 42)] for policy in ("default", "fgd"))
        yield _allocation(f"openb {name}, seed 42", ours, fgd)


def _replay(nodes: list[CandidateNode], tasks: list[Task], policy: str, seed: int) -> Outcome:
    order = arrivals(tasks, 1000 * sum(len(node.gpus) for node in nodes), 1.3, random.Random(seed))
    return replay(
        nodes, order, policy, Demand.of_requests(task.request for task in tasks), random.Random(seed)
    )


def _allocation(name: str, ours: list[Outcome], fgd: list[Outcome], at_least: float | None = None) -> Result:
    """Return the GPU allocation; the budget is `at_least` or the result of FGD on the same arrivals."""
    mean, theirs = (statistics.fmean(o.gpu_allocation_percent for o in runs) for runs in (ours, fgd))
    dropped, their_dropped = (
        statistics.fmean(o.dropped_cpu_only_percent for o in runs) for runs in (ours, fgd)
    )
    note = f"FGD {theirs:.2f}; CPU-only tasks dropped {dropped:.1f}% (FGD {their_dropped:.1f}%)"
    return Result(
        name, mean, "% GPUs", at_least=round(theirs, 2) if at_least is None else at_least, note=note
    )


def _with_share(
    tasks: list[Task], share: float, chosen: Callable[[Request], bool], rng: random.Random
) -> list[Task]:
    """Return tasks with the same total GPU demand, a `share` of it of the chosen kind; keep tasks without a GPU."""
    total = sum(task.request.gpu_milli for task in tasks)
    mixed = [task.request for task in tasks if not task.request.count]
    for is_chosen, milli in ((True, total * share), (False, total * (1 - share))):
        pool = [task.request for task in tasks if task.request.count and chosen(task.request) is is_chosen]
        while milli > 0:
            mixed.append(rng.choice(pool))
            milli -= mixed[-1].gpu_milli
    return [Task(f"task-{at:06}", request) for at, request in enumerate(mixed)]


def _more_without_gpu(nodes: list[CandidateNode], tasks: list[Task], rng: random.Random) -> list[Task]:
    more = [task for task in tasks if not task.request.count]
    return [*tasks, *(Task(f"again-{task.name}", task.request) for task in more)]


def _bound_to_models(nodes: list[CandidateNode], tasks: list[Task], rng: random.Random) -> list[Task]:
    """Restrict a third of the GPU tasks to one model, chosen by its number of GPUs."""
    bound = []
    for task in tasks:
        request = task.request
        if request.count and rng.random() < 1 / 3:
            node = rng.choice([node for node in nodes if len(node.gpus) >= request.count])
            request = replace(request, models=frozenset({node.gpus[0].model}))
        bound.append(Task(task.name, request))
    return bound


MIXES: dict[str, Callable[[list[CandidateNode], list[Task], random.Random], list[Task]]] = {
    "60% shared": lambda nodes, tasks, rng: _with_share(tasks, 0.6, lambda r: r.milli_per_gpu < 1000, rng),
    "all shared": lambda nodes, tasks, rng: _with_share(tasks, 1.0, lambda r: r.milli_per_gpu < 1000, rng),
    "20% multi-GPU": lambda nodes, tasks, rng: _with_share(tasks, 0.2, lambda r: r.count > 1, rng),
    "50% multi-GPU": lambda nodes, tasks, rng: _with_share(tasks, 0.5, lambda r: r.count > 1, rng),
    "twice the CPU-only tasks": _more_without_gpu,
    "33% bound to a model": _bound_to_models,
}
