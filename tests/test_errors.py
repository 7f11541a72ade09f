"""What people read when something can't be reached."""

import asyncio
import ssl
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from gpufleet.errors import why_unreachable
from kubelite.contract.webhooks import endpoint


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as opened:
        yield opened


async def _trouble(session: aiohttp.ClientSession, url: str) -> str:
    with pytest.raises((aiohttp.ClientError, OSError)) as raised:
        async with session.get(url):
            pass
    return why_unreachable(raised.value)


async def test_a_port_that_nobody_serves(session: aiohttp.ClientSession) -> None:
    assert await _trouble(session, "http://127.0.0.1:1") == "Connection refused"


async def test_a_name_that_is_none(session: aiohttp.ClientSession) -> None:
    told = await _trouble(session, "http://no-such-host.invalid")
    assert told in ("Name or service not known", "Temporary failure in name resolution")


async def test_a_certificate_that_nobody_trusts(session: aiohttp.ClientSession) -> None:
    async with endpoint(lambda _request: {}) as webhook:
        assert await _trouble(session, webhook.url) == "its certificate is not trusted: self-signed certificate"


async def test_tls_asked_of_a_server_without(session: aiohttp.ClientSession) -> None:
    def greet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello\r\n")
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1") as server:
        told = await _trouble(session, f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    assert told == "TLS failed: wrong version number"


async def test_a_socket_that_is_not_there() -> None:
    with tempfile.TemporaryDirectory() as folder:
        connector = aiohttp.UnixConnector(str(Path(folder) / "none.sock"))
        async with aiohttp.ClientSession(connector=connector) as session:
            assert await _trouble(session, "http://engine/") == "No such file or directory"


def test_what_says_nothing_is_named_by_its_kind() -> None:
    assert why_unreachable(ConnectionError()) == "ConnectionError"
    assert "odd" in why_unreachable(ssl.SSLError("odd"))
