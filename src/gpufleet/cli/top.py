"""Watch the fleet on the whole screen: models, nodes, GPUs, workloads and the queue.

  gpufleet top
  gpufleet top --view gpus --interval 2 --server https://fleet.example.com

Keys: 1-5 or Tab choose the view, Enter shows a node, s and r sort, f filters, / and n search, p pauses, ? shows the
keys, q quits.
"""

import argparse
import asyncio
import sys

from gpufleet.errors import OperationRefused
from gpufleet.runtime.settings import Settings

GROUPS: tuple[type, ...] = ()
VIEWS = ("fleet", "nodes", "gpus", "workloads", "queue")


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the view at the start and the interval."""
    from gpufleet.terminal.flags import add_connection_flags

    parser.add_argument("--view", choices=VIEWS, default="fleet", help="view at the start (default: fleet)")
    parser.add_argument(
        "--interval",
        type=_interval,
        default=5.0,
        metavar="SECONDS",
        help="time between refreshes (default: 5)",
    )
    add_connection_flags(parser)


def run(settings: Settings, arguments: argparse.Namespace) -> int:
    """Show the screen until the user quits."""
    from gpufleet.client import AsyncClient, Client, LoginRequired
    from gpufleet.terminal.connection import open_endpoint
    from gpufleet.terminal.top.app import Top

    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise OperationRefused("top needs a terminal; use `gpufleet get` in scripts")
    with open_endpoint(arguments) as endpoint:
        try:
            with Client(endpoint.address, **endpoint.options) as client:
                client.overview()  # errors are printed, not drawn
        except LoginRequired as error:
            raise endpoint.explained(error) from error

        async def show() -> None:
            async with AsyncClient(endpoint.address, **endpoint.options) as client:
                app = Top(client, arguments.interval)
                app.current = VIEWS.index(arguments.view)
                await app.run_async()

        asyncio.run(show())
    return 0


def _interval(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0.5 <= seconds <= 3600:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds from 0.5 to 3600")
    return seconds
