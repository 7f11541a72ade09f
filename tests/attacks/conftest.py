"""Listeners in their own processes, a watch on their memory and liveness, and raw connections to them."""

import asyncio
import os
import ssl
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest
from tests.attacks.target import TOKENS, VIEWERS

MAX_RSS = 400 * 1024 * 1024
MAX_PROBE_SECONDS = 1.0


def max_probe_seconds() -> float:
    """Return the longest time for a probe: more than a second only if the machine has more to do than cores."""
    return MAX_PROBE_SECONDS * max(1.0, os.getloadavg()[0] / len(os.sched_getaffinity(0)))


@dataclass
class Target:
    """A listener that is attacked."""

    kind: str
    port: int
    process: psutil.Process
    post: bytes
    """Path of a POST route; on the API server it takes a login."""
    large: bytes
    """Path of a large response without login."""
    tls: ssl.SSLContext | None = None
    token: bytes = b""
    """A token that may call `post`."""

    @asynccontextmanager
    async def watched(self) -> AsyncIterator[None]:
        """Fail if, during the block, the process needs too much memory or probes are slow."""
        slowest = 0.0

        async def watch() -> None:
            nonlocal slowest
            while True:
                started = time.monotonic()
                answer = await self.exchange(
                    b"GET /livez HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
                )
                slowest = max(slowest, time.monotonic() - started)
                assert answer.startswith(b"HTTP/1.1 200 "), answer
                started = time.monotonic()
                answer = await self.exchange(
                    b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
                )
                slowest = max(slowest, time.monotonic() - started)
                assert answer.startswith((b"HTTP/1.1 200 ", b"HTTP/1.1 503 ")), answer
                await asyncio.sleep(0.05)

        watching = asyncio.create_task(watch())
        try:
            yield
            await asyncio.sleep(0.1)
        finally:
            done = watching.done()
            watching.cancel()
            await asyncio.wait([watching])
        if done:
            watching.result()
        rss = peak_rss(self.process.pid)
        assert rss < MAX_RSS, f"{rss >> 20} MB"
        assert slowest < max_probe_seconds()

    async def exchange(self, *pieces: bytes, pause: float = 0.0, seconds: float = 15.0) -> bytes:
        """Send `pieces` one by one; return what comes back until the server closes the connection."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port, ssl=self.tls)
        reading = asyncio.create_task(_read_all(reader))
        try:
            async with asyncio.timeout(seconds):
                try:
                    for piece in pieces:
                        if reading.done():
                            break
                        writer.write(piece)
                        await writer.drain()
                        await asyncio.sleep(pause)
                except ConnectionError:
                    pass
                return await reading
        finally:
            reading.cancel()
            writer.transport.abort()

    async def converse(self, sent: bytes, seconds: float = 10.0) -> bytes:
        """Send bytes and the end of the stream; return everything that comes back."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        try:
            async with asyncio.timeout(seconds):
                try:
                    writer.write(sent)
                    writer.write_eof()
                    await writer.drain()
                except (ConnectionError, OSError):
                    pass
                return await _read_all(reader)
        finally:
            writer.transport.abort()

    def head(self, *headers: bytes, path: bytes | None = None) -> bytes:
        """Return the head of a POST."""
        return b"\r\n".join((b"POST %b HTTP/1.1" % (path or self.post), b"Host: a", *headers, b"", b""))


def peak_rss(pid: int) -> int:
    """Return the largest resident memory that a process had since its start, in bytes."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


async def _read_all(reader: asyncio.StreamReader) -> bytes:
    received = b""
    try:
        while piece := await reader.read(65536):
            received += piece
    except ConnectionError:
        pass
    return received


def _run(kind: str, post: bytes, large: bytes) -> Iterator[Target]:
    with subprocess.Popen(
        [sys.executable, "-m", "tests.attacks.target", kind],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=Path(__file__).parents[2],
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield Target(kind, int(process.stdout.readline()), psutil.Process(process.pid), post, large)
        finally:
            process.stdin.close()
            try:
                process.wait(5)
            except subprocess.TimeoutExpired:
                process.kill()


@pytest.fixture(scope="module")
def api() -> Iterator[Target]:
    token = TOKENS.issue("a").encode()
    for target in _run("api", b"/api/workloads/a/trainingPerformance", b"/docs/large"):
        yield replace(target, token=token)


@pytest.fixture(scope="module")
def listener() -> Iterator[Target]:
    yield from _run("listener", b"/echo", b"/metrics")


@pytest.fixture(scope="module")
def mcp(api: Target) -> Target:
    """The API server again, attacked on its path for AI assistants."""
    return replace(api, post=b"/mcp", token=VIEWERS[0].encode())


@pytest.fixture(params=["api", "listener", "mcp"])
def target(request: pytest.FixtureRequest) -> Target:
    found: Target = request.getfixturevalue(request.param)
    return found
