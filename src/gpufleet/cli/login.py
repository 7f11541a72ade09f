"""Log in at the OpenID Connect provider of a server and keep the token for the other commands.

  gpufleet login --server https://fleet.example.com --issuer https://login.example.com --client-id gpufleet-cli
  gpufleet login --delete                # log out

It shows an address and a code to enter there, on this or any other machine. The client must be public and allow the
device flow, and be `oidc.client_id` or in `oidc.audiences` of the server: docs/cli.md says more.
"""

import argparse
import os
import ssl
import sys
from typing import TYPE_CHECKING

from gpufleet.errors import SettingsError
from gpufleet.runtime.settings import Settings

if TYPE_CHECKING:
    from gpufleet.terminal.device_login import DeviceCode

GROUPS: tuple[type, ...] = ()


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the server and the provider."""
    parser.add_argument("--server", metavar="URL", default="", help="address of the server (GPUFLEET_SERVER)")
    parser.add_argument(
        "--issuer", metavar="URL", default="", help="the provider, as in oidc.issuer of the server"
    )
    parser.add_argument("--client-id", metavar="ID", default="", help="public client at the provider")
    parser.add_argument(
        "--scopes",
        default="openid profile email groups",
        help="scopes to ask for (default: openid profile email groups)",
    )
    parser.add_argument("--ca-file", metavar="FILE", default="", help="certificate authority of both")
    parser.add_argument("--delete", action="store_true", help="delete the saved token, and exit")


def run(settings: Settings, arguments: argparse.Namespace) -> int:
    """Log in, check the token at the server, and save it."""
    import logging

    import httpx

    from gpufleet.client import Client
    from gpufleet.terminal.credentials import delete_login, save_login
    from gpufleet.terminal.device_login import TIMEOUT, device_login

    logging.getLogger("httpx").setLevel(logging.WARNING)
    if arguments.delete:
        print("The saved login is deleted." if delete_login(os.environ) else "There was no saved login.")
        return 0
    server = arguments.server or os.environ.get("GPUFLEET_SERVER", "")
    for flag, value in (
        ("--server", server),
        ("--issuer", arguments.issuer),
        ("--client-id", arguments.client_id),
    ):
        if not value:
            raise SettingsError(f"login needs {flag}; see gpufleet login --help")
    verify = ssl.create_default_context(cafile=arguments.ca_file or None)
    with httpx.Client(verify=verify, timeout=TIMEOUT) as http:
        token, expires = device_login(http, arguments.issuer, arguments.client_id, arguments.scopes, _show)
    with Client(server, token=token, ca_file=arguments.ca_file, environ={}) as client:
        me = client.me()
    if me.user is None:
        raise SettingsError(
            f"{server} does not accept the token; is {arguments.client_id} in its oidc.audiences?"
        )
    path = save_login(server, token, expires, os.environ)
    print(f"Logged in to {server} as {me.user} ({me.role}). The token is in {path}.")
    return 0


def _show(code: "DeviceCode") -> None:
    address = code.verification_uri_complete or code.verification_uri
    print(f"Open {address} and enter the code {code.user_code}.", file=sys.stderr, flush=True)
