"""The address, token and other options that the sync and the async client share."""

import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypedDict, TypeVar

import httpx
import msgspec

from gpufleet import __version__
from gpufleet.client.call import Call
from gpufleet.client.errors import ApiError, ServerUnreachable
from gpufleet.client.exchange import Exchange, exchange, problem_of
from gpufleet.errors import SettingsError

T = TypeVar("T")
TIMEOUT = 30.0


class ClientOptions(TypedDict, total=False):
    """The options of a client, all by name."""

    token: str
    """Bearer token (default: GPUFLEET_TOKEN, else the file in GPUFLEET_TOKEN_FILE)."""
    token_file: str | Path
    """A file with the token."""
    cluster: str
    """The cluster of all calls that name none (default: the server's default cluster)."""
    retries: int
    """Further attempts after a status 429, 502, 503 or 504 or a failed connection (default: 3)."""
    timeout: float
    """Seconds to wait for a connection and for each part of an answer (default: 30)."""
    ca_file: str | Path
    """Certificates to trust besides those of the system."""
    transport: httpx.AsyncBaseTransport | None
    """What an `AsyncClient` sends its requests with (default: connections to the server)."""
    environ: Mapping[str, str]
    """The environment (default: os.environ)."""


class Options:
    """The address, token and other options that both clients share."""

    def __init__(
        self,
        server: str = "",
        *,
        token: str = "",
        token_file: str | Path = "",
        cluster: str = "",
        retries: int = 3,
        timeout: float = TIMEOUT,
        ca_file: str | Path = "",
        transport: httpx.AsyncBaseTransport | None = None,
        environ: Mapping[str, str] = os.environ,
    ) -> None:
        self.server = (server or environ.get("GPUFLEET_SERVER", "")).rstrip("/")
        if not self.server.startswith(("http://", "https://")):
            given = f"{self.server!r} is not the address of a server" if self.server else "no server given"
            raise SettingsError(f"{given}; give one such as http://127.0.0.1:8080, or set GPUFLEET_SERVER")
        self.cluster = cluster
        self._retries = retries
        self._token = token or (read_token(token_file) if token_file else token_of(environ))
        self._timeout = timeout
        self._ca_file = str(ca_file) or None
        self._transport = transport

    def transport_options(self) -> dict[str, Any]:
        """Return the arguments of httpx's clients; redirects are not followed, since the token is for one server."""
        headers = {"User-Agent": f"gpufleet/{__version__}", "Accept": "application/json"}
        if self._token:
            headers["Authorization"] = f"Bearer {self._token}"
        options: dict[str, Any] = {"headers": headers, "timeout": self._timeout}
        if self._transport is not None:
            return {**options, "transport": self._transport}
        return {**options, "verify": ssl.create_default_context(cafile=self._ca_file)}

    def exchange(self) -> Exchange:
        """Return the attempts of one request."""
        return exchange(self.server, self._retries)

    def interrupted(self, error: httpx.TransportError) -> ServerUnreachable:
        """Return the error for an answer that ended early."""
        return ServerUnreachable(f"the answer of {self.server} was interrupted: {problem_of(error)}")

    def decoded(self, call: Call[T], body: bytes) -> T:
        """Return the data of a response; a body of another program becomes an error that names the address."""
        try:
            return call.decode(body)
        except msgspec.MsgspecError as error:
            raise ApiError(f"{self.server}{call.url} is not an answer of gpufleet: {error}", 200) from error


def read_token(file: str | Path) -> str:
    """Return the token in a file."""
    try:
        return Path(file).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"can't read the token file {file}: {error}") from error


def token_of(environ: Mapping[str, str]) -> str:
    """Return the token that the environment gives, or an empty text."""
    if token := environ.get("GPUFLEET_TOKEN", "").strip():
        return token
    file = environ.get("GPUFLEET_TOKEN_FILE", "")
    return read_token(file) if file else ""
