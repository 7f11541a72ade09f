"""`gpufleet simulate` with time: read the input, run the scenarios, print and draw the outcomes."""

import argparse
import asyncio
import json
import os
import re
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path

from gpufleet.accounting.prices import price_of
from gpufleet.cli.recorded_ledger import RecordedLedger, read_ledger
from gpufleet.errors import InvalidRequest, SettingsError
from gpufleet.model.gpu_models import accepted_models, single_model
from gpufleet.placement import CandidateGpu, CandidateNode
from gpufleet.runtime.settings import Settings
from gpufleet.runtime.settings.prices import prices_by_model
from gpufleet.scheduler.queues.expected_order import order_of_quotas
from gpufleet.simulation import generate
from gpufleet.simulation.compare import Input, compare
from gpufleet.simulation.ledger import Recorded
from gpufleet.simulation.outcome import Outcome
from gpufleet.simulation.page import page
from gpufleet.simulation.queues import Queues
from gpufleet.simulation.scenario import DAY, RULES, Scenario
from gpufleet.simulation.text_report import duration, table
from gpufleet.simulation.unit import Unit

_UNITS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
CYCLES = ((10_000, 60.0), (2_000, 30.0))
"""Seconds between planning cycles from so many nodes on, unless --cycle is given."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags of simulations over time."""
    group = parser.add_argument_group(
        "over time", "With one of the first three, units arrive, wait, run and end at their times."
    )
    group.add_argument("--trace", type=Path, metavar="FILE", help="CSV file of tasks with times")
    group.add_argument(
        "--from-ledger", action="store_true", help="replay the allocations that the server has recorded"
    )
    group.add_argument("--generate", type=_fleet, metavar="NODESxGPUS", help="a synthetic fleet and load")
    group.add_argument(
        "--since",
        type=_period,
        default=30 * DAY,
        metavar="SPAN",
        help="of the ledger or generated (default: 30d)",
    )
    group.add_argument("--cluster", default="", help="the cluster of the ledger, if it has several")
    group.add_argument(
        "--rules", type=_rules, default=["default"], metavar="NAME", help=f"any of {', '.join(RULES)}, or all"
    )
    group.add_argument("--reservations", choices=["on", "off"], help="keep GPUs for units that do not fit")
    group.add_argument(
        "--scale-nodes",
        type=_scales,
        default=[1.0],
        metavar="X[,Y]",
        help="nodes as a multiple of those given, such as 0.9,1,1.2",
    )
    group.add_argument(
        "--add-nodes", type=_added, action="append", default=[], metavar="N:GPUS[:MODEL]", help="more nodes"
    )
    for name, text in (
        ("weight", "share of a queue; with any quota, queues are ordered by weighted use, as GpuQueues are"),
        ("limit", "the most GPUs that a queue has at a time"),
        ("guarantee", "GPUs of a queue: lent while it does not need them, and reclaimed by preemption"),
        ("price", "price of a GPU hour of a model, or of all others without a name"),
    ):
        group.add_argument(
            f"--{name}", type=_pair, action="append", default=[], metavar="NAME=NUMBER", help=text
        )
    group.add_argument(
        "--quotas",
        choices=["on", "off"],
        default="on",
        help="apply the GpuQueues that the ledger has recorded",
    )
    group.add_argument(
        "--grace",
        type=span,
        default=30.0,
        metavar="SPAN",
        help="time that evicted pods take to terminate (default: 30s)",
    )
    group.add_argument(
        "--node-mtbf", type=span, default=0.0, metavar="SPAN", help="mean time between failures of a node"
    )
    group.add_argument("--repair", type=span, default=4 * 3600.0, metavar="SPAN", help="default: 4h")
    group.add_argument(
        "--cycle",
        type=span,
        metavar="SPAN",
        help="time between planning cycles (default: 0; 30s from 2,000 nodes on, 60s from 10,000)",
    )
    group.add_argument("--html", type=Path, metavar="FILE", help="draw the comparison into an HTML page")
    group.add_argument("--quiet", action="store_true", help="show no progress")


_EFFECT = {
    "--pods": ("nodes", "pods", "load", "plot"),
    "--trace": ("nodes",),
    "--from-ledger": ("nodes", "since", "cluster", "quotas"),
    "--generate": ("since", "load"),
}
"""The flags of `simulate` that only some inputs use; all others are of simulations over time."""
_ALWAYS = {"trace", "from_ledger", "generate", "seed", "policy", "output"}


def check_effect(arguments: argparse.Namespace, own: Iterable[str]) -> None:
    """Reject flags that would have no effect with the chosen input; `own` are the flags of the command."""
    inputs = [each for each in _EFFECT if getattr(arguments, each[2:].replace("-", "_"))]
    name = inputs[-1] if inputs else "--pods"
    special = {flag for flags in _EFFECT.values() for flag in flags}
    for flag in own:
        used = flag in _EFFECT[name] or flag in _ALWAYS or (flag not in special and name != "--pods")
        if not used and getattr(arguments, flag) != getattr(arguments.unset, flag):
            raise SettingsError(f"--{flag.replace('_', '-')} has no effect with {name}")
    if arguments.repair != arguments.unset.repair and not arguments.node_mtbf:
        raise SettingsError("--repair has no effect without --node-mtbf")


def is_over_time(arguments: argparse.Namespace) -> bool:
    """Return whether the flags ask for a simulation over time."""
    return bool(arguments.trace or arguments.from_ledger or arguments.generate)


def run_over_time(
    settings: Settings, arguments: argparse.Namespace, read_nodes: "list[CandidateNode] | None"
) -> int:
    """Run the scenarios; `read_nodes` are those of --nodes."""
    if arguments.html and not arguments.html.parent.is_dir():
        raise SettingsError(f"--html {arguments.html}: there is no directory {arguments.html.parent}")
    given, ledger = _input(settings, arguments, read_nodes)
    known = ledger.recorded if ledger is not None else None
    _check_queues(
        arguments, {unit.queue for unit in given.units} | (ledger.queues if ledger is not None else set())
    )
    runs = _runs(arguments, given, ledger)
    workers = min(os.cpu_count() or 1, 2)
    shown = _Progress(len(runs), arguments.quiet)
    outcomes = compare(runs, workers, shown)
    shown.finish()
    if arguments.output == "json":
        print(json.dumps(_report(outcomes, known), indent=2))
    else:
        if known is not None:
            print(f"{_recorded(known)}\n")
        print(table(outcomes))
    if arguments.html:
        try:
            note = _recorded(known) if known is not None else ""
            arguments.html.write_text(page(outcomes, _title(arguments), note), encoding="utf-8")
        except OSError as error:
            raise InvalidRequest(f"can't write {arguments.html}: {error.strerror}") from error
    return 0


def _recorded(known: Recorded) -> str:
    wait = duration(known.mean_wait_s)
    return f"recorded: allocation {known.allocation_percent:.2f}%, mean wait {wait}"


def _check_queues(arguments: argparse.Namespace, queues: set[str]) -> None:
    """Reject quotas of queues that have no unit: they are misspelt, and would change nothing."""
    for flag in ("weight", "limit", "guarantee"):
        for name, _ in getattr(arguments, flag):
            if name not in queues:
                raise SettingsError(f"--{flag} {name}: no such queue; there are {', '.join(sorted(queues))}")


def _report(outcomes: list[Outcome], known: Recorded | None) -> dict[str, object]:
    reports: dict[str, object] = {"scenarios": [outcome.report() for outcome in outcomes]}
    if known is not None:
        reports["recorded"] = {
            "allocation_percent": round(known.allocation_percent, 3),
            "mean_wait_seconds": round(known.mean_wait_s, 1),
        }
    return reports


def _title(arguments: argparse.Namespace) -> str:
    if arguments.trace:
        return f"Simulation of {arguments.trace.name}"
    return (
        "Simulation of the recorded allocations"
        if arguments.from_ledger
        else "Simulation of a synthetic load"
    )


def _input(
    settings: Settings, arguments: argparse.Namespace, nodes: list[CandidateNode] | None
) -> tuple[Input, RecordedLedger | None]:
    if sum(map(bool, (arguments.trace, arguments.from_ledger, arguments.generate))) > 1:
        raise SettingsError("give one of --trace, --from-ledger and --generate")
    if arguments.from_ledger:
        ledger = asyncio.run(
            read_ledger(settings, arguments.cluster, arguments.since, quotas=arguments.quotas == "on")
        )
        known = ledger.recorded
        absences = [] if nodes else known.absences
        return Input(nodes or known.nodes, known.units, known.end, absences, known.begin), ledger
    if arguments.generate:
        number, gpus = arguments.generate
        fleet = generate.nodes(number, gpus)
        return Input(fleet, _generated(arguments, arguments.seed[0]), arguments.since), None
    if nodes is None:
        raise SettingsError("--trace needs --nodes")
    from gpufleet.cli.simulate import read_csv
    from gpufleet.simulation.timed_trace import read_timed_tasks

    units = read_csv(arguments.trace, read_timed_tasks)
    until = max((unit.leaves_at or unit.arrives + unit.runtime for unit in units), default=0.0)
    return Input(nodes, units, until), None


def _generated(arguments: argparse.Namespace, seed: int) -> list[Unit]:
    number, gpus = arguments.generate
    load = generate.Load(days=arguments.since / DAY, load=min(arguments.load, 10.0))
    return generate.units(number * gpus, load, seed)


def _runs(
    arguments: argparse.Namespace, given: Input, ledger: RecordedLedger | None
) -> list[tuple[Scenario, Input]]:
    runs = []
    cycle = arguments.cycle
    if cycle is None:
        cycle = next((seconds for least, seconds in CYCLES if len(given.nodes) >= least), 0.0)
    limits, guarantees = dict(arguments.limit), dict(arguments.guarantee)
    for name in sorted(limits.keys() & guarantees.keys()):
        if guarantees[name] > limits[name]:
            raise SettingsError(f"--guarantee {name}: it must not exceed the limit of {limits[name]:g} GPUs")
    quotas = dict(arguments.weight), limits, guarantees
    changes: list[tuple[float, Queues | None]] = []
    if ledger is not None and ledger.rules:
        (_, queues), *changes = ledger.orders(*quotas)
    else:
        queues = order_of_quotas(*quotas)
    models = {gpu.model for node in given.nodes for gpu in node.gpus}
    added = _more(arguments.add_nodes, models, given.units)
    prices = _prices(dict(arguments.price), models | {gpu.model for node in added for gpu in node.gpus})
    loads = {arguments.seed[0]: given.units}
    if arguments.generate:
        loads |= {seed: _generated(arguments, seed) for seed in arguments.seed[1:]}
    choices = (arguments.rules, arguments.policy, arguments.scale_nodes, arguments.seed)
    for rules, policy, scale, seed in product(*choices):
        parts = (rules, policy, f"{scale:g}x nodes", f"seed {seed}")
        varied = [part for part, choice in zip(parts, choices, strict=True) if len(choice) > 1]
        chosen = RULES[rules]
        if arguments.reservations == "off":
            chosen = replace(chosen, reservations=0)
        scenario = Scenario(
            ", ".join(varied) or rules,
            policy,
            chosen,
            queues,
            prices=prices,
            node_mtbf_s=arguments.node_mtbf,
            repair_s=arguments.repair,
            grace_s=arguments.grace,
            cycle_s=cycle,
            seed=seed,
        )
        nodes = [*scaled_nodes(given.nodes, scale), *added]
        if not nodes:
            raise SettingsError(f"--scale-nodes {scale:g}: no node of {len(given.nodes)} would be left")
        names = {node.name for node in nodes}
        absences = [each for each in given.absences if each[0] in names]
        units = loads.get(seed, given.units)
        runs.append((scenario, Input(nodes, units, given.until, absences, given.begin, changes)))
    return runs


def scaled_nodes(nodes: list[CandidateNode], scale: float) -> list[CandidateNode]:
    """Return `scale` times as many nodes with the same mix: evenly chosen, and copies beyond the first."""
    number, found = round(len(nodes) * scale), []
    for copy in range(-(-number // max(len(nodes), 1))):
        left = min(number - copy * len(nodes), len(nodes))
        for at in range(left):
            node = nodes[at * len(nodes) // left]
            found.append(replace(node, name=f"{node.name}-{copy}") if copy else node)
    return found


def _more(added: list[tuple[int, int, str]], models: set[str], units: Sequence[Unit]) -> list[CandidateNode]:
    """Return the nodes of --add-nodes; a short name stands for the model of the fleet that it names."""
    nodes = []
    for at, (count, gpus, name) in enumerate(added):
        model = name if name in models else single_model(models & accepted_models(name)) or name
        if not any(not unit.request.models or model in unit.request.models for unit in units):
            wanted = sorted({each for unit in units for each in unit.request.models})
            raise SettingsError(
                f"--add-nodes {count}:{gpus}{':' if name else ''}{name}: no unit takes such GPUs; name one of {', '.join(wanted)}"
            )
        nodes += [
            CandidateNode(
                f"added-{at}-{number:04}", tuple(CandidateGpu(gpu, model=model) for gpu in range(gpus))
            )
            for number in range(count)
        ]
    return nodes


def _prices(given: Mapping[str, float], models: set[str]) -> dict[str, float]:
    """Return the price of each model of the fleet; names match as in the price list of accounting."""
    for name in filter(None, given):
        if not any(price_of(prices_by_model({name: 1.0}), model, "", 0) for model in models):
            raise SettingsError(f"--price {name}: no such model; there are {', '.join(sorted(models))}")
    entries = prices_by_model(given)
    return {model: price_of(entries, model, "", 0) for model in models}


class _Progress:
    """Shows on standard error how far each scenario is, where that is a terminal or a run takes long."""

    def __init__(self, runs: int, quiet: bool) -> None:
        self._runs, self._quiet = runs, quiet
        self._terminal = sys.stderr.isatty()
        self._last = time.monotonic()
        self._going: dict[str, float] = {}
        self._done = 0

    def __call__(self, name: str, share: float) -> None:
        self._going[name] = share
        if share >= 1.0:
            del self._going[name]
            self._done += 1
        now = time.monotonic()
        if self._quiet or (share < 1.0 and now - self._last < (0.2 if self._terminal else 10.0)):
            return
        self._last = now
        parts = [f"{name} {share:.0%}" for name, share in self._going.items()]
        text = ", ".join([f"{self._done} of {self._runs} scenarios done", *parts])
        print(
            f"\r{text}\x1b[K" if self._terminal else text,
            end="" if self._terminal else "\n",
            file=sys.stderr,
            flush=True,
        )

    def finish(self) -> None:
        """End the line."""
        if self._terminal and not self._quiet:
            print(file=sys.stderr)


def span(text: str) -> float:
    """Parse a time span such as 90s, 12h, 30d."""
    found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([smhdw]?)", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r} is not a time span; give one such as 90s, 12h or 30d")
    return float(found[1]) * _UNITS[found[2] or "s"]


def _period(text: str) -> float:
    found = span(text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r}: give a time span above 0 such as 12h or 30d")
    return found


def _fleet(text: str) -> tuple[int, int]:
    found = re.fullmatch(r"([0-9]{1,6})x([0-9]{1,2})", text)
    if not found or not int(found[1]) or not int(found[2]):
        raise argparse.ArgumentTypeError(f"{text!r} is not a fleet; give nodes and GPUs such as 100x8")
    return int(found[1]), int(found[2])


def _rules(text: str) -> list[str]:
    names = list(RULES) if text == "all" else text.split(",")
    if unknown := [name for name in names if name not in RULES]:
        raise argparse.ArgumentTypeError(f"no rules {unknown[0]!r}; there are {', '.join(RULES)}, all")
    return list(dict.fromkeys(names))


def _scales(text: str) -> list[float]:
    try:
        scales = [float(part) for part in text.split(",")]
    except ValueError:
        scales = [-1.0]
    if any(not 0 < scale <= 100 for scale in scales):
        raise argparse.ArgumentTypeError(f"{text!r}: give numbers above 0 and up to 100 such as 0.9,1,1.2")
    return list(dict.fromkeys(scales))


def _added(text: str) -> tuple[int, int, str]:
    found = re.fullmatch(r"([0-9]{1,6}):([0-9]{1,2})(?::(.+))?", text)
    if not found:
        raise argparse.ArgumentTypeError(f"{text!r}: give nodes, GPUs of each and a model, such as 10:8:H100")
    return int(found[1]), int(found[2]), found[3] or ""


def _pair(text: str) -> tuple[str, float]:
    name, _, number = text.rpartition("=")
    try:
        value = float(number)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r}: give a name and a number above 0, such as research=2")
    return name, value
