"""Check the `Host` header of a server without login, against DNS rebinding.

A malicious site can let its own name resolve to 127.0.0.1; its scripts in a visitor's browser then
read what this machine serves there without login. The browser still sends the site's name as
`Host`, so a loopback server answers only to addresses, `localhost` and the names in its settings.
"""

import ipaddress
from collections.abc import Iterable
from functools import lru_cache


class Hosts:
    """The names that a server answers to, besides addresses and localhost."""

    def __init__(self, names: Iterable[str]) -> None:
        allowed = frozenset(name.lower() for name in names)
        # Bounded, since callers choose the header.
        self.allow = lru_cache(maxsize=64)(lambda host: _name(host) in allowed or _is_local(_name(host)))
        """Return whether to answer a request with this `Host` header."""


def _name(host: bytes) -> str:
    """Return the header without its port: `localhost`, `127.0.0.1`, `::1`."""
    text = host.decode("latin-1").strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0].removesuffix(".")


def _is_local(name: str) -> bool:
    if not name or name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
