"""By which names a server without login may be called.

A page of another site can let its own name resolve to 127.0.0.1 and then reads, in its visitor's
browser, whatever this machine serves there without login: to the browser it is the page's own site.
The browser still sends that name as `Host`, and so a server that only its own machine can reach
answers to addresses, to `localhost` and to the names in its settings, and to no others.
"""

import ipaddress
from collections.abc import Iterable
from functools import lru_cache


class Hosts:
    """The rule for a set of further names."""

    def __init__(self, names: Iterable[str]) -> None:
        known = frozenset(name.lower() for name in names)
        # A browser sends the same few over and over; a stranger can't make this grow.
        self.allow = lru_cache(maxsize=64)(lambda host: _name(host) in known or _is_own(_name(host)))
        """Whether a request with this `Host` header is answered."""


def _name(host: bytes) -> str:
    """The header without its port: `localhost`, `127.0.0.1`, `::1`."""
    text = host.decode("latin-1").strip().lower()
    if text.startswith("["):
        return text[1:].partition("]")[0]
    return text.partition(":")[0].removesuffix(".")


def _is_own(name: str) -> bool:
    if not name or name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True
