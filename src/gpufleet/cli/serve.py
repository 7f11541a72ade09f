"""Run the server: fleet, accounting, REST API and dashboard.

It listens on 127.0.0.1:8080 unless told otherwise. On any other address it wants a login: give
--tokens-file or --token-review, or --insecure. To make a token:

  gpufleet serve --new-token grafana >> tokens    # the token on the terminal, its line in the file
"""

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING

from gpufleet.runtime.settings import (
    AccountingSettings,
    AuthSettings,
    DevicesSettings,
    DockerSettings,
    KubernetesSettings,
    LocalSettings,
    MetricsSettings,
    ServerSettings,
    Settings,
    SlurmSettings,
    StoreSettings,
    TrainingSettings,
)

if TYPE_CHECKING:
    from gpufleet.server.http.server import Server

GROUPS: tuple[type, ...] = (
    ServerSettings,
    AuthSettings,
    StoreSettings,
    MetricsSettings,
    KubernetesSettings,
    SlurmSettings,
    DockerSettings,
    LocalSettings,
    DevicesSettings,
    AccountingSettings,
    TrainingSettings,
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the making of tokens."""
    parser.add_argument(
        "--new-token", metavar="NAME", help="Make a bearer token for NAME, print its line, and exit."
    )
    parser.add_argument(
        "--role",
        choices=("viewer", "operator"),
        default="viewer",
        help="Role of the new token (default: viewer).",
    )


def run(settings: Settings, arguments: argparse.Namespace) -> int:
    """Serve until a signal says stop."""
    if arguments.new_token is not None:
        return _print_new_token(arguments.new_token, arguments.role)
    import uvloop

    from gpufleet.training.user_patterns import compile_user_patterns

    # The agents read logs with them; a fault in the file that both share is told where it is noticed first.
    compile_user_patterns(settings[TrainingSettings].patterns)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(settings))


async def _serve(settings: Settings) -> int:
    from gpufleet.server.wiring.assemble import assemble

    return await serve_until_told(
        settings,
        lambda closing: assemble(settings, closing),
        lambda address: print(f"gpufleet serves on {address}", flush=True),
    )


async def serve_until_told(
    settings: Settings,
    put_together: "Callable[[AsyncExitStack], Awaitable[Server]]",
    started: "Callable[[str], None]",
) -> int:
    """Listen, put the server together and run it until a signal says stop; `started` gets its address."""
    from gpufleet.runtime.listening import address_of, bind
    from gpufleet.server.http.server import stop_on_signals
    from gpufleet.server.wiring.assemble import refuse_strangers

    server_settings = settings[ServerSettings]
    refuse_strangers(settings)
    with bind(server_settings.host, server_settings.port) as listening, stop_on_signals() as stopper:
        try:
            async with AsyncExitStack() as closing:
                server = await put_together(closing)
                server.on_started = lambda: started(address_of(listening))
                stopper.server = server
                await server.serve(sockets=[listening])
        except asyncio.CancelledError:
            if not stopper.asked:
                raise
    return 0


def _print_new_token(name: str, role: str) -> int:
    from typing import cast

    from gpufleet.server.auth.caller import Role
    from gpufleet.server.auth.tokens import new_token

    token, line = new_token(name, cast(Role, role))
    print(f"token of {name}, shown this once: {token}", file=sys.stderr)
    print(line)
    return 0
