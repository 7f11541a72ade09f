"""Decide who sent a request, and refuse what a web page in the user's browser may have sent.

A page can't read the token, but browsers send requests to loopback for it. So every request needs a
token, a host name of this server (a page can point its own name to 127.0.0.1), no `Origin`, and a content
type that a page can't send without asking first; the server never agrees to that (no CORS).
"""

from base64 import b64decode
from collections.abc import Mapping
from ipaddress import ip_address

from aiohttp import web

from kubelite.errors import ApiError
from kubelite.objects.context import User

BODY_TYPES = ("application/json", "application/yaml", "application/vnd.kubernetes.protobuf")
_WILDCARDS = ("", "0.0.0.0", "::")  # noqa: S104  compared, not listened on


class Access:
    """Authenticate requests to a server that listens on `host`."""

    def __init__(self, users: Mapping[str, User], host: str) -> None:
        self._users = users
        self._host = host.lower()

    def authenticate(self, request: web.BaseRequest) -> User:
        """Return the user who sent the request."""
        name = _host_name(request.headers.get("Host", ""))
        if not self._is_own(name):
            raise ApiError(403, f"{name or 'no host'!r} is not a host name of this server")
        if "Origin" in request.headers:
            raise ApiError(403, "requests of web pages are refused")
        user = self._users.get(_token(request.headers.get("Authorization", "")))
        if user is None:
            raise ApiError(401, "Unauthorized")
        return user

    def _is_own(self, name: str) -> bool:
        if name in ("localhost", self._host):
            return bool(name)
        try:
            address = ip_address(name)
        except ValueError:
            return False
        return address.is_loopback or self._host in _WILDCARDS


def check_body_type(request: web.BaseRequest) -> str:
    """Return the content type of a write; a patch checks its own."""
    content_type = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if request.method != "PATCH" and request.can_read_body and content_type not in BODY_TYPES:
        accepted = ", ".join(BODY_TYPES)
        raise ApiError(
            415,
            "the body of the request was in an unknown format - accepted media types include: " + accepted,
        )
    return content_type


def _token(authorization: str) -> str:
    """Return the bearer token, or the password: kubectl sends tokens with TLS only."""
    scheme, _, credentials = authorization.partition(" ")
    if scheme.lower() != "basic":
        return credentials.strip() if scheme.lower() == "bearer" else ""
    try:
        return b64decode(credentials, validate=True).decode().partition(":")[2]
    except ValueError:
        return ""


def _host_name(header: str) -> str:
    """Return the name in a Host header, without its port."""
    if header.startswith("["):
        return header[1:].partition("]")[0].lower()
    return header.partition(":")[0].lower()
