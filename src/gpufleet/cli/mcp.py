"""Answer questions of AI assistants about the fleet, as a Model Context Protocol server on stdin and stdout.

  gpufleet mcp --server https://fleet.example.com --token-file token

The tools only read. They see what the token may see. For assistants that connect over HTTP, every gpufleet server has the
same tools at /mcp. Docs: docs/mcp.md.
"""

import argparse
import asyncio

from gpufleet.runtime.settings import Settings
from gpufleet.terminal.connection import Endpoint, open_endpoint
from gpufleet.terminal.flags import add_connection_flags

GROUPS: tuple[type, ...] = ()


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags; none is a setting."""
    add_connection_flags(parser)


def run(settings: Settings, arguments: argparse.Namespace) -> int:
    """Serve until stdin ends or the process is stopped."""
    with open_endpoint(arguments) as endpoint:
        asyncio.run(_serve(endpoint))
    return 0


async def _serve(endpoint: Endpoint) -> None:
    from gpufleet.mcp.fleet_api import FleetApi, open_client
    from gpufleet.mcp.server import build_server

    async with open_client(endpoint.address, endpoint.options) as client:
        await build_server(lambda _: FleetApi(client)).run_stdio_async()
