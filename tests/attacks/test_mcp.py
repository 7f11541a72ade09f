"""Callers with a token at `/mcp`: nothing that they send costs much memory, stays open, or keeps others out."""

import asyncio
import json
import time
from itertools import repeat

from tests.attacks.conftest import Target
from tests.attacks.target import STALLS, VIEWERS
from tests.attacks.test_connections import BAD_REQUEST, CHUNKED, CLOSE, MB

from gpufleet.server.routes.platform.mcp import MAX_BODY_BYTES

ACCEPT = (b"Accept: application/json, text/event-stream", b"Content-Type: application/json")
CALL = json.dumps(
    {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "fleet_overview", "arguments": {}},
    }
).encode()


def head(target: Target, *headers: bytes, viewer: int = 0) -> bytes:
    token = b"Authorization: Bearer " + VIEWERS[viewer].encode()
    return target.head(token, *ACCEPT, *headers)


async def test_a_call_is_answered(mcp: Target) -> None:
    answer = await mcp.exchange(head(mcp, CLOSE, b"Content-Length: %d" % len(CALL)), CALL)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b'"totalNodes"' in answer


async def test_endless_trailers_after_a_call_end_the_connection(mcp: Target) -> None:
    body = b"%x\r\n%b\r\n0\r\n" % (len(CALL), CALL)
    async with mcp.watched():
        sent = repeat(b"X1: y\r\n" * 9000, 60 * MB // 63000)
        answer = await mcp.exchange(head(mcp, CHUNKED), body, *sent)
    assert answer == b"" or answer.startswith((*BAD_REQUEST, b"HTTP/1.1 200 "))


async def test_an_endless_head_of_a_call_ends_the_connection(mcp: Target) -> None:
    for piece in (b"X1: y\r\n" * 9000, b"x" * 63000):
        async with mcp.watched():
            sent = repeat(piece, 60 * MB // len(piece))
            answer = await mcp.exchange(head(mcp)[:-2] + b"X: ", *sent)
        assert answer == b"" or answer.startswith(BAD_REQUEST)


async def test_half_a_head_of_a_call_is_closed(mcp: Target) -> None:
    for pieces in ([head(mcp)[:-2]], [head(mcp)[:-2], *[b"X: y\r\n"] * 100]):
        started = time.monotonic()
        await mcp.exchange(*pieces, pause=0.1, seconds=4 * STALLS.head)
        assert time.monotonic() - started < 3 * STALLS.head


async def test_a_body_that_does_not_end_is_refused_at_the_limit(mcp: Target) -> None:
    chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    async with mcp.watched():
        answer = await mcp.exchange(head(mcp, CHUNKED), *repeat(chunk, 10_000), pause=0.001)
        declared = await mcp.exchange(
            head(mcp, b"Content-Length: %d" % (2 * MAX_BODY_BYTES)), b"x" * 2 * MAX_BODY_BYTES
        )
    assert answer.startswith(b"HTTP/1.1 413 "), answer[:100]
    assert declared.startswith(b"HTTP/1.1 413 "), declared[:100]


async def test_512_slow_bodies_of_one_caller_do_not_turn_others_away(mcp: Target) -> None:
    length = b"Content-Length: %d" % len(CALL)
    async with mcp.watched():
        slow = [asyncio.create_task(mcp.exchange(head(mcp, length, CLOSE), CALL[:-1])) for _ in range(512)]
        await asyncio.sleep(0.2)
        other = await mcp.exchange(head(mcp, length, CLOSE, viewer=1), CALL)
        answers = await asyncio.gather(*slow)
    assert other.startswith(b"HTTP/1.1 200 ")
    assert any(answer.startswith(b"HTTP/1.1 429 ") for answer in answers)
    assert all(answer.startswith((b"HTTP/1.1 429 ", b"HTTP/1.1 503 ")) for answer in answers)


async def test_streams_can_not_be_opened(mcp: Target) -> None:
    request = b"GET /mcp HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer %b\r\n" % VIEWERS[0].encode()
    answer = await mcp.exchange(request + b"Accept: text/event-stream\r\nConnection: close\r\n\r\n")
    assert answer.startswith(b"HTTP/1.1 405 ")
