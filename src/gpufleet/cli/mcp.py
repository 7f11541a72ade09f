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

from gpufleet.client.options import ClientOptions
from gpufleet.errors import SettingsError
from gpufleet.runtime.process import Stopper, run_until_stopped
from gpufleet.runtime.settings import Settings
from gpufleet.terminal.connection import Endpoint, open_endpoint
from gpufleet.terminal.flags import add_connection_flags

GROUPS: tuple[type, ...] = ()


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags; none is a setting."""
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
    add_connection_flags(parser)


def run(settings: Settings, arguments: argparse.Namespace) -> int:
    """Serve until stdin ends or the process is stopped."""
    listen = None if arguments.listen is None else _address(arguments.listen)
    hosts = [each for each in arguments.hosts.split(",") if each]
    with open_endpoint(arguments) as endpoint:
        if listen is None:
            from gpufleet.mcp.server import build_server

            asyncio.run(build_server(endpoint.address, lambda _: "", endpoint.options).run_stdio_async())
            return 0
        return run_until_stopped(lambda stopper: _serve_http(endpoint, *listen, hosts, stopper))


async def _serve_http(endpoint: Endpoint, host: str, port: int, hosts: list[str], stopper: Stopper) -> None:
    """Serve callers, each with its own token; the token of this command is not used for them."""
    from gpufleet.mcp.http import PATH, Callers, bearer_token, has_login, http_app, listener
    from gpufleet.mcp.server import build_server

    server, own_token = endpoint.address, ""
    options = ClientOptions(
        ca_file=endpoint.options["ca_file"], cluster=endpoint.options["cluster"], environ={}
    )
    if not await has_login(server, options):
        own_token = os.environ.get("GPUFLEET_MCP_TOKEN") or secrets.token_urlsafe(32)
        if "GPUFLEET_MCP_TOKEN" not in os.environ:
            print(f"{server} has no login; callers need this token: {own_token}", file=sys.stderr)
    callers = Callers(server, own_token, options)

    def token_of_call(context: Any) -> str:
        return callers.token_for_server(bearer_token(context.headers or {}))

    app = http_app(build_server(server, token_of_call, options), callers, hosts)
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
