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
from typing import NamedTuple

from gpufleet.client import ApiError, Client, LoginRequired
from gpufleet.client.options import ClientOptions, token_of
from gpufleet.errors import GpufleetError, SettingsError
from gpufleet.terminal.credentials import saved_server, saved_token
from gpufleet.terminal.flags import DEFAULT_SERVICE
from gpufleet.terminal.kubectl import Kubectl, default_kubeconfig

LOCAL = ("127.0.0.1", 8080)


class Endpoint(NamedTuple):
    """The server to talk to."""

    address: str
    options: ClientOptions
    had_token: bool

    def explained(self, error: LoginRequired) -> GpufleetError:
        """Return the error with what to do about it."""
        return _with_advice(error, self.address, self.had_token)


@contextmanager
def open_endpoint(
    arguments: argparse.Namespace, environ: Mapping[str, str] = os.environ
) -> Iterator[Endpoint]:
    """Find the server that the flags or the environment name; keep a port forwarded as long as it is used."""
    logging.getLogger("httpx").setLevel(logging.WARNING)  # it logs each request
    with _address(arguments, environ) as (address, token):
        options = ClientOptions(
            token=token,
            token_file=arguments.token_file,
            ca_file=arguments.ca_file,
            cluster=arguments.cluster,
            environ={},
        )
        yield Endpoint(address, options, bool(token or arguments.token_file))


@contextmanager
def open_client(arguments: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> Iterator[Client]:
    """Open a client of the server that the flags or the environment name."""
    with (
        open_endpoint(arguments, environ) as endpoint,
        Client(endpoint.address, **endpoint.options) as client,
    ):
        try:
            yield client
        except LoginRequired as error:
            raise endpoint.explained(error) from error


@contextmanager
def _address(arguments: argparse.Namespace, environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the address of the server and a token for it."""
    own = "" if arguments.token_file else token_of(environ)
    if server := arguments.server or environ.get("GPUFLEET_SERVER", ""):
        yield server, own or saved_token(server, environ)
        return
    kubeconfig = str(arguments.kubeconfig or "")
    named = bool(kubeconfig or arguments.context or arguments.service or environ.get("KUBECONFIG"))
    if not named and (server := saved_server(environ)):
        yield server, own or saved_token(server, environ)
    elif not named and _listens(LOCAL):
        yield f"http://{LOCAL[0]}:{LOCAL[1]}", own
    elif named or default_kubeconfig(environ):
        service = arguments.service or environ.get("GPUFLEET_SERVICE", "") or DEFAULT_SERVICE
        kubectl = Kubectl(service, kubeconfig, arguments.context)
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
