"""The outermost layer, one for all requests: trace, limits, login, time, log line, metrics.

It is plain ASGI around the whole application, so that an unknown route or a body that is too
large gets the same trace id, envelope and log line as an answer. It is one layer and not six,
because each layer costs every request a closure and an await.
"""

import asyncio
import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, cast

from litestar.enums import ScopeType
from litestar.types import ASGIApp, HTTPScope, Message, Receive, Scope, Send
from structlog.typing import FilteringBoundLogger

from gpufleet.runtime.logs import get_logger, trace_id
from gpufleet.server.auth.hosts import Hosts
from gpufleet.server.http.cors import Cors
from gpufleet.server.http.deadlines import Deadline, Deadlines
from gpufleet.server.http.envelopes import family_of
from gpufleet.server.http.errors import Problem, problem_of
from gpufleet.server.http.replies import send_whole
from gpufleet.server.http.request_context import AT_ONCE, Header, RequestContext
from gpufleet.server.http.routing import Answering
from gpufleet.server.http.tracing import trace_headers, trace_id_from
from gpufleet.server.metrics import ServerMetrics

MAX_URL_BYTES = 8 * 1024
PROBES = frozenset({"/livez", "/readyz", "/api/healthz", "/metrics"})
_READING = frozenset({"GET", "HEAD"})
_NOSNIFF = (b"x-content-type-options", b"nosniff")
_NAMES = "call it by its address or as localhost, or add the name to the setting server.hosts"
_MATTER = frozenset(
    {
        b"accept",
        b"accept-encoding",
        b"access-control-request-method",
        b"authorization",
        b"content-length",
        b"host",
        b"if-none-match",
        b"origin",
        b"traceparent",
        b"transfer-encoding",
    }
)


@dataclass(frozen=True)
class Limits:
    """What one request may take, and how many may be in work at once."""

    max_body_bytes: int = 4 * 1024 * 1024
    request_timeout: float = 30.0
    max_requests: int = 512


class Gate(Protocol):
    """Decides who may call."""

    async def admit(self, scope: Any, context: RequestContext, authorization: bytes | None) -> None:
        """Put the caller into `context`, or raise the Problem that refuses it."""


class Middleware:
    """Wraps the application; see the module."""

    def __init__(
        self,
        app: ASGIApp,
        limits: Limits,
        metrics: ServerMetrics,
        gate: Gate | None = None,
        cors: Cors | None = None,
        hosts: Hosts | None = None,
        direct: Mapping[str, Answering] | None = None,
    ) -> None:
        self._app = app
        self._limits = limits
        self._metrics = metrics
        self._gate = gate
        self._cors = cors or Cors(())
        self._hosts = hosts
        self._direct = direct or {}
        self._deadlines: Deadlines | None = None
        self._log: FilteringBoundLogger = get_logger("api").bind()
        self._tells_probes = self._log.is_enabled_for(logging.DEBUG)
        self._too_large = f"the body is larger than {limits.max_body_bytes:,} bytes, the most that is taken"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != ScopeType.HTTP:
            # Asking for the loop is a system call, too much for each request; a server has one for life.
            self._deadlines = self._new_deadlines()
            await self._app(scope, receive, send)
            return
        headers = {name: value for name, value in scope["headers"] if name in _MATTER}
        path = scope["path"]
        call = RequestContext(
            trace_id_from(headers.get(b"traceparent")),
            family_of(path),
            time.perf_counter(),
        )
        call.accept = headers.get(b"accept", b"")
        call.accept_encoding = headers.get(b"accept-encoding", b"")
        call.if_none_match = headers.get(b"if-none-match", b"")
        call.peer = scope["client"][0] if scope["client"] else ""
        call.at_once = cast("dict[str, Any]", scope.get("extensions") or {}).get(AT_ONCE)
        scope.setdefault("state", {})["call"] = call
        token = trace_id.set(call.trace)
        self._metrics.in_flight += 1
        try:
            await self._answer(scope, receive, send, call, headers)
        finally:
            self._metrics.in_flight -= 1
            self._note(scope, call, path)
            trace_id.reset(token)

    async def _answer(
        self,
        scope: HTTPScope,
        receive: Receive,
        send: Send,
        call: RequestContext,
        headers: dict[bytes, bytes],
    ) -> None:
        call.headers = [*trace_headers(call.trace), _NOSNIFF, *self._cors.headers(headers.get(b"origin"))]
        deadline = self._deadline(scope["path"], call)

        async def outgoing(message: Message) -> None:
            if message["type"] == "http.response.start":
                call.status = message["status"]
                deadline.lift()  # a stream, once begun, may go on
                message["headers"] = [*message["headers"], *call.headers]
            await send(message)

        try:
            self._refuse_unreasonable(scope, headers)
            if (allowed := self._cors.preflight(scope["method"], headers)) is not None:
                await send_whole(outgoing, call, 204, list(allowed), b"")
                return
            if self._gate is not None:
                await self._gate.admit(scope, call, headers.get(b"authorization"))
            direct = self._direct.get(scope["path"])
            if direct is not None and scope["method"] in _READING:
                scope["path_template"] = scope["path"]
                await (await direct(scope, None))(scope, receive, outgoing)
            else:
                await self._app(scope, self._bounded(receive, headers), outgoing)
        except (Exception, asyncio.CancelledError) as error:
            reason = deadline.reason(error)
            if call.status:
                raise
            await send_problem(outgoing, call, problem_of(reason))
        finally:
            deadline.lift()

    def _deadline(self, path: str, call: RequestContext) -> Deadline:
        deadlines = self._deadlines or self._new_deadlines()
        # A profile takes as long as its caller asks for.
        return deadlines.unlimited() if path.startswith("/debug/pprof/") else deadlines.begin(call.started)

    def _new_deadlines(self) -> Deadlines:
        return Deadlines(self._limits.request_timeout, asyncio.get_running_loop(), time.perf_counter)

    def _refuse_unreasonable(self, scope: HTTPScope, headers: dict[bytes, bytes]) -> None:
        if self._metrics.in_flight > self._limits.max_requests and scope["path"] not in PROBES:
            # Probes pass: a server that has much to do lives, and who restarts it makes it worse.
            raise Problem(503, "too many requests at once; try again shortly", ((b"retry-after", b"1"),))
        if len(scope["raw_path"] or b"") + len(scope["query_string"]) > MAX_URL_BYTES:
            raise Problem(414, f"the address is longer than {MAX_URL_BYTES:,} bytes")
        if "\x00" in scope["path"] or "\ufffd" in scope["path"]:
            raise Problem(400, "the path is not valid UTF-8 text without NUL")
        if self._hosts is not None and not self._hosts.allow(host := headers.get(b"host", b"")):
            raise Problem(
                421, f"this server does not answer to the name {host.decode('latin-1')!r}; {_NAMES}"
            )
        length = headers.get(b"content-length")
        if length is not None and length.isdigit() and int(length) > self._limits.max_body_bytes:
            raise Problem(413, self._too_large)

    def _bounded(self, receive: Receive, headers: dict[bytes, bytes]) -> Receive:
        """`receive` that stops a body of unknown length when it has become too long."""
        if b"transfer-encoding" not in headers and b"content-length" in headers:
            return receive
        taken = 0

        async def bounded() -> Any:
            nonlocal taken
            message = await receive()
            if message["type"] == "http.request":
                taken += len(message["body"])
                if taken > self._limits.max_body_bytes:
                    raise Problem(413, self._too_large)
            return message

        return bounded

    def _note(self, scope: HTTPScope, call: RequestContext, path: str) -> None:
        seconds = time.perf_counter() - call.started
        route = template_of(scope)
        self._metrics.observe(scope["method"], route, call.status, seconds)
        is_probe = path in PROBES
        if is_probe and not self._tells_probes:
            return
        log = self._log.debug if is_probe else self._log.info
        log(
            "request",
            method=scope["method"],
            route=route,
            status=call.status,
            ms=round(seconds * 1000, 2),
            caller=call.caller.name if call.caller else None,
        )


async def send_problem(send: Send, call: RequestContext, problem: Problem) -> None:
    """Answer an error in the family's envelope."""
    body = call.family.error(problem.status, problem.sentence, call.trace)
    headers: list[Header] = [(b"content-type", b"application/json"), (b"cache-control", b"no-store")]
    await send_whole(send, call, problem.status, [*headers, *problem.headers], body)


def template_of(scope: HTTPScope) -> str:
    """The route's path with its parameters by name; never what a caller made up."""
    return str(scope.get("path_template") or "unmatched")
