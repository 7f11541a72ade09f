"""`POST /mcp`: the tools for AI assistants over HTTP (Model Context Protocol).

The login, the limits and the checks of host and origin are those of every route. The tools call the other routes in
this process, with the caller that the login has found: no token is passed on, and namespaces and permissions hold as
they do over REST. The transport keeps no sessions and sends no streams: one request, one JSON answer.

The protocol's package is in the extra `mcp`; without it the path answers 404 and names what to install.
"""

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware.exceptions import ExceptionMiddleware
from starlette.requests import Request
from starlette.routing import Route
from starlette.types import Message, Receive, Scope, Send

from gpufleet.errors import NotFound
from gpufleet.server.auth.gate import MCP
from gpufleet.server.auth.origins import Origins
from gpufleet.server.http.envelopes import envelope_of
from gpufleet.server.http.errors import error_response
from gpufleet.server.http.paths import normalized
from gpufleet.server.http.request_context import RequestContext, context_of
from gpufleet.server.http.routing import check_content_type

if TYPE_CHECKING:
    from mcp.server.mcpserver import Context
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager

    from gpufleet.mcp.fleet_api import FleetApi

MAX_BODY_BYTES = 64 * 1024
"""Largest request: a call of a tool has at most a few names."""


class McpEndpoint:
    """The ASGI app of the path; `running` must surround its requests."""

    def __init__(self, origins: Origins, *, enabled: bool = True) -> None:
        """`origins` are those whose web pages may use the tools."""
        self._origins = origins
        self._sessions: StreamableHTTPSessionManager | None = None
        self._problem = "the setting server.mcp is off"
        if enabled:
            try:
                self._sessions = _sessions()
            except ImportError as error:
                self._problem = (
                    "the server needs more packages for MCP: pip install 'gpufleet[server,mcp]' "
                    f"(no module {error.name!r})"
                )

    def route(self) -> Route:
        """Return the route."""
        methods = ["POST"] if self._sessions is not None else None
        return Route(MCP, self, methods=methods, include_in_schema=False)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Answer requests within the block; the end of it cancels those in progress."""
        if self._sessions is None:
            yield
            return
        async with self._sessions.run():
            yield

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if self._sessions is None:
            raise NotFound(self._problem)
        headers = context_of(scope).headers
        self._origins.check(headers.get(b"origin"), headers.get(b"host", b""))
        check_content_type(Request(scope), needed=True)
        size = 0

        async def receive_small() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > MAX_BODY_BYTES:
                raise HTTPException(413, f"the body is larger than {MAX_BODY_BYTES:,} bytes")
            return message

        await self._sessions.handle_request(scope, receive_small, send)


def _sessions() -> "StreamableHTTPSessionManager":
    """Return the transport of the MCP server; raise ImportError without the extra `mcp`."""
    from mcp.server.transport_security import TransportSecuritySettings

    from gpufleet.mcp.server import build_server

    for library in ("mcp", "httpx"):  # they log whatever a caller sends, and each read
        logging.getLogger(library).setLevel(logging.ERROR)
    server = build_server(_api_of)
    checked_before = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    server.streamable_http_app(json_response=True, stateless_http=True, transport_security=checked_before)
    return server.session_manager


def _api_of(context: "Context[Any, Any]") -> "FleetApi":
    """Return the API of this server as the caller of an MCP request sees it."""
    import httpx

    from gpufleet.client import AsyncClient
    from gpufleet.mcp.fleet_api import FleetApi

    request = context.request_context.request
    assert isinstance(request, Request)
    transport = httpx.ASGITransport(_RoutesForCaller(request.scope))
    return FleetApi(AsyncClient("http://gpufleet", transport=transport, retries=0, environ={}))


class _RoutesForCaller:
    """The routes of the server, called within another request and for its caller."""

    def __init__(self, outer: Scope) -> None:
        self._app: Starlette = outer["app"]
        self._outer = context_of(outer)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a read of the API."""
        outer, path = self._outer, normalized(scope["path"])
        context = RequestContext(
            outer.trace,
            envelope_of(path),
            outer.peer,
            {b"accept": b"application/json"},
            caller=outer.caller,
            still_allowed=outer.still_allowed,
        )

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *context.response_headers]
            await send(message)

        inner = {**scope, "path": path, "app": self._app, "state": {"context": context}}
        try:
            if scope["method"] != "GET" or not path.startswith("/api/"):
                raise HTTPException(403, "tools only read the API")
            routes = ExceptionMiddleware(self._app.router, handlers=self._app.exception_handlers)
            await routes(inner, receive, send_with_headers)
        except Exception as error:  # noqa: BLE001  (as the outermost middleware does)
            await error_response(context, error)(inner, receive, send_with_headers)
