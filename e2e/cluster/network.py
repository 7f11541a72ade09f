"""The network of Services, for a control plane on loopback that has none.

The API server is told to reach Services through a proxy (its egress selector, HTTP CONNECT on a Unix socket), which
is how managed clusters do it. That proxy is here: it knows the cluster IPs of the Services it was told of, and
passes each connection to one of the processes behind them that is ready, as kube-proxy would. Webhook configurations
that name a Service thus work as they stand. `listen` gives a Service an address on 127.0.0.1 for everybody else.

Written by hand because which process answers must change at a given moment, without root and without a network.
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
_KNOWN_FOR_S = 0.3


@dataclass
class Backend:
    """A process behind a Service: its port on 127.0.0.1, and whether it is ready."""

    port: int
    ready: Callable[[], bool]
    _asked: float = field(default=-1.0, repr=False)
    _answer: bool = field(default=False, repr=False)

    def is_ready(self) -> bool:
        """What `ready` said a moment ago, or says now."""
        if time.monotonic() - self._asked > _KNOWN_FOR_S:
            self._answer, self._asked = self.ready(), time.monotonic()
        return self._answer


class Network:
    """Connections to Services by cluster IP (for the API server) or on ports of 127.0.0.1."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self._background = Background("services")
        self._behind: dict[str, list[Backend]] = {}
        self._turns = itertools.count()
        self._servers: list[asyncio.Server] = []
        self._tunnels: set[asyncio.Future[Any]] = set()
        self._servers.append(self._background.call(self._serve_connects()))

    def route(self, address: str, backends: list[Backend]) -> None:
        """From now on connections to `address` (`10.0.0.7:443`) go to one of these that is ready."""
        self._behind[address] = backends

    def listen(self, address: str) -> int:
        """A port of 127.0.0.1 that leads to the Service."""
        server = self._background.call(self._listen(address))
        self._servers.append(server)
        port: int = server.sockets[0].getsockname()[1]
        return port

    def close(self) -> None:
        """End all connections."""
        for server in self._servers:
            self._background.soon(server.close)
        self._background.close()

    async def _serve_connects(self) -> asyncio.Server:
        return await asyncio.start_unix_server(self._connect, str(self.socket))

    async def _listen(self, address: str) -> asyncio.Server:
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._tunnel(address, reader, writer)

        return await asyncio.start_server(serve, "127.0.0.1", 0)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """`CONNECT 10.0.0.7:443 HTTP/1.1`, as the API server asks."""
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
            behind_reader, behind = await self._dial(address)
        except OSError as reason:
            if greeting:
                writer.write(f"HTTP/1.1 502 Bad Gateway\r\n\r\n{reason}".encode())
            writer.close()
            return
        writer.write(greeting)
        # A tunnel in which nobody speaks is known to nobody but itself, and would be collected as garbage.
        passing = asyncio.gather(_pass(reader, behind), _pass(behind_reader, writer))
        self._tunnels.add(passing)
        try:
            with contextlib.suppress(OSError):
                await passing
        finally:
            self._tunnels.discard(passing)
            for each in (writer, behind):
                each.transport.abort()

    async def _dial(self, address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        backends = self._behind.get(address, [])
        first = next(self._turns) % (len(backends) or 1)
        for backend in backends[first:] + backends[:first]:
            if await asyncio.to_thread(backend.is_ready):
                return await asyncio.open_connection("127.0.0.1", backend.port)
        raise ConnectionRefusedError(f"nobody is ready behind {address}")


async def _pass(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    try:
        while data := await source.read(_CHUNK):
            sink.write(data)
            await sink.drain()
    finally:
        with contextlib.suppress(OSError):
            if sink.can_write_eof():
                sink.write_eof()
