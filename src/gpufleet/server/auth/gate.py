"""Authenticate bearer tokens and session cookies, and authorize the request by the caller's role.

This happens before routing, so that a caller without a token can't find out which paths exist.
Public are the health checks, which load balancers call without a token, and the static files of
the pages, which hold no data. Reading takes the role viewer; changes and everything under /debug
take the role operator. A training job may report its own numbers with the token of its workload
or of its pod.

Invalid tokens are counted by address. After too many, the gate rejects every token from that
address that it has not seen valid before. Known tokens keep working, so that one caller behind a
proxy can't lock out the others.
"""

import re
import time
from collections.abc import Callable

from starlette.exceptions import HTTPException

from gpufleet.errors import Unavailable
from gpufleet.server.auth.caller import Caller
from gpufleet.server.auth.oidc.sessions import Sessions
from gpufleet.server.auth.oidc.tokens import IdentityTokens
from gpufleet.server.auth.permissions import LoginRefused
from gpufleet.server.auth.token_review import ReviewedTokens
from gpufleet.server.auth.tokens import TokenFile
from gpufleet.server.auth.workload_tokens import WorkloadTokens

HEALTH = "/api/healthz"
"""Public; callers with a valid token see the messages of the dependencies too."""
ME = "/auth/me"
"""Public; callers with a valid token see who they are."""
MCP = "/mcp"
"""Tools for AI assistants: called with POST, but they only read."""
LOGIN, CALLBACK, LOGOUT = "/auth/login", "/auth/callback", "/auth/logout"
PUBLIC = frozenset({"/livez", "/readyz", HEALTH, ME, LOGIN, CALLBACK, LOGOUT, "/docs", "/favicon.ico"})
PUBLIC_FOLDERS = ("/docs/",)
_TRAINING_REPORT = re.compile(r"/api/workloads/[^/]+/trainingPerformance")
SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})
_MAX_TOKEN_BYTES = 16 * 1024
"""A JWT with two hundred groups has 8 KiB."""


class FailureLimit:
    """Limits how many invalid tokens an address may try within a minute."""

    def __init__(self, clock: Callable[[], float], *, limit: int = 20, seconds: float = 60.0) -> None:
        self._clock = clock
        self._limit = limit
        self._seconds = seconds
        self._failures: dict[str, tuple[float, int]] = {}

    def retry_after(self, address: str) -> float:
        """Return the seconds until `address` may try again; 0 for now."""
        since, count = self._failures.get(address, (0.0, 0))
        left = since + self._seconds - self._clock()
        return left if count >= self._limit and left > 0 else 0.0

    def add(self, address: str) -> None:
        """Count an invalid token."""
        now = self._clock()
        since, count = self._failures.pop(address, (now, 0))
        self._failures[address] = (since, count + 1) if since + self._seconds > now else (now, 1)
        while len(self._failures) > 4096:
            del self._failures[next(iter(self._failures))]


class BearerGate:
    """Admits requests with a valid token whose role allows them."""

    def __init__(
        self,
        tokens: TokenFile | None = None,
        reviews: ReviewedTokens | None = None,
        *,
        workloads: WorkloadTokens | None = None,
        identities: IdentityTokens | None = None,
        sessions: Sessions | None = None,
        public: frozenset[str] = frozenset(),
        public_folders: tuple[str, ...] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tokens = tokens
        self._reviews = reviews
        self._workloads = workloads
        self._identities = identities
        self._sessions = sessions
        self._public = PUBLIC | public
        self._folders = PUBLIC_FOLDERS + public_folders
        self._failures = FailureLimit(clock)

    async def authenticate(
        self, method: str, path: str, address: str, authorization: bytes | None, cookie: bytes | None = None
    ) -> Caller | None:
        """Return the caller, None for a public path; raise HTTPException without valid credentials."""
        if (method in SAFE_METHODS and self._is_public(path)) or path == LOGOUT:
            identifies = self.identifies(path)
            return await self._optional_caller(address, authorization, cookie) if identifies else None
        if authorization is None and self._sessions is not None and (found := self._sessions.caller(cookie)):
            return found
        token = _token(authorization)
        reports_training = is_training_report(method, path)
        caller = None
        if self._workloads is not None and reports_training:
            caller = self._workloads.caller(token)
        if caller is None:
            caller = await self._caller(token, address, reports_training)
        if caller is None:
            self._failures.add(address)
            raise LoginRefused(401, "the token is not valid", detail='error="invalid_token"')
        return caller

    @staticmethod
    def identifies(path: str) -> bool:
        """Return whether a public path tells known callers more, or ends their session."""
        return path in (HEALTH, ME, LOGOUT)

    def has_credentials(self, authorization: bytes | None, cookie: bytes | None) -> bool:
        """Return whether a request has a token or a session, valid or not."""
        return authorization is not None or (self._sessions is not None and self._sessions.has(cookie))

    def check_origin(self, caller: Caller, method: str, origin: bytes | None, host: bytes) -> bool:
        """Return whether a request is a change in a session; raise HTTPException if a foreign page sent it."""
        if caller.login != "session" or method in SAFE_METHODS or self._sessions is None:
            return False
        self._sessions.check_origin(origin, host)
        return True

    def authorize(self, caller: Caller, method: str, path: str) -> None:
        """Raise HTTPException unless the caller's role allows the request."""
        if is_training_report(method, path) and (caller.workload_uid or caller.pod_uid):
            return  # the route checks that they report for their own workload
        if (method in SAFE_METHODS and not path.startswith("/debug")) or path in (LOGOUT, MCP):
            return
        who = f"{caller.name} is a viewer"
        if caller.role == "operator":
            if caller.namespaces is None:
                return
            who = f"{caller.name} is limited to namespaces"
        detail = 'error="insufficient_scope"'
        raise LoginRefused(403, f"this takes the role operator; {who}", who=caller.name, detail=detail)

    async def _optional_caller(
        self, address: str, authorization: bytes | None, cookie: bytes | None
    ) -> Caller | None:
        """Return the caller of a public path; None without valid credentials."""
        if not self.has_credentials(authorization, cookie):
            return None
        try:
            if authorization is None and self._sessions is not None:
                return self._sessions.caller(cookie)
            caller = await self._caller(_token(authorization), address, False)
        except (HTTPException, Unavailable):
            return None  # a health check must not fail because of its token
        if caller is None:
            self._failures.add(address)
        return caller

    async def _caller(self, token: str, address: str, reports_training: bool) -> Caller | None:
        if self._tokens is not None and (caller := self._tokens.caller(token)):
            return caller
        if self._identities is not None and self._identities.issued(token):
            return await self._identity(self._identities, token, address)
        known = self._reviews.known(token) if self._reviews is not None else None
        if not known and (wait := self._failures.retry_after(address)):
            seconds = str(int(wait) + 1)
            raise HTTPException(429, "too many wrong tokens from this address", {"retry-after": seconds})
        if self._reviews is not None and known is not False:
            return await self._reviews.caller(token, reports_training=reports_training)
        return None

    async def _identity(self, identities: IdentityTokens, token: str, address: str) -> Caller:
        """Return the caller of an OIDC token. Signatures can't be guessed, so wrong ones lock out no other."""
        try:
            return await identities.caller(token)
        except LoginRefused as refused:
            if refused.status_code == 401:
                self._failures.add(address)
            raise

    def _is_public(self, path: str) -> bool:
        return path in self._public or (path.startswith(self._folders) and ".." not in path)


def is_training_report(method: str, path: str) -> bool:
    """Return whether a request reports the training of a workload."""
    return method == "POST" and _TRAINING_REPORT.fullmatch(path) is not None


def _token(authorization: bytes | None) -> str:
    if authorization is None:
        raise LoginRefused(401, "log in with the header `Authorization: Bearer TOKEN`")
    scheme, _, rest = authorization.partition(b" ")
    token = rest.strip()
    if scheme.lower() != b"bearer" or not token or len(token) > _MAX_TOKEN_BYTES or not token.isascii():
        sentence = "the Authorization header must be `Bearer TOKEN`"
        raise LoginRefused(401, sentence, detail='error="invalid_request"')
    return token.decode()
