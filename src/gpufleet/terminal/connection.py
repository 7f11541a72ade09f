"""Find the server that a command talks to, and the token for it.

The address is the first of: `--server`; GPUFLEET_SERVER; a kubeconfig that was named with `--kubeconfig`, `--context`,
`--service` or KUBECONFIG; the server of `gpufleet login`; a server on 127.0.0.1:8080; kubectl's default kubeconfig.
"""

import argparse
import logging
import os
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from gpufleet.client import ApiError, Client, LoginRequired
from gpufleet.client.options import token_of
from gpufleet.errors import GpufleetError, SettingsError
from gpufleet.terminal.credentials import saved_server, saved_token
from gpufleet.terminal.kubectl import Kubectl, default_kubeconfig

LOCAL = ("127.0.0.1", 8080)
DEFAULT_SERVICE = "gpufleet/gpufleet"


def add_connection_flags(parser: argparse.ArgumentParser, *, kubeconfig: bool = True) -> None:
    """Add the flags that choose a server; `explain` has --kubeconfig as a setting."""
    group = parser.add_argument_group("server", "Where to read. docs/cli.md says what is used without flags.")
    group.add_argument("--server", metavar="URL", default="", help="Address of the server (GPUFLEET_SERVER).")
    group.add_argument(
        "--token-file", metavar="FILE", default="", help="File with a bearer token (GPUFLEET_TOKEN_FILE)."
    )
    group.add_argument("--ca-file", metavar="FILE", default="", help="Certificate authority of the server.")
    group.add_argument(
        "--cluster", metavar="NAME", default="", help="Cluster of the server (default: its first)."
    )
    group.add_argument("--context", metavar="NAME", default="", help="Context of the kubeconfig.")
    group.add_argument(
        "--service",
        metavar="NAMESPACE/NAME",
        default="",
        help=f"Service of the server in the kubeconfig's cluster (default: {DEFAULT_SERVICE}).",
    )
    if kubeconfig:
        group.add_argument(
            "--kubeconfig", metavar="FILE", default="", help="Kubeconfig to reach it through kubectl."
        )


@contextmanager
def open_client(
    arguments: argparse.Namespace, environ: Mapping[str, str] = os.environ, *, retries: int = 3
) -> Iterator[Client]:
    """Open a client of the server that the flags or the environment name."""
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs each request
    with (
        _address(arguments, environ) as (address, token),
        Client(
            address,
            token=token,
            token_file=arguments.token_file,
            ca_file=arguments.ca_file,
            cluster=arguments.cluster,
            retries=retries,
            environ={},
        ) as client,
    ):
        try:
            yield client
        except LoginRequired as error:
            raise _with_advice(error, address, bool(token or arguments.token_file)) from error


@contextmanager
def _address(arguments: argparse.Namespace, environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the address of the server and a token for it."""
    own = "" if arguments.token_file else token_of(environ)
    if server := arguments.server or environ.get("GPUFLEET_SERVER", ""):
        yield server, own or saved_token(server, environ)
        return
    named = bool(arguments.context or arguments.service or environ.get("KUBECONFIG"))
    named = named or bool(getattr(arguments, "kubeconfig", ""))
    if not named and (server := saved_server(environ)):
        yield server, own or saved_token(server, environ)
    elif not named and _listens(LOCAL):
        yield f"http://{LOCAL[0]}:{LOCAL[1]}", own
    elif named or default_kubeconfig(environ):
        service = arguments.service or environ.get("GPUFLEET_SERVICE", "") or DEFAULT_SERVICE
        kubectl = Kubectl(service, str(getattr(arguments, "kubeconfig", "") or ""), arguments.context)
        with kubectl.forward() as address:
            yield address, own or ("" if arguments.token_file else kubectl.token())
    else:
        raise SettingsError(
            "no server: give --server URL or set GPUFLEET_SERVER; start one with `gpufleet demo` to try it"
        )


def _listens(address: tuple[str, int]) -> bool:
    try:
        socket.create_connection(address, timeout=0.5).close()
    except OSError:
        return False
    return True


def _with_advice(error: ApiError, address: str, had_token: bool) -> GpufleetError:
    if error.status == 403:
        advice = "ask an operator for more rights, or use another token"
    elif had_token:
        advice = "the token is not valid there; give another with --token-file, or run `gpufleet login`"
    else:
        advice = "give a token with --token-file or GPUFLEET_TOKEN, or run `gpufleet login`"
    return GpufleetError(f"{address}: {error}; {advice}")
