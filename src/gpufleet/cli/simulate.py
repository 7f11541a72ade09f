"""Replay a trace of GPU tasks and compare placement policies.

Tasks are sorted by name, shuffled with the seed, and drawn again at random until they ask for
LOAD times the cluster's GPUs; then each is placed or dropped, and none ever leaves.

  gpufleet simulate --nodes examples/trace/nodes.csv --pods examples/trace/pods.csv
  gpufleet simulate --nodes nodes.csv --pods pods.csv --policy all --seed 42-51 -o json
"""

import argparse
import json
import random
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from gpufleet.errors import InvalidRequest
from gpufleet.placement.demand import Demand
from gpufleet.placement.node import CandidateNode
from gpufleet.placement.simulation.replay import POLICIES, Outcome, replay
from gpufleet.placement.request import WHOLE
from gpufleet.placement.simulation.chart import chart
from gpufleet.placement.simulation.trace import Task, arrivals, read_nodes, read_tasks
from gpufleet.runtime.settings import Settings

GROUPS: tuple[type, ...] = ()
_Line = TypeVar("_Line")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add what is not a setting."""
    parser.add_argument("--nodes", type=Path, required=True, metavar="FILE", help="list of nodes as CSV")
    parser.add_argument("--pods", type=Path, required=True, metavar="FILE", help="list of tasks as CSV")
    parser.add_argument(
        "--seed",
        type=_seeds,
        default=[42],
        metavar="N[-M]",
        help="seed of the order, or a range of them (default: 42)",
    )
    parser.add_argument(
        "--load",
        type=_load,
        default=1.3,
        metavar="X",
        help="GPUs asked for, as a multiple of the capacity (default: 1.3)",
    )
    parser.add_argument(
        "--policy",
        type=_policies,
        default=["default"],
        metavar="NAME",
        help=f"any of {', '.join(POLICIES)} (several with commas), or all (default: default)",
    )
    parser.add_argument("-o", "--output", choices=["table", "json"], default="table", help="default: table")
    parser.add_argument(
        "--plot", type=Path, metavar="FILE", help="draw allocation against load into an SVG file"
    )


def run(settings: Settings, arguments: argparse.Namespace) -> int:
    """Replay, print, draw."""
    nodes = _read(arguments.nodes, read_nodes)
    tasks = _read(arguments.pods, read_tasks)
    outcomes = simulate(nodes, tasks, arguments.policy, arguments.seed, arguments.load)
    if arguments.output == "json":
        print(json.dumps(report(nodes, outcomes, arguments.load), indent=2))
    else:
        print(table(outcomes))
    if arguments.plot:
        curves = {policy: runs[arguments.seed[0]].curve for policy, runs in outcomes.items()}
        _write(arguments.plot, chart(curves, f"{arguments.pods.name}, seed {arguments.seed[0]}"))
    return 0


def simulate(
    nodes: list[CandidateNode], tasks: list[Task], policies: Sequence[str], seeds: Sequence[int], load: float
) -> dict[str, dict[int, Outcome]]:
    """The outcome of each policy with each seed; all policies see the same arrivals."""
    capacity = WHOLE * sum(len(node.gpus) for node in nodes)
    demand = Demand.of_requests(task.request for task in tasks)
    outcomes: dict[str, dict[int, Outcome]] = {policy: {} for policy in policies}
    for seed in seeds:
        order = arrivals(tasks, capacity, load, random.Random(seed))  # noqa: S311 (a simulation, no secret)
        for policy in policies:
            outcomes[policy][seed] = replay(nodes, order, policy, demand, random.Random(seed))  # noqa: S311
    return outcomes


def report(
    nodes: list[CandidateNode], outcomes: dict[str, dict[int, Outcome]], load: float
) -> dict[str, Any]:
    """The figures for `-o json`: those of the first policy on top, then of every policy, then of every run."""
    means = [{"policy": policy, **_mean(list(runs.values()))} for policy, runs in outcomes.items()]
    runs = [
        {"policy": policy, "seed": seed, **_mean([outcome])}
        for policy, by_seed in outcomes.items()
        for seed, outcome in by_seed.items()
    ]
    seeds = sorted({run["seed"] for run in runs})
    cluster = {"nodes": len(nodes), "gpus": sum(len(node.gpus) for node in nodes)}
    return {**cluster, "load": load, "seeds": seeds, **means[0], "policies": means, "runs": runs}


def table(outcomes: dict[str, dict[int, Outcome]]) -> str:
    """The figures for people: means over the seeds, and failures by size."""
    means = {policy: _mean(list(runs.values())) for policy, runs in outcomes.items()}
    head = f"{'POLICY':<10} {'GPU_ALLOCATION_%':>16} {'FRAGMENTED_%':>12} {'DROPPED':>9} {'DROPPED_CPU_ONLY_%':>18} {'DECISIONS/S':>11}"
    rows = [
        f"{policy:<10} {mean['gpu_allocation_percent']:>16.2f} {mean['fragmentation_percent']:>12.2f} "
        f"{mean['dropped']:>9,.1f} {mean['dropped_cpu_only_percent']:>18.2f} {mean['decisions_per_second']:>11,.0f}"
        for policy, mean in means.items()
    ]
    sizes = sorted({size for mean in means.values() for size in mean["arrived_by_size"]}, key=_by_size)
    failures = [f"{'FAILED':<10} " + " ".join(f"{size:>9}" for size in sizes)]
    for policy, mean in means.items():
        failures.append(
            f"{policy:<10} " + " ".join(f"{mean['failures_by_size'].get(size, 0):>9,.1f}" for size in sizes)
        )
    arrived = next(iter(means.values()))["arrived_by_size"]
    failures.append(f"{'(arrived)':<10} " + " ".join(f"{arrived.get(size, 0):>9,.1f}" for size in sizes))
    return "\n".join([head, *rows, "", *failures])


def _mean(outcomes: list[Outcome]) -> dict[str, Any]:
    def over(values: list[float]) -> float:
        return round(statistics.fmean(values), 4)

    def by_size(counters: list[Counter[str]]) -> dict[str, float]:
        sizes = sorted({size for counter in counters for size in counter}, key=_by_size)
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


def _by_size(size: str) -> tuple[int, int]:
    named = {"cpu": 0, "share": 1}
    return (named[size], 0) if size in named else (2, int(size.split()[0]))


def _read(path: Path, parse: Callable[[Iterable[str]], list[_Line]]) -> list[_Line]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            found = parse(file)
    except OSError as error:
        raise InvalidRequest(f"can't read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"can't read {path}: it is no text in UTF-8") from error
    except InvalidRequest as error:
        raise InvalidRequest(f"{path}: {error}") from error
    if not found:
        raise InvalidRequest(f"{path} has no lines after the column names")
    return found


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InvalidRequest(f"can't write {path}: {error.strerror}") from error


def _seeds(text: str) -> list[int]:
    first, _, last = text.partition("-")
    if not first.isdecimal() or (last and not last.isdecimal()) or int(last or first) < int(first):
        raise argparse.ArgumentTypeError(f"{text!r} is no seed; it takes a number, or a range such as 42-51")
    return list(range(int(first), int(last or first) + 1))


def _load(text: str) -> float:
    try:
        load = float(text)
    except ValueError:
        load = -1.0
    if not 0 < load <= 100:
        raise argparse.ArgumentTypeError(f"{text!r} is no load; it takes a number above 0, up to 100")
    return load


def _policies(text: str) -> list[str]:
    names = list(POLICIES) if text == "all" else text.split(",")
    unknown = [name for name in names if name not in POLICIES]
    if unknown:
        raise argparse.ArgumentTypeError(f"no policy {unknown[0]!r}; there are {', '.join(POLICIES)}, all")
    return list(dict.fromkeys(names))
