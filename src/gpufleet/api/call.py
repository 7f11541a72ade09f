"""What is known of one request while it is in work: kept in its scope, filled by the edge."""

from typing import TYPE_CHECKING, Any

from gpufleet.api.families import Family
from gpufleet.api.ports import Caller

if TYPE_CHECKING:
    from litestar.types import Scope


class Call:
    """One request: its trace id, its family, who asks (name and address) and which headers matter to the answer."""

    __slots__ = (
        "accept",
        "accept_encoding",
        "caller",
        "family",
        "if_none_match",
        "peer",
        "started",
        "status",
        "trace",
        "warnings",
    )

    def __init__(self, trace: str, family: Family, started: float) -> None:
        self.trace = trace
        self.family = family
        self.started = started
        self.status = 0
        self.accept = b""
        self.accept_encoding = b""
        self.peer = ""
        self.if_none_match = b""
        self.caller: Caller | None = None
        self.warnings: list[bytes] = []


def call_of(scope: "Scope | dict[str, Any]") -> Call:
    """The call that the edge put into `scope`."""
    call: Call = scope["state"]["call"]
    return call
