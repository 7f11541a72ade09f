"""Measure estimates of start times: coverage and error on several queues, and the time that an estimate takes.

- generated: a simulated fleet with contention, without and with GpuQueues. When a unit has to wait, its start is
  estimated from what is known at that moment, and compared with its start in the simulation.
- demo: the recorded history of `gpufleet demo`, with its starts.
- openb: with GPUFLEET_OPENB set to the folder of the trace, its recorded starts, and its tasks on a part of its nodes
  so that they wait.
"""

import asyncio
import os
import random
import time
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from bench.estimate_judges import Judged, judge_recorded, judge_simulated
from bench.result import Result
from gpufleet.demo.objects.allocation_periods import allocation_periods
from gpufleet.demo.simulation.simulation import Simulation as DemoSimulation
from gpufleet.estimates.fleet_state import FleetState, RunningUnit, WaitingUnit
from gpufleet.estimates.run_times import Job
from gpufleet.estimates.starts import StartEstimates
from gpufleet.placement import CandidateGpu, CandidateNode
from gpufleet.placement.request import Policy, Request
from gpufleet.placement.simulation.trace import read_nodes
from gpufleet.scheduler.queues.expected_order import order_of_quotas
from gpufleet.simulation import generate
from gpufleet.simulation.scenario import DAY, Scenario
from gpufleet.simulation.timed_trace import read_timed_tasks
from gpufleet.simulation.unit import Unit

SEEDS = (1, 2, 3)
WEIGHTS = {"research": 4.0, "production": 2.0, "students": 1.0}
LAST_WEEKS = 10_000_000.0
"""When the busy last weeks of openb begin, in its seconds."""
GUARANTEES = {"research": 16.0, "production": 16.0, "students": 8.0}
"""Of 128 GPUs: gangs of 64 find room beside them."""


def measure() -> Iterable[Result]:
    yield from _large()
    for seed in SEEDS:
        yield from generated(seed, Scenario()).results(f"generated, seed {seed}")
    for name, guarantees in (("queues", {}), ("queues with guarantees", GUARANTEES)):
        scenario = Scenario(queues=order_of_quotas(WEIGHTS, {}, guarantees))
        for seed in SEEDS:
            judged = generated(seed, scenario, days=14.0, load=0.75)
            yield from judged.results(f"generated, {name}, seed {seed}")
    yield from demo().results("demo")
    folder = os.environ.get("GPUFLEET_OPENB")
    if folder:
        yield from openb_recorded(Path(folder)).results("openb, recorded starts")
        nodes, units, until = openb(Path(folder), 48)
        # The few units that wait there wait for 20 minutes, like those of the last hour: its mean is a good guess, too.
        judged = judge_simulated(nodes, units, Scenario(), until, 300.0)
        yield from judged.results("openb, 48 GPUs", most_error=None)
    else:
        yield Result("openb", 0, "", note="not measured: set GPUFLEET_OPENB to the folder of the trace")


def generated(seed: int, scenario: Scenario, nodes: int = 16, days: float = 7.0, load: float = 0.9) -> Judged:
    """Judge a generated load that fills its fleet at times."""
    requested = generate.Load(days=days, load=load, mean_hours=2.0, workloads=60)
    units = generate.units(8 * nodes, requested, seed)
    return judge_simulated(generate.nodes(nodes), units, scenario, days * DAY, 900.0)


def demo(days: float = 14.0) -> Judged:
    """Judge the recorded history of the demo fleet."""
    simulation = DemoSimulation(7, 32, 8)
    end = 1_790_000_000.0
    begin = end - days * DAY
    nodes = [
        CandidateNode(period.node, tuple(CandidateGpu(at, model=period.model) for at in range(period.gpus)))
        for period in simulation.capacities(begin, end)
    ]
    names = {node.name for node in nodes}
    units = []
    for number, period in enumerate(allocation_periods(simulation, begin, end)):
        if not period.gpus or period.node not in names or period.start <= begin:
            continue
        created = min(period.created or period.start, period.start)
        request = Request(count=period.gpus, policy=Policy.ANY, models=frozenset({period.model}))
        unit = Unit(
            number,
            request,
            created,
            max((period.end or end) - period.start, 1.0),
            priority=period.priority,
            owner=period.namespace,
            workload=period.workload_name.rstrip("0123456789-"),
            declared=period.max_runtime or None,
        )
        units.append((unit, period.start, (period.node,)))
    return judge_recorded(nodes, units)


def openb_recorded(folder: Path) -> Judged:
    """Judge the recorded starts of openb: nothing waited for GPUs there, so only its delays can be known."""
    with (folder / "nodes.csv").open() as nodes_file, (folder / "pods_default.csv").open() as pods_file:
        nodes, lines = read_nodes(nodes_file), list(pods_file)
    rows = [line.rstrip("\n").split(",") for line in lines[1:]]
    starts = [float(row[10]) if row[10] else None for row in rows if int(row[3])]
    units = [
        (replace(unit, request=replace(unit.request, models=frozenset())), start, ())
        for unit, start in zip(read_timed_tasks(lines), starts, strict=True)
        if start is not None
    ]
    return judge_recorded(nodes, units)


def openb(folder: Path, gpus: int) -> tuple[list[CandidateNode], list[Unit], float]:
    """Return a part of the nodes with so many GPUs, the tasks of the busy last weeks and their end.

    Tasks that run when these weeks begin arrive at that moment. CPU and memory are left out, so that GPUs decide.
    """
    with (folder / "nodes.csv").open() as nodes_file, (folder / "pods_default.csv").open() as pods_file:
        nodes, tasks = read_nodes(nodes_file), read_timed_tasks(pods_file)
    with_gpus = [node for node in nodes if len(node.gpus) == 8]
    units = []
    for task in tasks:
        ends, arrives = task.arrives + task.runtime, max(task.arrives, LAST_WEEKS)
        if ends > LAST_WEEKS:
            request = replace(task.request, models=frozenset(), cpu_milli=0, memory_mib=0)
            units.append(replace(task, request=request, arrives=arrives, runtime=ends - arrives))
    step = len(with_gpus) * 8 // gpus
    return with_gpus[::step][: gpus // 8], units, max(unit.arrives for unit in units)


def _large() -> Iterator[Result]:
    """Time estimates on 12,500 full nodes with 300 waiting units."""
    rng = random.Random(1)
    estimates = StartEstimates()
    jobs = [Job(f"job-{at}", f"team-{at % 20}", rng.choice([1.0, 2.0, 4.0, 8.0])) for at in range(400)]
    for job in jobs:
        for _ in range(20):
            estimates.run_times.observe(job, rng.lognormvariate(9, 1))
    running = []
    for node in range(12_500):
        left = 8
        while left:
            job = rng.choice([job for job in jobs if job.gpus <= left])
            running.append(RunningUnit(job, rng.uniform(0, 20_000), ((node, int(job.gpus) * 1000),)))
            left -= int(job.gpus)
    waiting = [
        WaitingUnit(f"w{at}", job := rng.choice(jobs), int(job.gpus) * 1000, rng.choice([1, 1, 1, 4]))
        for at in range(300)
    ]
    state = FleetState([8000] * 12_500, [0] * 12_500, ["H100"] * 12_500, running, waiting, waiting, [0.05])
    refreshed, lag = asyncio.run(_refresh(estimates, state))
    started = time.perf_counter()
    for unit in waiting:
        assert estimates.of(unit.key, 0.0) is not None
    one = (time.perf_counter() - started) / len(waiting)
    probe = WaitingUnit("what-if", Job(gpus=8.0), 8000)
    started = time.perf_counter()
    found = estimates.hypothetical(probe, 0.0)
    what_if = time.perf_counter() - started
    assert found.expected is not None
    note = f"{len(running):,} running and {len(waiting)} waiting units"
    yield Result("estimate of one waiting unit, 12,500 nodes", one * 1000, "ms", at_most=50, note=note)
    yield Result("estimate of a hypothetical unit, 12,500 nodes", what_if * 1000, "ms", at_most=50)
    yield Result("refresh of all estimates, 12,500 nodes", refreshed, "s CPU", at_most=1.5)
    yield Result("event loop during a refresh, longest lag", lag * 1000, "ms", at_most=100)
    yield from _large_queues(estimates, state)


def _large_queues(estimates: StartEstimates, state: FleetState) -> Iterator[Result]:
    """Time the same fleet with three GpuQueues, and a hypothetical unit of one of them."""
    names, half = list(WEIGHTS), {name: 4_000.0 * weight for name, weight in WEIGHTS.items()}
    queued = replace(
        state,
        running=[replace(unit, queue=names[at % 3]) for at, unit in enumerate(state.running)],
        waiting=[replace(unit, queue=names[at % 3]) for at, unit in enumerate(state.waiting)],
        order=order_of_quotas(WEIGHTS, {}, half),
    )
    started = time.process_time()
    estimates.refresh(replace(queued, waiting=queued.in_order()), 0.0)
    yield Result("refresh with GpuQueues, 12,500 nodes", time.process_time() - started, "s CPU")
    unit = WaitingUnit("what-if", Job(gpus=8.0), 8000, queue=names[0])
    started = time.perf_counter()
    assert estimates.hypothetical(unit, 0.0).expected is not None
    taken = time.perf_counter() - started
    yield Result("hypothetical unit of a GpuQueue, 12,500 nodes", taken * 1000, "ms", at_most=50)


async def _refresh(estimates: StartEstimates, state: FleetState) -> tuple[float, float]:
    """Return the CPU seconds of a refresh in a thread, and how long the event loop lagged at most."""
    started, longest = time.process_time(), 0.0
    work = asyncio.create_task(asyncio.to_thread(estimates.refresh, state, 0.0))
    while not work.done():
        before = time.perf_counter()
        await asyncio.sleep(0.005)
        longest = max(longest, time.perf_counter() - before - 0.005)
    await work
    return time.process_time() - started, longest
