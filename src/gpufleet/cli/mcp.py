"""Answer questions of AI assistants about the fleet, as a Model Context Protocol server.

  gpufleet mcp --server https://fleet.example.com --token-file token     # over stdin and stdout
  gpufleet mcp --listen 8090                                             # over HTTP, at /mcp on 127.0.0.1

The tools only read. They see what the token may see. Over HTTP every caller brings a token of the gpufleet server; if
that server has no login, this command prints a token of its own, or takes it from GPUFLEET_MCP_TOKEN. Docs: docs/mcp.md.
"""

import argparse
import asyncio
import os
import secrets
import sys
from typing import Any

from gpufleet.cli.server_address import add_server_flags, token_of
from gpufleet.errors import SettingsError
from gpufleet.runtime.process import Stopper, run_until_stopped
from gpufleet.runtime.settings import Settings

GROUPS: tuple[type, ...] = ()


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags; none is a setting."""
    add_server_flags(parser)
    parser.add_argument(
        "--listen",
        metavar="[HOST:]PORT",
        help="serve HTTP instead of stdin and stdout (default host: 127.0.0.1)",
    )
    parser.add_argument(
        "--hosts",
        default="",
        metavar="NAMES",
        help="host names besides localhost that HTTP callers may use, separated by commas",
    )


def run(settings: Settings, arguments: argparse.Namespace) -> int:
    """Serve until stdin ends or the process is stopped."""
    if arguments.listen is None:
        from gpufleet.mcp.server import build_server

        token = token_of(arguments)
        asyncio.run(build_server(arguments.server, lambda context: token).run_stdio_async())
        return 0
    host, port = _address(arguments.listen)
    hosts = [each for each in arguments.hosts.split(",") if each]
    return run_until_stopped(lambda stopper: _serve_http(arguments.server, host, port, hosts, stopper))


async def _serve_http(server: str, host: str, port: int, hosts: list[str], stopper: Stopper) -> None:
    from gpufleet.mcp.http import PATH, Callers, bearer_token, has_login, http_app, listener
    from gpufleet.mcp.server import build_server

    own_token = ""
    if not await has_login(server):
        own_token = os.environ.get("GPUFLEET_MCP_TOKEN") or secrets.token_urlsafe(32)
        if "GPUFLEET_MCP_TOKEN" not in os.environ:
            print(f"{server} has no login; callers need this token: {own_token}", file=sys.stderr)
    callers = Callers(server, own_token)

    def token_of_call(context: Any) -> str:
        return callers.token_for_server(bearer_token(context.headers or {}))

    app = http_app(build_server(server, token_of_call), callers, hosts)
    print(f"MCP on http://{host}:{port}{PATH}", file=sys.stderr)
    serving = listener(app, host.strip("[]"), port)
    stopper.on_stop = serving.stop
    await serving.serve()


def _address(text: str) -> tuple[str, int]:
    """Return host and port; loopback if only a port is given."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or not 0 < int(port) < 65536:
        raise SettingsError(
            f"--listen: {text!r} is wrong; it takes a port or an address such as 127.0.0.1:8090"
        )
    return host or "127.0.0.1", int(port)
