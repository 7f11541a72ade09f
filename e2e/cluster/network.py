"""A network of Services for a control plane on loopback.

The API server reaches Services through a proxy (its egress selector, HTTP CONNECT on a Unix socket), as in managed
clusters. This module is that proxy: it maps cluster IPs to local processes and forwards each connection to a ready
one, as kube-proxy would. So webhook configurations that name a Service work unchanged. `listen` gives a Service a
port on 127.0.0.1 for all other clients.

Written by hand because tests change the backends at a given moment, without root and without a real network.
"""

import asyncio
import contextlib
import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from e2e.cluster.background import Background

_CHUNK = 64 * 1024
_READY_CACHE_S = 0.3


@dataclass
class Backend:
    """A process behind a Service: its port on 127.0.0.1 and its readiness check."""

    port: int
    ready: Callable[[], bool]
    _checked_at: float = field(default=-1.0, repr=False)
    _was_ready: bool = field(default=False, repr=False)

    def is_ready(self) -> bool:
        """Return whether it is ready, from a short cache."""
        if time.monotonic() - self._checked_at > _READY_CACHE_S:
            self._was_ready, self._checked_at = self.ready(), time.monotonic()
        return self._was_ready


class Network:
    """Connections to Services by cluster IP (for the API server) or on ports of 127.0.0.1."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self._background = Background("services")
        self._backends: dict[str, list[Backend]] = {}
        self._turns = itertools.count()
        self._servers: list[asyncio.Server] = []
        self._tunnels: set[asyncio.Future[Any]] = set()
        self._servers.append(self._background.call(self._serve_connects()))

    def route(self, address: str, backends: list[Backend]) -> None:
        """Forward connections to `address` (`10.0.0.7:443`) to a ready one of `backends` from now on."""
        self._backends[address] = backends

    def listen(self, address: str) -> int:
        """Return a port of 127.0.0.1 that leads to the Service."""
        server = self._background.call(self._listen(address))
        self._servers.append(server)
        port: int = server.sockets[0].getsockname()[1]
        return port

    def close(self) -> None:
        """Close all connections."""
        for server in self._servers:
            self._background.call_function(server.close)
        self._background.close()

    async def _serve_connects(self) -> asyncio.Server:
        return await asyncio.start_unix_server(self._connect, str(self.socket))

    async def _listen(self, address: str) -> asyncio.Server:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._tunnel(address, reader, writer)

        return await asyncio.start_server(serve, "127.0.0.1", 0)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer `CONNECT 10.0.0.7:443 HTTP/1.1` of the API server."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()
            return
        await self._tunnel(head.split(b" ")[1].decode(), reader, writer, b"HTTP/1.1 200 OK\r\n\r\n")

    async def _tunnel(
        self, address: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, greeting: bytes = b""
    ) -> None:
        try:
            backend_reader, backend = await self._dial(address)
        except OSError as reason:
            if greeting:
                writer.write(f"HTTP/1.1 502 Bad Gateway\r\n\r\n{reason}".encode())
            writer.close()
            return
        writer.write(greeting)
        # Without a reference, an idle tunnel would be garbage-collected.
        tunnel = asyncio.gather(_forward(reader, backend), _forward(backend_reader, writer))
        self._tunnels.add(tunnel)
        try:
            with contextlib.suppress(OSError):
                await tunnel
        finally:
            self._tunnels.discard(tunnel)
            for each in (writer, backend):
                each.transport.abort()

    async def _dial(self, address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        backends = self._backends.get(address, [])
        first = next(self._turns) % (len(backends) or 1)
        for backend in backends[first:] + backends[:first]:
            if await asyncio.to_thread(backend.is_ready):
                return await asyncio.open_connection("127.0.0.1", backend.port)
        raise ConnectionRefusedError(f"no ready backend of {address}")


async def _forward(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(_CHUNK):
            sink.write(data)
            await sink.drain()
    finally:
        with contextlib.suppress(OSError):
            if sink.can_write_eof():
                sink.write_eof()
