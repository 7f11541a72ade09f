"""What leaves a connection, and in how many pieces."""

import asyncio
from typing import Any, cast

from gpufleet.api.protocol import HeadWithBody

HEAD = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n"


class Wire:
    """Notes each system call that a transport would make."""

    def __init__(self) -> None:
        self.calls: list[bytes] = []
        self.closed = False

    def write(self, data: bytes) -> None:
        self.calls.append(data)

    def writelines(self, pieces: Any) -> None:
        self.calls.append(b"".join(pieces))

    def close(self) -> None:
        self.closed = True

    def is_closing(self) -> bool:
        return self.closed


def _on(wire: Wire) -> HeadWithBody:
    return HeadWithBody(cast(asyncio.Transport, wire), asyncio.get_running_loop())


async def test_head_and_body_leave_in_one_piece_in_their_order() -> None:
    wire = Wire()
    transport = _on(wire)
    for _ in range(2):
        transport.write(HEAD)
        transport.write(b"ok")
    await asyncio.sleep(0)
    assert wire.calls == [HEAD + b"ok"] * 2


async def test_the_head_of_a_stream_does_not_wait_for_its_first_event() -> None:
    wire = Wire()
    transport = _on(wire)
    transport.write(HEAD)
    await asyncio.sleep(0)
    assert wire.calls == [HEAD]
    transport.write(b"data: 1\n\n")
    assert wire.calls == [HEAD, b"data: 1\n\n"]


async def test_a_connection_that_is_closed_has_sent_its_head() -> None:
    wire = Wire()
    transport = _on(wire)
    transport.write(HEAD)
    assert not transport.is_closing()
    transport.close()
    assert (wire.calls, transport.is_closing()) == ([HEAD], True)
