"""Close connections that stall: slow request heads, idle connections, clients that do not read.

uvicorn limits neither the time for a request head nor a connection that never sends a request. aiohttp
closes both only after its keep-alive timeout, which must be long here. Neither closes a client that stops
reading its response. `ClosesStalled` is mixed into the connection class of either server. It adds one timer
per connection, because all limits are in seconds and need no more precision.
"""

import asyncio
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class StallLimits:
    """How long a connection may stall, in seconds."""

    head: float = 20.0
    """From the start of a connection, or the first byte of a later request, to the end of the request's head."""
    write: float = 60.0
    """While a response is waiting to be sent and the client reads nothing."""

    @property
    def interval(self) -> float:
        """Seconds between two checks of a connection."""
        return min(self.head, self.write) / 4


class ClosesStalled(asyncio.Protocol):
    """Mixed into an asyncio protocol of an HTTP server: abort the connection when it exceeds its limits."""

    stall_limits = StallLimits()
    transport: Any
    """The transport, which the server's class sets."""

    _head_since: float | None = None
    _unsent = 0
    _sent_at = 0.0
    _check: asyncio.TimerHandle | None = None

    def awaits_request(self) -> bool:
        """Return whether no request is being handled and the head of the next one is not complete."""
        raise NotImplementedError

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start the timer of the connection."""
        super().connection_made(transport)
        loop = asyncio.get_running_loop()
        self._head_since = self._sent_at = loop.time()
        self._check = loop.call_later(self.stall_limits.interval, self._abort_if_stalled)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer of the connection."""
        if self._check is not None:
            self._check.cancel()
            self._check = None
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse `data`, and note when the head of a request begins."""
        super().data_received(data)
        if not self.awaits_request():
            self._head_since = None
        elif self._head_since is None:
            self._head_since = asyncio.get_running_loop().time()

    def resume_writing(self) -> None:
        """Note that the client reads."""
        self._sent_at = asyncio.get_running_loop().time()
        super().resume_writing()

    def _abort_if_stalled(self) -> None:
        if self.transport is None:
            return
        loop = asyncio.get_running_loop()
        now, limits = loop.time(), self.stall_limits
        unsent = self.transport.get_write_buffer_size()
        if not unsent or unsent < self._unsent:
            self._sent_at = now
        self._unsent = unsent
        head_is_late = self._head_since is not None and now - self._head_since >= limits.head
        if head_is_late or now - self._sent_at >= limits.write:
            self.transport.abort()
            return
        self._check = loop.call_later(limits.interval, self._abort_if_stalled)
