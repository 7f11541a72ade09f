"""What leaves a connection, and in how many pieces."""

import asyncio
import logging
from collections.abc import Iterable
from typing import Any, cast

import pytest
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from gpufleet.api.protocol import send_at_once

HEADERS = [(b"content-type", b"text/plain"), (b"content-length", b"2")]
HEAD = b"HTTP/1.1 200 OK\r\ndate: today\r\ncontent-type: text/plain\r\ncontent-length: 2\r\n\r\n"


class Wire:
    """Notes each system call that a transport would make."""

    def __init__(self) -> None:
        self.calls: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.calls.append(data)

    def writelines(self, pieces: Iterable[bytes]) -> None:
        self.calls.append(b"".join(pieces))


class Exchange:
    """One request that waits for its answer on a `Wire`."""

    def __init__(self, method: str = "GET", *, keep_alive: bool = True) -> None:
        self.wire = Wire()
        self.ended = 0
        transport = cast(asyncio.Transport, self.wire)
        self.cycle = RequestResponseCycle(
            scope=cast(Any, {"type": "http", "method": method}),
            transport=transport,
            flow=FlowControl(transport),
            logger=logging.getLogger("test"),
            access_logger=logging.getLogger("test"),
            access_log=False,
            default_headers=[(b"date", b"today")],
            message_event=asyncio.Event(),
            expect_100_continue=False,
            keep_alive=keep_alive,
            on_response=self._end,
        )

    def _end(self) -> None:
        self.ended += 1


@pytest.mark.parametrize("body", [b"ok", b"ok" * 100_000], ids=["small", "large"])
async def test_head_and_body_leave_in_one_piece_and_the_exchange_is_over(body: bytes) -> None:
    exchange = Exchange()
    assert send_at_once(exchange.cycle, 200, HEADERS, body)
    assert (exchange.wire.calls, exchange.ended) == ([HEAD + body], 1)
    assert exchange.cycle.response_complete
    assert await exchange.cycle.receive() == {"type": "http.disconnect"}


async def test_an_answer_to_head_has_no_body() -> None:
    exchange = Exchange("HEAD")
    assert send_at_once(exchange.cycle, 200, HEADERS, b"ok")
    assert exchange.wire.calls == [HEAD]


@pytest.mark.parametrize("why", ["begun", "gone", "slow", "last"])
async def test_what_is_not_plain_is_left_to_uvicorn(why: str) -> None:
    exchange = Exchange(keep_alive=why != "last")
    exchange.cycle.response_started = why == "begun"
    exchange.cycle.disconnected = why == "gone"
    if why == "slow":
        exchange.cycle.flow.pause_writing()
    assert not send_at_once(exchange.cycle, 200, HEADERS, b"ok")
    assert (exchange.wire.calls, exchange.ended) == ([], 0)


@pytest.mark.parametrize("value", [b"a\r\nset-cookie: b", b"a\nb", b"a\r\n"])
async def test_a_header_with_a_line_break_is_not_sent(value: bytes) -> None:
    exchange = Exchange()
    with pytest.raises(ValueError, match="line break"):
        send_at_once(exchange.cycle, 200, [*HEADERS, (b"x-note", value)], b"ok")
    assert (exchange.wire.calls, exchange.cycle.response_started) == ([], False)
