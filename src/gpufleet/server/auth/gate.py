"""Who may call: a bearer token from the file or from Kubernetes, and a role that allows it.

Login is decided before routing, so that a stranger learns nothing of what there is. Public are the
health checks, which load balancers ask without a token, and the pages' static files, which hold
no data: the pages ask for a token and send it along. Reading takes the role viewer, everything
that changes something and everything under /debug the role operator. A training job may report
its own numbers with less: with the token of its workload, or as the pod that it is.

Wrong tokens are counted by address. After too many, tokens that are not known to be right are
refused unseen; those that are keep working, so that nobody behind one proxy locks others out.
"""

import re
import time
from collections.abc import Callable

from starlette.types import Scope

from gpufleet.server.auth.caller import Caller, Role
from gpufleet.server.auth.token_review import ReviewedTokens
from gpufleet.server.auth.tokens import TokenFile
from gpufleet.server.auth.workload_tokens import WorkloadTokens
from gpufleet.server.http.errors import Problem
from gpufleet.server.http.request_context import RequestContext

PUBLIC = frozenset({"/livez", "/readyz", "/api/healthz", "/docs", "/favicon.ico"})
PUBLIC_FOLDERS = ("/docs/",)
_REPORTS = re.compile(r"/api/workloads/[^/]+/trainingPerformance")
_SAFE = frozenset({"GET", "HEAD", "OPTIONS"})
_MAX_TOKEN_BYTES = 8 * 1024
_CHALLENGE = b'Bearer realm="gpufleet"'


class FailureLimit:
    """How many wrong tokens an address may try within a minute."""

    def __init__(self, clock: Callable[[], float], *, most: int = 20, seconds: float = 60.0) -> None:
        self._clock = clock
        self._most = most
        self._seconds = seconds
        self._failures: dict[str, tuple[float, int]] = {}

    def wait(self, address: str) -> float:
        """Seconds until `address` may try again; 0 if now."""
        since, count = self._failures.get(address, (0.0, 0))
        left = since + self._seconds - self._clock()
        return left if count >= self._most and left > 0 else 0.0

    def note(self, address: str) -> None:
        """Count a wrong token."""
        now = self._clock()
        since, count = self._failures.pop(address, (now, 0))
        self._failures[address] = (since, count + 1) if since + self._seconds > now else (now, 1)
        while len(self._failures) > 4096:
            del self._failures[next(iter(self._failures))]


class BearerGate:
    """Admits callers with a token; see the module."""

    def __init__(
        self,
        tokens: TokenFile | None = None,
        reviews: ReviewedTokens | None = None,
        *,
        workloads: WorkloadTokens | None = None,
        public: frozenset[str] = frozenset(),
        public_folders: tuple[str, ...] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._tokens = tokens
        self._reviews = reviews
        self._workloads = workloads
        self._public = PUBLIC | public
        self._folders = PUBLIC_FOLDERS + public_folders
        self._limit = FailureLimit(clock)

    async def admit(self, scope: Scope, context: RequestContext, authorization: bytes | None) -> None:
        """Let a public path, or a caller whose role allows it, pass."""
        path, method = scope["path"], str(scope["method"])
        if method in _SAFE and self._is_public(path):
            return
        token = _token(authorization)
        reports = method == "POST" and _REPORTS.fullmatch(path) is not None
        caller = self._workloads.caller(token) if reports and self._workloads is not None else None
        if caller is None:
            caller = await self._caller(token, context.peer)
        if caller is None:
            self._limit.note(context.peer)
            raise _refused(401, "the token is not valid", b'error="invalid_token"')
        context.caller = caller
        if reports and (caller.workload_uid or caller.pod_uid):
            return  # the route sees to it that they report for themselves
        needed: Role = "viewer" if method in _SAFE and not path.startswith("/debug") else "operator"
        if needed == "operator" and caller.role != "operator":
            raise _refused(
                403, f"this takes the role operator; {caller.name} is a viewer", b'error="insufficient_scope"'
            )

    async def _caller(self, token: str, address: str) -> Caller | None:
        if self._tokens is not None and (caller := self._tokens.caller(token)):
            return caller
        if self._reviews is not None:
            answered, known = self._reviews.known(token)
            if known is not None:
                return known
        if wait := self._limit.wait(address):
            seconds = b"%d" % (int(wait) + 1)
            raise Problem(429, "too many wrong tokens from this address", ((b"retry-after", seconds),))
        if self._reviews is not None and not answered:
            return await self._reviews.caller(token)
        return None

    def _is_public(self, path: str) -> bool:
        return path in self._public or (path.startswith(self._folders) and ".." not in path)


def _token(authorization: bytes | None) -> str:
    if authorization is None:
        raise Problem(
            401, "log in with the header `Authorization: Bearer TOKEN`", ((b"www-authenticate", _CHALLENGE),)
        )
    scheme, _, rest = authorization.partition(b" ")
    token = rest.strip()
    if scheme.lower() != b"bearer" or not token or len(token) > _MAX_TOKEN_BYTES or not token.isascii():
        raise _refused(401, "the Authorization header must be `Bearer TOKEN`", b'error="invalid_request"')
    return token.decode()


def _refused(status: int, sentence: str, detail: bytes) -> Problem:
    return Problem(status, sentence, ((b"www-authenticate", _CHALLENGE + b", " + detail),))
