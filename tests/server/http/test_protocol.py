"""What leaves a connection, and in how many pieces."""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, cast

import pytest
import uvicorn
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
from uvicorn.server import ServerState

from gpufleet.server.http.protocol import HEAD_SECONDS, UNREAD_SECONDS, BoundedProtocol, send_at_once
from gpufleet.server.http.request_context import AT_ONCE

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

    def is_closing(self) -> bool:
        return False


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


async def test_who_asks_before_it_sends_is_not_told_to_go_on_after_the_answer() -> None:
    exchange = Exchange()
    exchange.cycle.waiting_for_100_continue = True
    assert send_at_once(exchange.cycle, 200, HEADERS, b"ok")
    assert await exchange.cycle.receive() == {"type": "http.disconnect"}
    assert exchange.wire.calls == [HEAD + b"ok"]


class Clock:
    """A loop whose timers go off when told to."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[asyncio.TimerHandle] = []

    def create_task(self, coroutine: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        return asyncio.get_running_loop().create_task(coroutine)

    def time(self) -> float:
        return self.now

    def call_later(self, seconds: float, work: Callable[..., None], *words: object) -> asyncio.TimerHandle:
        loop = asyncio.get_running_loop()
        self.timers.append(asyncio.TimerHandle(self.now + seconds, work, words, loop))
        return self.timers[-1]

    def _timer_handle_cancelled(self, timer: asyncio.TimerHandle) -> None:
        pass

    def advance(self, seconds: float) -> None:
        self.now += seconds
        for timer in [timer for timer in self.timers if timer.when() <= self.now]:
            self.timers.remove(timer)
            if not timer.cancelled():
                timer._run()


class Line(Wire):
    """A connection: what is written, and whether it still stands."""

    def __init__(self) -> None:
        super().__init__()
        self.unsent = 0
        self.ended = ""

    def get_extra_info(self, _name: str) -> None:
        return None

    def is_closing(self) -> bool:
        return bool(self.ended)

    def close(self) -> None:
        self.ended = self.ended or "closed"

    def abort(self) -> None:
        self.ended = "aborted"

    def get_write_buffer_size(self) -> int:
        return self.unsent


class Connection:
    """A connection to a server that answers each request at once, without a look at its body."""

    def __init__(self) -> None:
        self.clock, self.line = Clock(), Line()
        config = uvicorn.Config(cast(Any, self._answer), interface="asgi3", log_config=None)
        self.protocol = BoundedProtocol(config, ServerState(), {}, _loop=self.clock)
        self.protocol.connection_made(cast(asyncio.Transport, self.line))

    async def send(self, data: bytes) -> None:
        self.protocol.data_received(data)
        for _ in range(5):
            await asyncio.sleep(0)

    async def _answer(self, scope: Any, _receive: object, _send: object) -> None:
        scope["extensions"][AT_ONCE](200, HEADERS, b"ok")


async def test_a_body_that_comes_after_its_answer_leaves_no_connection_open_for_good() -> None:
    connection = Connection()
    await connection.send(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\n")
    assert connection.line.calls == [HEAD.replace(b"date: today\r\n", b"") + b"ok"]
    await connection.send(b"late")
    connection.clock.advance(HEAD_SECONDS)
    assert connection.line.ended


async def test_a_body_that_trickles_in_after_its_answer_ends_in_time() -> None:
    connection = Connection()
    await connection.send(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 1000\r\n\r\n")
    for _ in range(int(HEAD_SECONDS) + 1):
        await connection.send(b"x")
        connection.clock.advance(1)
    assert connection.line.ended


async def test_a_connection_goes_on_after_a_late_body() -> None:
    connection = Connection()
    await connection.send(b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 4\r\n\r\n")
    await connection.send(b"late")
    connection.clock.advance(HEAD_SECONDS - 1)
    await connection.send(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
    assert len(connection.line.calls) == 2
    connection.clock.advance(1)
    assert not connection.line.ended


async def test_a_client_that_reads_nothing_is_given_up_and_a_slow_one_is_not() -> None:
    connection = Connection()
    connection.line.unsent = 3_000_000
    connection.protocol.pause_writing()
    for left in (2_000_000, 1_000_000):
        connection.clock.advance(UNREAD_SECONDS - 1)
        connection.line.unsent = left
        connection.clock.advance(1)
        assert connection.line.ended != "aborted"
    connection.clock.advance(UNREAD_SECONDS)
    assert connection.line.ended == "aborted"


async def test_a_client_that_has_caught_up_stays() -> None:
    connection = Connection()
    connection.line.unsent = 3_000_000
    connection.protocol.pause_writing()
    connection.clock.advance(UNREAD_SECONDS - 1)
    connection.line.unsent = 0
    connection.protocol.resume_writing()
    connection.clock.advance(HEAD_SECONDS)
    assert connection.line.ended != "aborted"
