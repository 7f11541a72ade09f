"""One gRPC question over a unix socket, on HTTP/2 by the h2 library.

The agent asks the kubelet one small question every couple of minutes. The libraries of gRPC and protobuf would
serve, but bring 21 MiB and threads to every node, h2 1.3 MiB; a unary call is a POST whose body and answer
carry five bytes before the message, and whose result stands in the trailers. Each call has its own
connection, so that a kubelet that was restarted meanwhile needs no care. One that is about to end says
goodbye before the answers that it still owes, and h2 takes nothing after a goodbye: it is not shown
those that leave our call its answer.
"""

import asyncio
import contextlib
from pathlib import Path
from urllib.parse import unquote

from h2.config import H2Configuration
from h2.connection import H2Connection
from h2.errors import ErrorCodes
from h2.events import (
    ConnectionTerminated,
    DataReceived,
    Event,
    ResponseReceived,
    StreamEnded,
    StreamReset,
    TrailersReceived,
)
from h2.exceptions import ProtocolError

MOST_BYTES = 16 * 1024 * 1024
"""The longest answer that is taken, which is the longest that a kubelet sends."""
_HEAD = 5
"""Bytes before a message: whether it is compressed, and its length."""
_FRAME_HEAD, _LARGEST_FRAME, _GOODBYE = 9, 16 * 1024, 7
"""Of HTTP/2's frames: the bytes before each, the most that may follow them, and the kind that is called GOAWAY."""


class CallFailed(Exception):
    """The question has no answer; the text says why."""


async def ask(socket: Path, method: str, message: bytes, seconds: float = 5.0) -> bytes:
    """The answer of `method` (`/package.Service/Method`) to `message`, within so many seconds."""
    try:
        async with asyncio.timeout(seconds):
            reader, writer = await asyncio.open_unix_connection(socket)
            try:
                return await _converse(reader, writer, _Call(method, message, seconds))
            finally:
                writer.close()
                with contextlib.suppress(OSError):
                    await writer.wait_closed()
    except TimeoutError:
        raise CallFailed(f"no answer within {seconds:g} s") from None
    except OSError as error:
        raise CallFailed(error.strerror or str(error)) from error
    except ProtocolError as error:
        raise CallFailed(f"it does not speak HTTP/2 as it should: {error}") from error


async def _converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, call: "_Call") -> bytes:
    while not call.ended:
        writer.write(call.to_send())
        await writer.drain()
        data = await reader.read(64 * 1024)
        if not data:
            raise CallFailed("the connection was closed before the answer was whole")
        call.receive(data)
    return call.answer()


class _Call:
    """The state of one call, without input or output."""

    def __init__(self, method: str, message: bytes, seconds: float) -> None:
        self.ended = False
        self._headers: dict[str, str] = {}
        self._body = bytearray()
        self._unread = bytearray()
        self._http = H2Connection(H2Configuration(client_side=True, header_encoding="utf-8"))
        self._http.initiate_connection()
        self._stream = self._http.get_next_available_stream_id()
        headers = {
            ":method": "POST",
            ":scheme": "http",
            ":path": method,
            ":authority": "localhost",
            "te": "trailers",
            "content-type": "application/grpc",
            "grpc-timeout": f"{round(seconds * 1000)}m",
        }
        self._http.send_headers(self._stream, list(headers.items()))
        head = b"\0" + len(message).to_bytes(_HEAD - 1, "big")
        self._http.send_data(self._stream, head + message, end_stream=True)

    def to_send(self) -> bytes:
        return self._http.data_to_send()

    def receive(self, data: bytes) -> None:
        for event in self._http.receive_data(self._without_goodbyes(data)):
            self._take(event)

    def _without_goodbyes(self, data: bytes) -> bytes:
        """The frames that are whole by now, but for those that announce an end after this call."""
        self._unread += data
        shown = bytearray()
        while len(self._unread) >= _FRAME_HEAD:
            length = int.from_bytes(self._unread[:3], "big")
            if length > _LARGEST_FRAME:  # which h2 refuses by its head
                return bytes(shown + self._unread)
            frame = self._unread[: _FRAME_HEAD + length]
            if len(frame) < _FRAME_HEAD + length:
                break
            del self._unread[: len(frame)]
            last = int.from_bytes(frame[_FRAME_HEAD : _FRAME_HEAD + 4], "big") & 0x7FFFFFFF
            if frame[3] != _GOODBYE or last < self._stream:
                shown += frame
        return bytes(shown)

    def _take(self, event: Event) -> None:
        match event:
            case ResponseReceived(headers=headers) | TrailersReceived(headers=headers):
                self._headers |= {str(name): str(value) for name, value in headers or ()}
            case DataReceived(data=data, flow_controlled_length=length):
                self._body += data or b""
                if len(self._body) > MOST_BYTES + _HEAD:
                    raise CallFailed(f"the answer is longer than {MOST_BYTES // 2**20} MiB")
                self._http.acknowledge_received_data(length or 0, self._stream)
            case StreamEnded():
                self.ended = True
            case StreamReset(error_code=code):
                raise CallFailed(f"the call was refused: {_name(code)}")
            case ConnectionTerminated(error_code=code):
                raise CallFailed(f"the connection was ended: {_name(code)}")

    def answer(self) -> bytes:
        if self._headers.get(":status") != "200":
            raise CallFailed(f"HTTP status {self._headers.get(':status')}")
        status = self._headers.get("grpc-status", "missing")
        if status != "0":
            raise CallFailed(f"gRPC status {status}: {unquote(self._headers.get('grpc-message', ''))}")
        if len(self._body) < _HEAD or self._body[0] or len(self._body) - _HEAD != self._length():
            raise CallFailed("the answer is not one plain message")
        return bytes(self._body[_HEAD:])

    def _length(self) -> int:
        return int.from_bytes(self._body[1:_HEAD], "big")


def _name(code: ErrorCodes | int | None) -> str:
    return code.name if isinstance(code, ErrorCodes) else f"error {code}"
