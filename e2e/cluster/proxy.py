"""A TCP proxy in front of the API server that cuts or stalls connections.

Written by hand because a fault must happen at a given moment and only on the connections of one client. It runs in
its own thread, so that tests with and without an event loop can use it.
"""

import asyncio
import socket
import struct
from types import TracebackType
from typing import Self

from e2e.cluster.background import Background

_CHUNK = 64 * 1024


class Proxy:
    """Forwards bytes to the port `target`; listens on `port` of 127.0.0.1."""

    def __init__(self, target: int) -> None:
        self._target = target
        self._background = Background("proxy")
        self._open: set[asyncio.StreamWriter] = set()
        self._accepted = 0
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._server = self._background.call(self._listen(0))
        self.port: int = self._server.sockets[0].getsockname()[1]

    @property
    def url(self) -> str:
        """The address of the API server through the proxy."""
        return f"https://127.0.0.1:{self.port}"

    @property
    def connections(self) -> int:
        """The number of connections accepted so far."""
        return self._accepted

    def cut(self) -> None:
        """Reset every connection and refuse new ones."""
        self._background.call(self._refuse())
        self.drop()

    def drop(self) -> None:
        """Reset every connection; new ones work."""
        self._background.call(self._reset())

    def stall(self) -> None:
        """Accept connections and bytes but forward nothing, like a network that drops packets."""
        self._background.call_function(self._flowing.clear)

    def heal(self) -> None:
        """End every fault and forward the bytes that were held back while stalled."""
        self._background.call_function(self._flowing.set)
        if not self._server.is_serving():
            self._server = self._background.call(self._listen(self.port))

    def close(self) -> None:
        """Reset every connection and stop."""
        if self._background.running:
            self.cut()
            self._background.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def _listen(self, port: int) -> asyncio.Server:
        return await asyncio.start_server(self._serve, "127.0.0.1", port)

    async def _refuse(self) -> None:
        self._server.close()

    async def _reset(self) -> None:
        for writer in list(self._open):
            if not writer.transport.is_closing():
                # With a linger time of zero the kernel sends RST instead of FIN.
                raw = writer.get_extra_info("socket")
                raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._accepted += 1
        try:
            upstream_reader, upstream = await asyncio.open_connection("127.0.0.1", self._target)
        except OSError:
            writer.transport.abort()
            return
        self._open |= {writer, upstream}
        try:
            await asyncio.gather(self._forward(reader, upstream), self._forward(upstream_reader, writer))
        finally:
            self._open -= {writer, upstream}
            writer.transport.abort()
            upstream.transport.abort()

    async def _forward(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        try:
            while data := await source.read(_CHUNK):
                await self._flowing.wait()
                sink.write(data)
                await sink.drain()
            if sink.can_write_eof():
                sink.write_eof()
        except OSError:
            sink.transport.abort()
