"""Test the messages for failed connections."""

import asyncio
import ssl
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest

from gpufleet.errors import connection_problem
from kubelite.contract.webhooks import endpoint


@pytest.fixture
async def session() -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession() as opened:
        yield opened


async def _problem(session: aiohttp.ClientSession, url: str) -> str:
    with pytest.raises((aiohttp.ClientError, OSError)) as raised:
        async with session.get(url):
            pass
    return connection_problem(raised.value)


async def test_a_port_without_a_server(session: aiohttp.ClientSession) -> None:
    assert await _problem(session, "http://127.0.0.1:1") == "Connection refused"


async def test_an_unknown_host_name(session: aiohttp.ClientSession) -> None:
    problem = await _problem(session, "http://no-such-host.invalid")
    assert problem in ("Name or service not known", "Temporary failure in name resolution")


async def test_an_untrusted_certificate(session: aiohttp.ClientSession) -> None:
    async with endpoint(lambda _request: {}) as webhook:
        assert (
            await _problem(session, webhook.url) == "its certificate is not trusted: self-signed certificate"
        )


async def test_tls_to_a_server_without_tls(session: aiohttp.ClientSession) -> None:
    def greet(_reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"hello\r\n")
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1") as server:
        problem = await _problem(session, f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    assert problem == "TLS failed: wrong version number"


async def test_a_missing_socket() -> None:
    with tempfile.TemporaryDirectory() as folder:
        connector = aiohttp.UnixConnector(str(Path(folder) / "none.sock"))
        async with aiohttp.ClientSession(connector=connector) as session:
            assert await _problem(session, "http://engine/") == "No such file or directory"


def test_an_error_without_text_is_named_by_its_type() -> None:
    assert connection_problem(ConnectionError()) == "ConnectionError"
    assert "odd" in connection_problem(ssl.SSLError("odd"))
