"""HTTP as it comes off the wire: uvicorn's protocol, with bounds on what a client can make us hold.

httptools collects a request's head in memory however long it grows and however slowly it comes,
and uvicorn answers what it can't parse in plain text. Here a head has a size, a number of headers
and a time within which it must be complete, and every refusal has the family's envelope.
"""

from asyncio import AbstractEventLoop, TimerHandle, Transport
from http import HTTPStatus
from typing import Any, cast

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from gpufleet.api.edge import MAX_URL_BYTES
from gpufleet.api.families import family_of
from gpufleet.api.tracing import trace_headers, trace_id_from

MAX_HEADERS = 100
MAX_HEAD_BYTES = 32 * 1024
HEAD_SECONDS = 20.0


class HeadWithBody:
    """A transport on which an answer's head waits for the body, so that both leave in one system call.

    uvicorn writes them one after the other, in the same turn of the loop where the body is there; a head
    that is alone at the turn's end (a stream's) leaves without it.
    """

    def __init__(self, transport: Transport, loop: AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._head = b""

    def write(self, data: bytes) -> None:
        """Send `data`, or keep it for a moment if it is a head."""
        if self._head:
            head, self._head = self._head, b""
            self._transport.writelines((head, data))
        elif data.startswith(b"HTTP/1.1 ") and data.endswith(b"\r\n\r\n"):
            self._head = data
            self._loop.call_soon(self._send_head)
        else:
            self._transport.write(data)

    def close(self) -> None:
        """Close the connection when all is sent."""
        self._send_head()
        self._transport.close()

    def _send_head(self) -> None:
        if self._head:
            head, self._head = self._head, b""
            self._transport.write(head)

    def __getattr__(self, name: str) -> Any:
        # What uvicorn asks a transport for besides, looked up once.
        found = getattr(self._transport, name)
        setattr(self, name, found)
        return found


class BoundedProtocol(HttpToolsProtocol):
    """One connection."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self.url = b""
        self._refusal: tuple[int, str] | None = None
        self._reading_head = True
        self._head_bytes = 0
        self._timer: TimerHandle | None = None

    def connection_made(self, transport: Transport) -> None:  # type: ignore[override]
        """Expect a request within the time that one may take to arrive."""
        super().connection_made(cast(Transport, HeadWithBody(transport, self.loop)))
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget the connection."""
        self._forget_timer()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse what came, and stop a head that has grown too long before it is complete."""
        self._head_bytes += len(data)
        super().data_received(data)
        if self._reading_head and self._head_bytes and not self.transport.is_closing():
            if self._head_bytes > MAX_HEAD_BYTES:
                self._answer(*self._too_long())
            elif self._timer is None:
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
        self._timer = self.loop.call_later(HEAD_SECONDS, self._too_slow)

    def _too_slow(self) -> None:
        self._timer = None
        if not self._reading_head or self.transport.is_closing():
            return
        if self.cycle is not None and not self.cycle.response_complete:
            return  # the answer before it is still on its way
        if self._head_bytes:
            self._answer(408, f"the request's head did not arrive within {HEAD_SECONDS:g} s")
        else:
            self.transport.close()

    def _forget_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

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
