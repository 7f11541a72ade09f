"""Compare placement policies: replay the same arrivals with each, and summarize the outcomes."""

import random
import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

from gpufleet.placement.demand import Demand
from gpufleet.placement.node import CandidateNode
from gpufleet.placement.request import WHOLE
from gpufleet.placement.simulation.replay import Outcome, replay
from gpufleet.placement.simulation.trace import Task, arrivals

Outcomes = dict[str, dict[int, Outcome]]
"""By policy and seed."""


def compare(
    nodes: list[CandidateNode], tasks: list[Task], policies: Sequence[str], seeds: Sequence[int], load: float
) -> Outcomes:
    """Return the outcome of each policy with each seed; all policies get the same arrivals."""
    capacity = WHOLE * sum(len(node.gpus) for node in nodes)
    demand = Demand.of_requests(task.request for task in tasks)
    outcomes: Outcomes = {policy: {} for policy in policies}
    for seed in seeds:
        order = arrivals(tasks, capacity, load, random.Random(seed))  # noqa: S311 (a simulation, no secret)
        for policy in policies:
            outcomes[policy][seed] = replay(nodes, order, policy, demand, random.Random(seed))  # noqa: S311
    return outcomes


def report(nodes: list[CandidateNode], outcomes: Outcomes, load: float) -> dict[str, Any]:
    """Return the figures of the first policy at the top, then of every policy, then of every run."""
    means = [{"policy": policy, **_mean(list(runs.values()))} for policy, runs in outcomes.items()]
    runs = [
        {"policy": policy, "seed": seed, **_mean([outcome])}
        for policy, by_seed in outcomes.items()
        for seed, outcome in by_seed.items()
    ]
    seeds = sorted({run["seed"] for run in runs})
    cluster = {"nodes": len(nodes), "gpus": sum(len(node.gpus) for node in nodes)}
    return {**cluster, "load": load, "seeds": seeds, **means[0], "policies": means, "runs": runs}


def table(outcomes: Outcomes) -> str:
    """Return the means over the seeds and the failures by size as text."""
    means = {policy: _mean(list(runs.values())) for policy, runs in outcomes.items()}
    head = f"{'POLICY':<10} {'GPU_ALLOCATION_%':>16} {'FRAGMENTED_%':>12} {'DROPPED':>8} {'DROPPED_CPU_ONLY_%':>18} {'DECISIONS/S':>11}"
    rows = [
        f"{policy:<10} {mean['gpu_allocation_percent']:>16.2f} {mean['fragmentation_percent']:>12.2f} "
        f"{mean['dropped']:>8,.1f} {mean['dropped_cpu_only_percent']:>18.2f} {mean['decisions_per_second']:>11,.0f}"
        for policy, mean in means.items()
    ]
    sizes = sorted({size for mean in means.values() for size in mean["arrived_by_size"]}, key=_size_order)
    failures = [f"{'FAILED':<10} " + " ".join(f"{size:>9}" for size in sizes)]
    for policy, mean in means.items():
        failures.append(_counts(policy, mean["failures_by_size"], sizes))
    failures.append(_counts("(arrived)", next(iter(means.values()))["arrived_by_size"], sizes))
    return "\n".join([head, *rows, "", *failures])


def _counts(name: str, by_size: dict[str, float], sizes: Sequence[str]) -> str:
    return f"{name:<10} " + " ".join(f"{by_size.get(size, 0):>9,.1f}" for size in sizes)


def _mean(outcomes: list[Outcome]) -> dict[str, Any]:
    def over(values: list[float]) -> float:
        return round(statistics.fmean(values), 4)

    def by_size(counters: list[Counter[str]]) -> dict[str, float]:
        sizes = sorted({size for counter in counters for size in counter}, key=_size_order)
        return {size: over([counter[size] for counter in counters]) for size in sizes}

    return {
        "gpu_allocation_percent": over([o.gpu_allocation_percent for o in outcomes]),
        "fragmentation_percent": over([o.fragmentation_percent for o in outcomes]),
        "dropped_cpu_only_percent": over([o.dropped_cpu_only_percent for o in outcomes]),
        "arrived": over([o.arrived for o in outcomes]),
        "dropped": over([o.arrived - o.placed for o in outcomes]),
        "arrived_by_size": by_size([o.arrived_by_size for o in outcomes]),
        "failures_by_size": by_size([o.dropped for o in outcomes]),
        "decisions_per_second": over([o.decisions_per_second for o in outcomes]),
        "seconds": over([o.seconds for o in outcomes]),
    }


def _size_order(size: str) -> tuple[int, int]:
    named = {"cpu": 0, "share": 1}
    return (named[size], 0) if size in named else (2, int(size.split()[0]))
