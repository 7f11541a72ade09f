"""MCP over HTTP: one path, `/mcp`, for callers with a token, from known hosts and origins only.

A caller's token is the one of the gpufleet server, which decides on it and on what the caller sees. A gpufleet server
without a login can't decide; then the callers need the token of this listener instead.

The transport keeps no sessions, so that no caller can use another one's.
"""

import hmac
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import uvicorn
from mcp.server import MCPServer
from mcp.server.transport_security import TransportSecuritySettings
from starlette.datastructures import Headers
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from gpufleet.client import AsyncClient
from gpufleet.client.options import ClientOptions
from gpufleet.errors import GpufleetError, InvalidRequest, Unavailable
from gpufleet.mcp.fleet_api import FleetApi, open_client

PATH = "/mcp"
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_REMEMBERED = 30.0
"""Seconds for which an accepted token is not checked again; the API checks it with every read."""
_MAX_REMEMBERED = 1000


def http_app(server: MCPServer[AsyncClient], callers: "Callers", hosts: Sequence[str] = ()) -> ASGIApp:
    """Return the ASGI app; `hosts` are host names besides loopback that callers may use."""
    names = [*_LOOPBACK, *hosts]
    security = TransportSecuritySettings(
        allowed_hosts=[form for name in names for form in (name, f"{name}:*")],
        allowed_origins=[
            f"{scheme}://{name}{port}"
            for scheme in ("http", "https")
            for name in names
            for port in ("", ":*")
        ],
    )
    app = server.streamable_http_app(
        streamable_http_path=PATH, json_response=True, stateless_http=True, transport_security=security
    )
    app.add_middleware(_Authentication, callers=callers)
    return app


class Listener(uvicorn.Server):
    """uvicorn's server without its signal handling, which would end the process with the signal."""

    def stop(self) -> None:
        """Finish the requests in progress and return from `serve`; a second call does not wait for them."""
        self.force_exit = self.should_exit
        self.should_exit = True

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals to the process."""
        yield


def listener(app: ASGIApp, host: str, port: int) -> Listener:
    """Return a server of the app at an address."""
    return Listener(
        uvicorn.Config(app, host=host, port=port, log_config=None, access_log=False, server_header=False)
    )


class Callers:
    """Decides whether a token is accepted."""

    def __init__(self, address: str, own_token: str = "", options: ClientOptions | None = None) -> None:
        """With `own_token` only that one is accepted; without, those of the gpufleet server at `address`."""
        self._address = address
        self._options = options
        self._own_token = own_token
        self._accepted: dict[str, float] = {}

    def token_for_server(self, token: str) -> str:
        """Return the token that the gpufleet server gets."""
        return "" if self._own_token else token

    async def accept(self, token: str) -> bool:
        """Return whether a caller may use the tools; raise Unavailable if the gpufleet server does not answer."""
        if not token:
            return False
        if self._own_token:
            return hmac.compare_digest(token.encode(), self._own_token.encode())
        if self._accepted.get(token, 0.0) > time.monotonic():
            return True
        try:
            async with open_client(self._address, self._options) as client:
                caller = await FleetApi(client, token).read("/auth/me")
        except InvalidRequest:
            return False
        if not caller["user"]:
            return False
        if len(self._accepted) >= _MAX_REMEMBERED:
            self._accepted.clear()
        self._accepted[token] = time.monotonic() + _REMEMBERED
        return True


async def has_login(address: str, options: ClientOptions | None = None) -> bool:
    """Return whether the gpufleet server at `address` asks its callers for a token."""
    async with open_client(address, options) as client:
        try:
            caller = await FleetApi(client).read("/auth/me")
        except InvalidRequest:
            return True
    return bool(caller["signIn"] != "none")


def bearer_token(headers: "Headers | dict[str, str]") -> str:
    """Return the bearer token of a request; empty without one."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


class _Authentication:
    """Middleware: answers callers without an accepted token with status 401."""

    def __init__(self, app: ASGIApp, callers: Callers) -> None:
        self._app = app
        self._callers = callers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on if its token is accepted."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        try:
            accepted = await self._callers.accept(bearer_token(Headers(scope=scope)))
        except Unavailable as error:
            await JSONResponse({"error": str(error)}, 503)(scope, receive, send)
            return
        except GpufleetError:
            accepted = False
        if accepted:
            await self._app(scope, receive, send)
            return
        refusal = JSONResponse(
            {"error": "a bearer token is needed"}, 401, {"www-authenticate": 'Bearer realm="gpufleet"'}
        )
        await refusal(scope, receive, send)
