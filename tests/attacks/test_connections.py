"""Clients without login on real sockets: nothing that they send costs much memory or stays open."""

import asyncio
import socket
import time
from itertools import repeat

from tests.attacks.conftest import Target
from tests.attacks.target import BODY_SECONDS, STALLS, TOKENS

BAD_REQUEST = (b"HTTP/1.1 400 ", b"HTTP/1.0 400 ", b"HTTP/1.1 431 ")
CHUNKED = b"Transfer-Encoding: chunked"
CLOSE = b"Connection: close"
MB = 1024 * 1024


async def test_endless_trailers_end_the_connection(target: Target) -> None:
    async with target.watched():
        sent = repeat(b"X1: y\r\n" * 9000, 60 * MB // 63000)
        answer = await target.exchange(target.head(CHUNKED), b"0\r\n", *sent)
    # 408 where the body's deadline comes first
    assert answer == b"" or answer.startswith((*BAD_REQUEST, b"HTTP/1.1 401 ", b"HTTP/1.1 408 "))


async def test_an_endless_head_ends_the_connection(target: Target) -> None:
    for piece in (b"X1: y\r\n" * 9000, b"x" * 63000):
        async with target.watched():
            sent = repeat(piece, 60 * MB // len(piece))
            answer = await target.exchange(b"GET /livez HTTP/1.1\r\nHost: a\r\nX: ", *sent)
        assert answer == b"" or answer.startswith(BAD_REQUEST)


async def test_a_complete_head_over_32_kib_is_refused(target: Target) -> None:
    head = b"GET /livez HTTP/1.1\r\nHost: a\r\nConnection: close\r\n%b\r\n"
    many_fields = b"".join(b"X-%d: %b\r\n" % (n, b"a" * 4000) for n in range(10))
    for fields in (b"X: " + b"a" * 40_000 + b"\r\n", many_fields):
        answer = await target.exchange(head % fields)
        assert answer.startswith(BAD_REQUEST), answer
    accepted = await target.exchange(head % (b"X: " + b"a" * 7000 + b"\r\n"))
    assert accepted.startswith(b"HTTP/1.1 200 ")


async def test_more_than_100_headers_are_refused(target: Target) -> None:
    def head(count: int) -> bytes:
        fields = b"".join(b"X-%d: y\r\n" % n for n in range(count))
        return b"GET /livez HTTP/1.1\r\nHost: a\r\nConnection: close\r\n" + fields + b"\r\n"

    assert (await target.exchange(head(98))).startswith(b"HTTP/1.1 200 ")
    assert (await target.exchange(head(99))).startswith(BAD_REQUEST)


async def test_a_trailer_is_not_a_header(api: Target) -> None:
    token = TOKENS.issue("a").encode()
    trailer = b"0\r\nAuthorization: Bearer " + token + b"\r\n\r\n"
    refused = await api.exchange(api.head(CHUNKED, CLOSE), b"2\r\n[]\r\n", trailer)
    assert refused.startswith(b"HTTP/1.1 401 ")
    admitted = await api.exchange(
        api.head(CHUNKED, CLOSE, b"Authorization: Bearer " + token),
        b"2\r\n[]\r\n0\r\nAuthorization: Bearer wrong\r\n\r\n",
    )
    assert admitted.startswith(b"HTTP/1.1 200 ")


async def test_a_trailer_of_the_listener_is_not_a_header(listener: Target) -> None:
    answer = await listener.exchange(listener.head(CHUNKED, CLOSE), b"2\r\n[]\r\n0\r\nX-Evil: 1\r\n\r\n")
    assert b" 200 " in answer
    assert b"Evil" not in answer


async def test_a_slow_head_and_a_silent_connection_are_closed(target: Target) -> None:
    complete = b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n"
    for pieces in (
        [],
        [b"GET /"],
        [b"GET /livez HTTP/1.1\r\nHost: a\r\n", *[b"X: y\r\n"] * 100],
        [complete, complete[:-2], *[b"X: y\r\n"] * 100],
    ):
        started = time.monotonic()
        await target.exchange(*pieces, pause=0.1, seconds=4 * STALLS.head)
        assert time.monotonic() - started < 3 * STALLS.head


async def test_a_kept_connection_survives_longer_than_a_slow_head(listener: Target) -> None:
    complete = b"GET /livez HTTP/1.1\r\nHost: a\r\n\r\n"
    reader, writer = await asyncio.open_connection("127.0.0.1", listener.port)
    for _ in range(2):
        writer.write(complete)
        assert (await reader.readuntil(b"ok\n")).startswith(b"HTTP/1.1 200 ")
        await asyncio.sleep(2 * STALLS.head)
    writer.close()


async def test_a_slow_body_ends(target: Target) -> None:
    headers = [b"Content-Length: 100000", b"Content-Type: application/json"]
    if target.token:
        headers.append(b"Authorization: Bearer " + target.token)
    started = time.monotonic()
    answer = await target.exchange(target.head(*headers), *repeat(b"[", 100), pause=0.1)
    assert answer.startswith((b"HTTP/1.1 408 ", b"HTTP/1.1 503 "))
    assert time.monotonic() - started < BODY_SECONDS + 3


async def test_reading_stops_after_a_refusal(target: Target) -> None:
    """A body is not read for long after a 401 or 413: the sender notices that the connection ends."""
    chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    async with target.watched():
        started = time.monotonic()
        answer = await target.exchange(target.head(CHUNKED), *repeat(chunk, 40_000), pause=0.001)
    assert answer.startswith((b"HTTP/1.1 401 ", b"HTTP/1.1 413 ")), answer[:100]
    assert time.monotonic() - started < 6


async def test_a_refusal_reaches_a_client_that_sends_a_whole_body_first(api: Target) -> None:
    body = b"x" * 200_000
    answer = await api.exchange(api.head(b"Content-Length: %d" % len(body)), body)
    assert answer.startswith(b"HTTP/1.1 401 ")
    assert b"connection: close" in answer.lower()


async def test_a_client_that_reads_nothing_is_closed(target: Target) -> None:
    loop = asyncio.get_running_loop()
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.setblocking(False)
        await loop.sock_connect(client, ("127.0.0.1", target.port))
        await loop.sock_sendall(client, b"GET %b HTTP/1.1\r\nHost: a\r\n\r\n" % target.large)
        started = time.monotonic()
        while _is_connected(target, client):
            await asyncio.sleep(0.1)
            assert time.monotonic() - started < 3 * STALLS.write


async def test_512_slow_bodies_of_one_token_do_not_turn_others_away(api: Target) -> None:
    def head(workload: str) -> bytes:
        token = TOKENS.issue(workload).encode()
        fields = (b"Authorization: Bearer " + token, b"Content-Type: application/json", CLOSE)
        return api.head(b"Content-Length: 2", *fields)

    async with api.watched():
        slow = [asyncio.create_task(api.exchange(head("slow"), b"[")) for _ in range(512)]
        await asyncio.sleep(0.5)
        other = await api.exchange(head("other"), b"[]")
        answers = await asyncio.gather(*slow)
    assert other.startswith(b"HTTP/1.1 200 ")
    refused = [answer for answer in answers if answer.startswith(b"HTTP/1.1 429 ")]
    assert len(refused) == 512 - 128
    assert all(answer.startswith((b"HTTP/1.1 429 ", b"HTTP/1.1 503 ")) for answer in answers)


def _is_connected(target: Target, client: socket.socket) -> bool:
    local = client.getsockname()
    return any(
        connection.raddr == local and connection.status == "ESTABLISHED"
        for connection in target.process.net_connections()
    )
