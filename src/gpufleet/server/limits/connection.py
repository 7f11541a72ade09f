"""The connection class of the API server: uvicorn's h11 protocol with limits on stalled connections."""

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from gpufleet.runtime.stalled_connections import ClosesStalled, StallLimits

MAX_HEAD_BYTES = 32 * 1024
"""Limit on the incomplete head or trailer of a request; httptools, the faster parser, has none."""


def connection_class(limits: StallLimits) -> type[asyncio.Protocol]:
    """Return uvicorn's connection class with `limits`."""

    class Connection(_Connection):
        stall_limits = limits

    return Connection


class _Connection(ClosesStalled, H11Protocol):
    """One connection."""

    def awaits_request(self) -> bool:
        """Return whether the head of the next request is not complete."""
        return self.cycle is None or self.cycle.response_complete

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are not HTTP; only close if a response has started."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE) and self.awaits_request():
            super().send_400_response(msg)
        else:
            self.transport.abort()  # uvicorn would raise LocalProtocolError or mix two responses
