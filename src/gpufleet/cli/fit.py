"""Show on which nodes a number of GPUs is free together now.

  gpufleet fit 8 --model H100                  # nodes with 8 free H100s
  gpufleet fit 4 --together island -o json     # 4 GPUs that are linked directly

It counts free, healthy GPUs of nodes that take pods. It ignores taints, quotas, CPU and memory: ask `gpufleet explain`
about a real claim. Exits with 1 if no node has as many.
"""

import argparse
import json
import sys
from dataclasses import asdict

from gpufleet.runtime.settings import Settings

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
        "-o", "--output", choices=("table", "json", "name"), default="table", help="default: table"
    )
    add_connection_flags(parser)


def run(settings: Settings, arguments: argparse.Namespace) -> int:
    """Print the nodes, the fullest first."""
    from gpufleet.terminal.connection import open_client
    from gpufleet.terminal.fit import COLUMNS, capacities, fitting, sentence
    from gpufleet.terminal.output import table
    from gpufleet.terminal.width import terminal_width

    with open_client(arguments) as client:
        nodes = capacities(client.gpu_map(), arguments.model)
    fit = fitting(nodes, arguments.count, arguments.together)
    said = sentence(nodes, arguments.count, arguments.together, arguments.model)
    if arguments.output == "json":
        print(
            json.dumps(
                {"fits": bool(fit), "sentence": said, "nodes": [asdict(each) for each in fit]}, indent=4
            )
        )
    elif arguments.output == "name":
        print("".join(f"node/{each.node}\n" for each in fit), end="")
    else:
        print(said, file=sys.stdout if fit else sys.stderr)
        if fit:
            print(table(COLUMNS, fit, width=terminal_width()), end="")
    return 0 if fit else 1


def _count(text: str) -> int:
    if not text.isdecimal() or not 1 <= int(text) <= 1024:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of GPUs from 1 to 1024")
    return int(text)
