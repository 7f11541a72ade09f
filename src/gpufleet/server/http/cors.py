"""Which pages of other origins may call from a browser: those in the settings, none by default.

By hand, because Litestar's own replaces the `Vary` header and answers in its own envelope.
An origin that is not allowed gets no headers, and its browser refuses the rest.
"""

from collections.abc import Mapping, Sequence

from gpufleet.server.http.request_context import Header

_METHODS = (b"access-control-allow-methods", b"GET, HEAD, POST, PUT, DELETE, OPTIONS")
_HEADERS = (b"access-control-allow-headers", b"authorization, content-type, if-none-match, traceparent")
_EXPOSED = (b"access-control-expose-headers", b"etag, retry-after, traceresponse, warning, x-trace-id")
_AN_HOUR = (b"access-control-max-age", b"3600")
_VARY = (b"vary", b"origin")


class Cors:
    """The rule for a set of origins (`*` for all; credentials are never allowed)."""

    def __init__(self, origins: Sequence[str]) -> None:
        self._all = "*" in origins
        self._origins = frozenset(origin.rstrip("/").encode() for origin in origins)

    def headers(self, origin: bytes | None) -> tuple[Header, ...]:
        """What an answer to a page of `origin` carries."""
        if not self._origins:
            return ()
        if origin is None or not (self._all or origin in self._origins):
            return (_VARY,)
        return (_VARY, (b"access-control-allow-origin", origin), _EXPOSED)

    def preflight(self, method: str, headers: Mapping[bytes, bytes]) -> tuple[Header, ...] | None:
        """The answer to a browser's question before the request, or None if it is no such question."""
        origin = headers.get(b"origin")
        if method != "OPTIONS" or origin is None or b"access-control-request-method" not in headers:
            return None
        allowed = self.headers(origin)
        return (*allowed, _METHODS, _HEADERS, _AN_HOUR) if len(allowed) > 1 else allowed
