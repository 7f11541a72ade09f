"""Replay a trace of GPU tasks, or simulate a fleet over time, and compare policies, rules and fleets.

With --pods, tasks are sorted by name, shuffled with the seed, and drawn again at random until they request LOAD
times the GPUs of the cluster. Each is placed or dropped, and none ends. With --trace, --from-ledger or --generate,
units arrive, wait, run and end at their times.

  gpufleet simulate --nodes examples/trace/nodes.csv --pods examples/trace/pods.csv
  gpufleet simulate --nodes nodes.csv --pods pods.csv --policy all --seed 42-51 -o json
  gpufleet simulate --nodes nodes.csv --trace pods.csv --scale-nodes 0.01,0.012 --rules all --html out.html
  gpufleet simulate --from-ledger --since 30d --scale-nodes 0.9,1,1.1 --price H100=2.5
"""

import argparse
import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

from gpufleet.cli.simulate_over_time import add_arguments, check_effect, is_over_time, run_over_time
from gpufleet.errors import InvalidRequest, SettingsError
from gpufleet.placement.simulation.chart import chart
from gpufleet.placement.simulation.compare import compare, report, table
from gpufleet.placement.simulation.replay import POLICIES
from gpufleet.placement.simulation.trace import read_nodes, read_tasks
from gpufleet.runtime.settings import Settings, StoreSettings

GROUPS: tuple[type, ...] = (StoreSettings,)
_Line = TypeVar("_Line")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that are not settings."""
    parser.add_argument("--nodes", type=Path, metavar="FILE", help="CSV file of nodes")
    parser.add_argument("--pods", type=Path, metavar="FILE", help="CSV file of tasks")
    parser.add_argument(
        "--seed",
        type=_seeds,
        default=[42],
        metavar="N[-M]",
        help="seed of the order, or a range of seeds (default: 42)",
    )
    parser.add_argument(
        "--load",
        type=_load,
        default=1.3,
        metavar="X",
        help="requested GPUs as a multiple of the capacity (default: 1.3)",
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
    add_arguments(parser)
    parser.set_defaults(unset=parser.parse_args([]))


def run(settings: Settings, arguments: argparse.Namespace) -> int:
    """Replay, print and draw."""
    check_effect(arguments, vars(arguments.unset))
    if is_over_time(arguments):
        known = read_csv(arguments.nodes, read_nodes) if arguments.nodes else None
        return run_over_time(settings, arguments, known)
    if not arguments.nodes or not arguments.pods:
        raise SettingsError("give --nodes and --pods, or one of --trace, --from-ledger and --generate")
    nodes = read_csv(arguments.nodes, read_nodes)
    tasks = read_csv(arguments.pods, read_tasks)
    outcomes = compare(nodes, tasks, arguments.policy, arguments.seed, arguments.load)
    if arguments.output == "json":
        print(json.dumps(report(nodes, outcomes, arguments.load), indent=2))
    else:
        print(table(outcomes))
    if arguments.plot:
        curves = {policy: runs[arguments.seed[0]].curve for policy, runs in outcomes.items()}
        _write(arguments.plot, chart(curves, f"{arguments.pods.name}, seed {arguments.seed[0]}"))
    return 0


def read_csv(path: Path, parse: Callable[[Iterable[str]], list[_Line]]) -> list[_Line]:
    """Read a file of lines with column names; raise InvalidRequest with its name if that fails."""
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            found = parse(file)
    except OSError as error:
        raise InvalidRequest(f"can't read {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InvalidRequest(f"can't read {path}: it is not UTF-8 text") from error
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
        raise argparse.ArgumentTypeError(f"{text!r} is not a seed; give a number or a range such as 42-51")
    return list(range(int(first), int(last or first) + 1))


def _load(text: str) -> float:
    try:
        load = float(text)
    except ValueError:
        load = -1.0
    if not 0 < load <= 100:
        raise argparse.ArgumentTypeError(f"{text!r} is not a load; give a number above 0 and up to 100")
    return load


def _policies(text: str) -> list[str]:
    names = list(POLICIES) if text == "all" else text.split(",")
    unknown = [name for name in names if name not in POLICIES]
    if unknown:
        raise argparse.ArgumentTypeError(f"no policy {unknown[0]!r}; there are {', '.join(POLICIES)}, all")
    return list(dict.fromkeys(names))
