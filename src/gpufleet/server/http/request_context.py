"""The state of one request, created by the tracing middleware and kept in the ASGI scope."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field

from starlette.exceptions import HTTPException
from starlette.types import Scope

from gpufleet.model.namespaces import Namespaces
from gpufleet.server.auth.caller import Caller
from gpufleet.server.http.envelopes import Envelope

Header = tuple[bytes, bytes]


async def always_allowed() -> bool:
    """Return True: the answer of a server without login."""
    return True


@dataclass(slots=True)
class RequestContext:
    """What handlers and middleware know about a request beside its parameters."""

    trace: str
    envelope: Envelope
    peer: str
    """The client's address."""
    headers: Mapping[bytes, bytes]
    """Request headers, by lower-case name."""
    status: int = 0
    """Status of the response; 0 until it starts."""
    caller: Caller | None = None
    still_allowed: Callable[[], Awaitable[bool]] = always_allowed
    """Return whether the caller may still call: a stream outlives the check at its start."""
    scope: Namespaces = None
    """The namespaces that the response is limited to; set by a filtered route (see `gpufleet.server.auth.scope`)."""
    needs_content_type: bool = False
    """Whether a change must name its content type (see `gpufleet.server.auth.origins`)."""
    login_error: HTTPException | None = None
    """Why credentials or a permission were refused, for the audit log."""
    signed_in: bool = False
    """Whether this request was a sign-in."""
    problem: str = ""
    """The message of an error response."""
    response_headers: list[Header] = field(default_factory=list)
    """Headers to add to the response, whatever its body is."""

    @property
    def accept(self) -> bytes:
        """The `Accept` header."""
        return self.headers.get(b"accept", b"")


def context_of(scope: Scope) -> RequestContext:
    """Return the context of the request in `scope`."""
    context: RequestContext = scope["state"]["context"]
    return context
