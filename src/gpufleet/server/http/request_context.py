"""What is known of one request while it is in work: kept in its scope, filled by the edge."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from gpufleet.server.auth.caller import Caller
from gpufleet.server.http.envelopes import Envelope

if TYPE_CHECKING:
    from litestar.types import Scope


Header = tuple[bytes, bytes]
AT_ONCE = "gpufleet.at_once"
"""The ASGI extension of our server that sends status, headers and body in one piece, or tells that it can't."""


class RequestContext:
    """One request: its trace id, its family, who asks (name and address) and which headers matter to the answer.

    `headers` are the answer's, beside those of its body.
    """

    __slots__ = (
        "accept",
        "accept_encoding",
        "at_once",
        "caller",
        "family",
        "headers",
        "if_none_match",
        "peer",
        "started",
        "status",
        "trace",
    )

    def __init__(self, trace: str, family: Envelope, started: float) -> None:
        self.trace = trace
        self.family = family
        self.started = started
        self.status = 0
        self.accept = b""
        self.accept_encoding = b""
        self.peer = ""
        self.if_none_match = b""
        self.caller: Caller | None = None
        self.headers: list[Header] = []
        self.at_once: Callable[[int, list[Header], bytes], bool] | None = None


def call_of(scope: "Scope | dict[str, Any]") -> RequestContext:
    """The call that the edge put into `scope`."""
    call: RequestContext = scope["state"]["call"]
    return call
