"""Run the server: fleet, accounting, REST API and dashboard.

It listens on 127.0.0.1:8080 by default. Any address that other machines can reach needs a login:
give --tokens-file, --token-review or --set oidc.issuer=URL, or --insecure. To create a token:

  gpufleet serve --new-token grafana >> tokens    # shows the token, adds its hash to the file
  gpufleet serve --host 0.0.0.0 --tokens-file tokens
"""

import argparse
import sys

from gpufleet.runtime.settings import (
    AccountingSettings,
    AlertSettings,
    AuthSettings,
    DevicesSettings,
    DockerSettings,
    KubernetesSettings,
    LocalSettings,
    MetricsSettings,
    OidcSettings,
    ReportSettings,
    ServerSettings,
    Settings,
    SlurmSettings,
    StoreSettings,
    TrainingSettings,
)

GROUPS: tuple[type, ...] = (
    ServerSettings,
    AuthSettings,
    OidcSettings,
    StoreSettings,
    MetricsSettings,
    KubernetesSettings,
    SlurmSettings,
    DockerSettings,
    LocalSettings,
    DevicesSettings,
    AccountingSettings,
    ReportSettings,
    TrainingSettings,
    AlertSettings,
)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the flags that create tokens."""
    parser.add_argument(
        "--new-token", metavar="NAME", help="Create a token for NAME, print its line, and exit."
    )
    parser.add_argument(
        "--role",
        choices=("viewer", "operator"),
        default="viewer",
        metavar="ROLE",
        help="Its role: viewer or operator (default: viewer).",
    )
    parser.add_argument(
        "--namespaces",
        metavar="NAMES",
        default="",
        help="Limit it to namespaces, such as A,B (default: all).",
    )


def run(settings: Settings, arguments: argparse.Namespace) -> int:
    """Serve until a signal arrives."""
    if arguments.new_token is not None:
        return _print_new_token(arguments.new_token, arguments.role, arguments.namespaces)
    import uvloop

    from gpufleet.runtime.process import STOP_SECONDS, run_until_stopped
    from gpufleet.server.http.server import SHUTDOWN_GRACE_S, run_server
    from gpufleet.server.wiring.assemble import assemble
    from gpufleet.server.wiring.login import require_login
    from gpufleet.training.user_patterns import compile_user_patterns

    # Only agents use them, but a mistake in the shared file is reported here too.
    compile_user_patterns(settings[TrainingSettings].patterns)
    require_login(settings)
    server = settings[ServerSettings]
    return run_until_stopped(
        lambda stopper: run_server(
            server.host,
            server.port,
            lambda closing: assemble(settings, closing),
            lambda url: print(f"gpufleet serves on {url}", flush=True),
            stopper,
        ),
        uvloop.new_event_loop,
        stop_seconds=SHUTDOWN_GRACE_S + STOP_SECONDS,
    )


def _print_new_token(name: str, role: str, namespaces: str) -> int:
    from typing import cast

    from gpufleet.server.auth.caller import Role
    from gpufleet.server.auth.tokens import new_token

    token, line = new_token(name, cast(Role, role), namespaces.split(",") if namespaces else ())
    print(f"token of {name}, shown only once: {token}", file=sys.stderr)
    print(line)
    return 0
