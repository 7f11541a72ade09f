"""Refuse changes that a foreign web page requests from a server without login.

A browser sends a page's simple requests to any address, also to loopback. It asks first (CORS preflight) only
for other content types than those of forms, and it names the page's origin. So a change needs a JSON content
type, which the routes check, and an `Origin` that is absent or the server's own.
"""

from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException


class Origins:
    """The origins whose pages may change something."""

    def __init__(self, origins: Iterable[str], hosts: Iterable[str]) -> None:
        """`origins` are those of the CORS settings, `hosts` further names of this server."""
        self._origins = frozenset(origin.rstrip("/").lower() for origin in origins)
        self._hosts = frozenset(host.lower() for host in hosts)

    def check(self, origin: bytes | None, host: bytes) -> None:
        """Raise HTTPException for a change that a foreign page requests."""
        if origin is not None and not self._allows(origin.decode("latin-1").lower(), host):
            raise HTTPException(
                403,
                "pages of this origin may not change anything here; add it to the setting "
                "server.cors_origins to allow it",
            )

    def _allows(self, origin: str, host: bytes) -> bool:
        if origin in self._origins:
            return True
        try:
            url = urlsplit(origin)
            name = (url.hostname or "").removesuffix(".")
        except ValueError:
            return False
        if url.scheme not in ("http", "https") or not name:
            return False
        return url.netloc == host.decode("latin-1").strip().lower() or name in self._hosts
