"""HTTP as it comes off the wire: uvicorn's protocol, with bounds on what a client can make us hold.

httptools collects a request's head in memory however long it grows and however slowly it comes,
and uvicorn answers what it can't parse in plain text. Here a head has a size, a number of headers
and a time within which it must be complete, and every refusal has the family's envelope.
"""

from asyncio import TimerHandle, Transport
from functools import partial
from http import HTTPStatus
from typing import Any

from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from gpufleet.server.http.envelopes import family_of
from gpufleet.server.http.middleware import MAX_URL_BYTES
from gpufleet.server.http.request_context import AT_ONCE, Header
from gpufleet.server.http.tracing import trace_headers, trace_id_from

MAX_HEADERS = 100
MAX_HEAD_BYTES = 32 * 1024
HEAD_SECONDS = 20.0
UNREAD_SECONDS = 60.0
"""How long a client may read nothing of what waits for it."""
_COPIED_BELOW_BYTES = 64 * 1024


def send_at_once(cycle: RequestResponseCycle, status: int, headers: list[Header], body: bytes) -> bool:
    """Send an answer in one piece and one system call; false where uvicorn's own way has to be taken.

    uvicorn sends head and body one after the other, and looks into every header for what a careless
    application may have put there; that took a fifth of the time of a small request.
    """
    if cycle.response_started or cycle.disconnected or cycle.flow.write_paused or not cycle.keep_alive:
        return False
    pieces = [STATUS_LINE[status]]
    for name, value in (*cycle.default_headers, *headers):
        pieces += (name, b": ", value, b"\r\n")
    pieces.append(b"\r\n")
    head = b"".join(pieces)
    if head.count(b"\n") != len(pieces) // 4 + 2:
        raise ValueError("a header of the answer has a line break in it")
    if cycle.scope["method"] == "HEAD":
        cycle.transport.write(head)
    elif len(body) < _COPIED_BELOW_BYTES:
        cycle.transport.write(head + body)
    else:
        cycle.transport.writelines((head, body))
    cycle.response_started = cycle.response_complete = True
    cycle.waiting_for_100_continue = False
    cycle.message_event.set()
    cycle.on_response()
    return True


class BoundedProtocol(HttpToolsProtocol):
    """One connection."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.url = b""
        self._refusal: tuple[int, str] | None = None
        self._reading_head = True
        self._head_bytes = 0
        self._timer: TimerHandle | None = None
        self._unread: TimerHandle | None = None

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Expect a request within the time that one may take to arrive."""
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._forget_timer()
        self._forget_unread()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what came, and stop a head that has grown too long before it is complete."""
        self._head_bytes += len(data)
        super().data_received(data)
        if self._reading_head and self._head_bytes:
            if self._head_bytes > MAX_HEAD_BYTES and not self.transport.is_closing():
                self._answer(*self._too_long())
            else:
                self._expect_head()
        elif self.cycle is not None and self.cycle.response_complete:
            # The rest of a body whose answer is out; uvicorn has ended its own wait, and for good.
            self._expect_head()

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._reading_head = True

    def on_headers_complete(self) -> None:
        """The head is complete: the edge sees to the address, here the headers are counted."""
        if len(self.headers) > MAX_HEADERS:
            self._refusal = (431, f"the request has more than {MAX_HEADERS} headers")
            # The parser hands this on as its own error, upon which uvicorn calls send_400_response.
            raise ValueError("too many headers")
        self._forget_timer()
        self._reading_head = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The body is complete; what follows is another request's head."""
        self._reading_head = True
        self._head_bytes = 0
        super().on_message_complete()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        cycle.scope["extensions"] = {AT_ONCE: partial(send_at_once, cycle)}  # type: ignore[dict-item]
        super()._start_asgi_task(cycle, app)

    def pause_writing(self) -> None:
        """The client reads more slowly than it is answered."""
        super().pause_writing()
        self._await_reading(self.transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        """It has caught up."""
        self._forget_unread()
        super().resume_writing()

    def send_400_response(self, msg: str) -> None:
        """Answer what could not be parsed or was refused while it was."""
        status, sentence = self._refusal or (400, "this is not valid HTTP")
        self._answer(status, sentence)

    def _unsupported_upgrade_warning(self) -> None:
        """Say nothing: uvicorn advises to install a library, for which there is no use here."""

    def _too_long(self) -> tuple[int, str]:
        if len(self.url) > MAX_URL_BYTES:
            return 414, f"the address is longer than {MAX_URL_BYTES:,} bytes"
        return 431, f"the request's head is longer than {MAX_HEAD_BYTES:,} bytes"

    def _expect_head(self) -> None:
        if self._timer is None and not self.transport.is_closing():
            self._timer = self.loop.call_later(HEAD_SECONDS, self._too_slow)

    def _too_slow(self) -> None:
        self._timer = None
        if self.transport.is_closing():
            return
        if self.cycle is not None and not self.cycle.response_complete:
            return  # the answer before it is still on its way
        if self._reading_head and self._head_bytes:
            self._answer(408, f"the request's head did not arrive within {HEAD_SECONDS:g} s")
        else:
            self.transport.close()

    def _forget_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _await_reading(self, unread: int) -> None:
        self._unread = self.loop.call_later(UNREAD_SECONDS, self._not_reading, unread)

    def _not_reading(self, unread: int) -> None:
        """Give up on a client that took nothing of it: its answer would stay in memory for good."""
        left = self.transport.get_write_buffer_size()
        if left < unread:
            self._await_reading(left)
        else:
            self.transport.abort()

    def _forget_unread(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def _answer(self, status: int, sentence: str) -> None:
        trace = trace_id_from(None)
        path = self.url.partition(b"?")[0].decode("latin-1")
        body = family_of(path).error(status, sentence, trace)
        lines = [b"HTTP/1.1 %d %b" % (status, HTTPStatus(status).phrase.encode())]
        headers = [
            *self.server_state.default_headers,
            (b"content-type", b"application/json"),
            (b"content-length", b"%d" % len(body)),
            (b"connection", b"close"),
            *trace_headers(trace),
        ]
        lines += [name + b": " + value for name, value in headers]
        self.transport.write(b"\r\n".join([*lines, b"", body]))
        self.transport.close()
