"""A proxy that sends answers as a network does: in segments of 1,448 bytes, each on its own."""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

SEGMENT = 1448


@asynccontextmanager
async def segmented(host: str, port: int, pause: float = 0.001) -> AsyncIterator[str]:
    """Yield the URL of a proxy of an address; it waits `pause` seconds after each segment."""
    connections: set[asyncio.Task[None]] = set()

    async def serve(from_client: asyncio.StreamReader, to_client: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connections.add(task)
        to_client.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        from_server, to_server = await asyncio.open_connection(host, port)
        requests = asyncio.create_task(_copy(from_client, to_server, 65536, 0.0))
        try:
            await _copy(from_server, to_client, SEGMENT, pause)
        finally:
            requests.cancel()
            await asyncio.wait([requests])
            for writer in (to_server, to_client):
                writer.transport.abort()
            connections.remove(task)

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as proxy:
        yield f"http://127.0.0.1:{proxy.sockets[0].getsockname()[1]}"
        for task in list(connections):
            task.cancel()
        await asyncio.gather(*connections, return_exceptions=True)


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, size: int, pause: float) -> None:
    with suppress(ConnectionError):
        while piece := await reader.read(size):
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(pause)
        writer.write_eof()
