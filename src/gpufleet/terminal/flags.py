"""The flags of all commands that talk to a server."""

import argparse

DEFAULT_SERVICE = "gpufleet/gpufleet"


def add_connection_flags(parser: argparse.ArgumentParser, *, kubeconfig: bool = True) -> None:
    """Add the flags that choose a server; without those of a kubeconfig where they are settings."""
    group = parser.add_argument_group("server", "Where to read. docs/cli.md says what is used without flags.")
    group.add_argument("--server", metavar="URL", default="", help="Address of the server (GPUFLEET_SERVER).")
    group.add_argument(
        "--token-file", metavar="FILE", default="", help="File with a bearer token (GPUFLEET_TOKEN_FILE)."
    )
    group.add_argument("--ca-file", metavar="FILE", default="", help="Certificate authority of the server.")
    group.add_argument(
        "--cluster", metavar="NAME", default="", help="Cluster of the server (default: its first)."
    )
    group.add_argument(
        "--service",
        metavar="NAMESPACE/NAME",
        default="",
        help=f"Service of the server in the kubeconfig's cluster (default: {DEFAULT_SERVICE}).",
    )
    if kubeconfig:
        group.add_argument("--context", metavar="NAME", default="", help="Context of the kubeconfig.")
        group.add_argument(
            "--kubeconfig", metavar="FILE", default="", help="Kubeconfig to reach it through kubectl."
        )
