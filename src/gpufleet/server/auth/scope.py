"""Limit what a caller sees to the namespaces in its scope.

Every route declares a rule. The router applies it before the handler runs, and gives the handler of a filtered
route the caller's namespaces:

    filtered   the handler shows only what is in the caller's namespaces
    public     the response says nothing about namespaces, so it is the same for every caller
    unscoped   only for callers who may see every namespace; others get a 403

A route without a rule is treated as unscoped. A response to a limited caller says so: JSON has the field `scope`
in its envelope, and every format has the header.
"""

from typing import Literal
from urllib.parse import quote

from starlette.exceptions import HTTPException

from gpufleet.model.namespaces import Namespaces
from gpufleet.server.auth.caller import Caller

ScopeRule = Literal["filtered", "public", "unscoped"]
HEADER = b"x-gpufleet-scope"
_MAX_HEADER_BYTES = 4096


def namespaces_of(caller: Caller | None) -> Namespaces:
    """Return the namespaces that a caller may see; a server without login shows every namespace."""
    return None if caller is None else caller.namespaces


def check_scope(rule: ScopeRule | None, caller: Caller | None) -> None:
    """Raise HTTPException if a route's rule refuses a caller who is limited to namespaces."""
    if rule in ("filtered", "public") or caller is None or caller.namespaces is None:
        return
    raise HTTPException(403, f"this takes access to every namespace; {caller.name} is limited to some")


def scope_header(namespaces: frozenset[str]) -> tuple[bytes, bytes]:
    """Return the header that names the namespaces, percent-encoded; a list that is too long ends in `...`."""
    value = ",".join(quote(name, safe="") for name in sorted(namespaces))
    if len(value) > _MAX_HEADER_BYTES:
        value = value[:_MAX_HEADER_BYTES].rpartition(",")[0] + ",..."
    return HEADER, value.encode()
