"""A listening server with the cluster that two teams share, and MCP clients over both transports."""

import asyncio
import socket
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager

import httpx2
import pytest
import uvicorn
from mcp import Client, StdioServerParameters
from mcp.client.streamable_http import streamable_http_client
from starlette.types import ASGIApp
from tests.server.scope.conftest import CALLERS, Gate, cluster, routes
from tests.waiting import wait_until

from gpufleet.server.app import Api, create_app
from gpufleet.server.auth.caller import Caller
from gpufleet.server.auth.permissions import LoginRefused
from gpufleet.server.http.routing import Route
from gpufleet.server.routes.platform.auth import auth_routes

__all__ = ["cluster", "routes"]  # fixtures

Connect = Callable[[str], AbstractAsyncContextManager[Client]]
"""Connects a client that has a token."""


class KnownCallers(Gate):
    """Admits the callers of the shared cluster; refuses other tokens."""

    async def authenticate(
        self, method: str, path: str, address: str, authorization: bytes | None, cookie: bytes | None = None
    ) -> Caller | None:
        scheme, _, token = (authorization or b"").partition(b" ")
        caller = CALLERS.get(token.decode()) if scheme.lower() == b"bearer" else None
        if caller is None:
            raise LoginRefused(401, "the token is not valid")
        return caller


@asynccontextmanager
async def listening(app: ASGIApp) -> AsyncIterator[str]:
    """Serve an app on loopback and yield its address."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="auto"))
        task = asyncio.create_task(server.serve(sockets=[sock]))
        await wait_until(lambda: server.started)
        try:
            yield f"http://127.0.0.1:{sock.getsockname()[1]}"
        finally:
            server.should_exit = True
            await task


@pytest.fixture
async def fleet(routes: list[Route]) -> AsyncIterator[str]:
    """The address of a gpufleet server with a login."""
    app = create_app(
        Api(
            routes=[*routes, *auth_routes(login=True, sign_in=None)],
            gate=KnownCallers(),
            cors_origins=["https://tools.example.com"],
            mcp=True,
            debug_counts={},
        )
    )
    async with listening(app) as address:
        yield address


@pytest.fixture(params=["stdio", "http"])
def connect(request: pytest.FixtureRequest, fleet: str) -> Connect:
    """A way to connect with a token: over stdio to the command, or over HTTP."""
    if request.param == "http":
        return lambda token: over_http(f"{fleet}/mcp", token)
    return lambda token: over_stdio(fleet, token)


@asynccontextmanager
async def over_http(address: str, token: str) -> AsyncIterator[Client]:
    headers = {"authorization": f"Bearer {token}"} if token else {}
    async with (
        httpx2.AsyncClient(headers=headers) as http,
        Client(streamable_http_client(address, http_client=http)) as client,
    ):
        yield client


@asynccontextmanager
async def over_stdio(server: str, token: str) -> AsyncIterator[Client]:
    command = ["-m", "gpufleet", "mcp", "--server", server]
    params = StdioServerParameters(command=sys.executable, args=command, env={"GPUFLEET_TOKEN": token})
    async with Client(params) as client:
        yield client
