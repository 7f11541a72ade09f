"""List nodes, GPUs, workloads, claims, the queue or leases of a server, as kubectl does.

  gpufleet get nodes                               # all GPU nodes
  gpufleet get gpus h100-001 -o wide               # the GPUs of a node
  gpufleet get workloads -n ml --status running --sort-by=-gpus
  gpufleet get claims -l team=nlp -o json
  gpufleet get queue --watch                       # what waits and why

Without -n, objects of all namespaces that you may see are listed. Exits with 1 if a named object does not exist.
"""

import argparse
import sys

from gpufleet.errors import InvalidRequest
from gpufleet.runtime.settings import Settings

GROUPS: tuple[type, ...] = ()


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add kubectl's flags."""
    from gpufleet.terminal.flags import add_connection_flags
    from gpufleet.terminal.output import FORMATS
    from gpufleet.terminal.resources import RESOURCES

    names = ", ".join(each.name for each in RESOURCES)
    parser.add_argument("resource", metavar="RESOURCE", help=f"one of {names}; or RESOURCE/NAME")
    parser.add_argument("names", metavar="NAME", nargs="*", help="names of objects (default: all)")
    parser.add_argument("-n", "--namespace", default="", help="objects of this namespace (default: all)")
    parser.add_argument("-A", "--all-namespaces", action="store_true", help="all namespaces, the default")
    parser.add_argument(
        "-l", "--selector", default="", metavar="LABELS", help="such as team=nlp,tier in (a, b),!old"
    )
    parser.add_argument(
        "--status", default="", help="objects in this status, such as free, idle, Running, Bound"
    )
    parser.add_argument("--model", default="", help="GPU model in any spelling, such as h100")
    parser.add_argument(
        "-o", "--output", choices=FORMATS, default="", help="output format (default: a table)"
    )
    parser.add_argument(
        "--columns", default="", metavar="A,B", help="columns of the table, or fields of the CSV"
    )
    parser.add_argument(
        "--sort-by", default="", metavar="NAME", help="column or field; =-NAME for descending"
    )
    parser.add_argument("--no-headers", action="store_true", help="no header line")
    parser.add_argument("-w", "--watch", action="store_true", help="then print rows again when they change")
    parser.add_argument(
        "--interval",
        type=_interval,
        default=2.0,
        metavar="SECONDS",
        help="time between reads of --watch (default: 2)",
    )
    add_connection_flags(parser)


def run(settings: Settings, arguments: argparse.Namespace) -> int:
    """Fetch and print."""
    from gpufleet.terminal.connection import open_client
    from gpufleet.terminal.get import Request, get, watch
    from gpufleet.terminal.resources import Selection, resource_of

    word, slash, name = arguments.resource.partition("/")
    if slash and arguments.names:
        raise InvalidRequest("write names as RESOURCE/NAME or as RESOURCE NAME…, not both")
    if arguments.all_namespaces:
        arguments.namespace = ""
    resource = resource_of(word)
    selection = Selection(arguments.namespace, arguments.selector, arguments.status, arguments.model)
    request = Request(
        resource=resource,
        selection=resource.check(selection),
        names=(name,) if slash else tuple(arguments.names),
        output=arguments.output,
        columns=arguments.columns,
        sort_by=arguments.sort_by,
        headers=not arguments.no_headers,
    )
    with open_client(arguments) as client:
        if arguments.watch:
            return watch(client, request, sys.stdout, arguments.interval)
        return get(client, request, sys.stdout, sys.stderr)


def _interval(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0.1 <= seconds <= 86_400:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0.1 to 86400")
    return seconds
