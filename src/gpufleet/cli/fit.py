"""Show on which nodes a number of GPUs is free together now.

  gpufleet fit 8 --model H100                  # nodes with 8 free H100s
  gpufleet fit 4 --together island -o json     # 4 GPUs that are linked directly
  gpufleet fit 8 --model H100 -n nlp           # also when a pod of namespace nlp with 8 H100s would start

It counts free, healthy GPUs of nodes that take pods. It ignores taints, CPU and memory: ask `gpufleet explain` about a
real claim. With --namespace the GpuQueue of that namespace counts: its share, guarantee, limit and budget. Exits with 1
if no node has as many, or if a pod of the namespace would wait.
"""

import argparse
import json
import sys
from dataclasses import asdict
from typing import TYPE_CHECKING

from gpufleet.runtime.settings import Settings

if TYPE_CHECKING:
    from gpufleet.client.types import FitAnswer

GROUPS: tuple[type, ...] = ()


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the number of GPUs and what they must be."""
    from gpufleet.terminal.flags import add_connection_flags

    parser.add_argument("count", metavar="COUNT", type=_count, help="number of GPUs on one node")
    parser.add_argument("--model", default="", help="GPU model in any spelling, such as h100 (default: any)")
    parser.add_argument(
        "--together",
        choices=("any", "contiguous", "island"),
        default="any",
        help="adjacent indexes, or one NVLink or XGMI island (default: any)",
    )
    parser.add_argument(
        "-n", "--namespace", default="", help="say when a pod of this namespace would start (default: do not)"
    )
    parser.add_argument(
        "-o", "--output", choices=("table", "json", "name"), default="table", help="default: table"
    )
    add_connection_flags(parser)


def run(settings: Settings, arguments: argparse.Namespace) -> int:
    """Print the nodes, the fullest first, and when a pod of the namespace would start."""
    from gpufleet.terminal.connection import open_client
    from gpufleet.terminal.fit import COLUMNS, capacities, fitting, sentence
    from gpufleet.terminal.output import table
    from gpufleet.terminal.width import terminal_width

    answer: FitAnswer | None = None
    with open_client(arguments) as client:
        nodes = capacities(client.gpu_map(), arguments.model)
        if arguments.namespace:
            answer = client.would_fit(
                gpus=arguments.count,
                model=arguments.model or None,
                grouping=arguments.together,
                namespace=arguments.namespace,
            )
    fit = fitting(nodes, arguments.count, arguments.together)
    said = sentence(nodes, arguments.count, arguments.together, arguments.model)
    starts = bool(fit) and (answer is None or answer.fits)
    if arguments.output == "json":
        found = {"fits": starts, "sentence": said, "nodes": [asdict(each) for each in fit]}
        print(json.dumps(found | _start_of(answer), indent=4))
    elif arguments.output == "name":
        print("".join(f"node/{each.node}\n" for each in fit), end="")
    else:
        print(said, file=sys.stdout if fit else sys.stderr)
        if fit:
            print(table(COLUMNS, fit, width=terminal_width()), end="")
        if answer is not None:
            print(_when(answer, arguments.namespace))
    return 0 if starts else 1


def _start_of(answer: "FitAnswer | None") -> dict[str, object]:
    """Return the part of the JSON output about the namespace."""
    import msgspec

    return {} if answer is None else {"start": msgspec.to_builtins(answer.estimate)}


def _when(answer: "FitAnswer", namespace: str) -> str:
    from gpufleet.cli.explain import from_server, start_sentence

    if answer.fits:
        return f"A pod of namespace {namespace} would start now."
    start = from_server(answer.estimate)
    lines = [f"A pod of namespace {namespace} would wait: {answer.sentence}."]
    return "\n".join([*lines, start_sentence(start)] if start is not None else lines)


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1024:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of GPUs from 1 to 1024")
    return int(text)
