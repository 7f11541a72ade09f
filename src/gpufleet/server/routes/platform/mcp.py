"""`POST /mcp`: the tools for AI assistants over HTTP (Model Context Protocol).

The login, the limits and the checks of host and origin are those of every route. The tools call the other routes in
this process, with the caller that the login has found: no token is passed on, and namespaces and permissions hold as
they do over REST. The transport keeps no sessions and sends no streams: one request, one JSON answer.

The protocol's package is in the extra `mcp`; without it the path answers 404 and names what to install.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.util import find_spec
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
    """The ASGI app of the path. The protocol's package is loaded at the first request: it needs 30 MB."""

    def __init__(self, origins: Origins, *, enabled: bool = True) -> None:
        """`origins` are those whose web pages may use the tools."""
        self._origins = origins
        self._problem = ""
        self._serving: asyncio.Task[None] | None = None
        self._sessions: asyncio.Future[StreamableHTTPSessionManager] | None = None
        self._stop = asyncio.Event()
        if not enabled:
            self._problem = "the setting server.mcp is off"
        elif find_spec("mcp") is None:
            self._problem = "the server needs another package for MCP: pip install 'gpufleet[server,mcp]'"

    def route(self) -> Route:
        """Return the route."""
        return Route(MCP, self, methods=None if self._problem else ["POST"], include_in_schema=False)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Answer requests within the block; the end of it cancels those in progress."""
        try:
            yield
        finally:
            self._stop.set()
            if self._serving is not None:
                await self._serving

    async def _transport(self) -> "StreamableHTTPSessionManager":
        """Return the transport, started by the first request."""
        if self._sessions is None:
            self._sessions = asyncio.get_running_loop().create_future()
            self._serving = asyncio.create_task(self._serve(self._sessions), name="mcp")
        return await asyncio.shield(self._sessions)

    async def _serve(self, started: "asyncio.Future[StreamableHTTPSessionManager]") -> None:
        try:
            sessions = await asyncio.to_thread(_sessions)
        except Exception as error:  # noqa: BLE001  (each request raises it)
            started.set_exception(error)
            return
        async with sessions.run():
            started.set_result(sessions)
            await self._stop.wait()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if self._problem:
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

        sessions = await self._transport()
        await sessions.handle_request(scope, receive_small, send)


def _sessions() -> "StreamableHTTPSessionManager":
    """Return the transport of the MCP server."""
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
