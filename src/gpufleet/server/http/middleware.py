"""Two middleware classes around the application.

`TracingMiddleware` is the outermost: it creates the request's context and writes the log line and the
metrics and the audit log. `AdmissionMiddleware` is inside Starlette's CORS and gzip middleware: it enforces the limits,
the login and the deadline, and turns the exceptions that reach it into error responses.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from structlog.typing import FilteringBoundLogger

from gpufleet.errors import Unavailable
from gpufleet.runtime.logs import get_logger, trace_id
from gpufleet.server.auth.gate import SAFE_METHODS, BearerGate
from gpufleet.server.auth.hosts import Hosts
from gpufleet.server.auth.origins import Origins
from gpufleet.server.auth.scope import namespaces_of
from gpufleet.server.http.envelopes import envelope_of
from gpufleet.server.http.errors import error_response
from gpufleet.server.http.paths import normalized
from gpufleet.server.http.request_context import RequestContext, context_of
from gpufleet.server.http.tracing import trace_headers, trace_id_from
from gpufleet.server.limits.caller_limit import CallerLimit, Slot
from gpufleet.server.limits.connection import MAX_HEAD_BYTES
from gpufleet.server.metrics import ServerMetrics

MAX_URL_BYTES = 8 * 1024
MAX_HEADERS = 100
PROBES = frozenset({"/livez", "/readyz", "/api/healthz", "/metrics"})
_NOSNIFF = (b"x-content-type-options", b"nosniff")
_EVENT_STREAM = (b"content-type", b"text/event-stream; charset=utf-8")


@dataclass(frozen=True)
class Limits:
    """Limits on one request, and on how many run at the same time."""

    max_body_bytes: int = 4 * 1024 * 1024
    request_timeout: float = 30.0
    max_requests: int = 512
    max_requests_per_caller: int = 128


Audit = Callable[[Scope, RequestContext, str], None]
"""Called with each request that has been answered, and its route."""


class TracingMiddleware:
    """Give each request a context with its trace id, count it and log it."""

    def __init__(self, app: ASGIApp, metrics: ServerMetrics, audit: Audit) -> None:
        self._app = app
        self._metrics = metrics
        self._audit = audit
        self._log: FilteringBoundLogger = get_logger("api").bind()
        self._log_probes = self._log.is_enabled_for(logging.DEBUG)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handle one request, or the lifespan events."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = time.perf_counter()
        scope["path"] = path = normalized(scope["path"])
        headers = dict(scope["headers"])
        context = RequestContext(
            trace_id_from(headers.get(b"traceparent")),
            envelope_of(path),
            scope["client"][0] if scope["client"] else "",
            headers,
        )
        scope.setdefault("state", {})["context"] = context

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                context.status = message["status"]
                message["headers"] = [
                    *message["headers"],
                    *trace_headers(context.trace),
                    _NOSNIFF,
                    *context.response_headers,
                ]
            await send(message)

        token = trace_id.set(context.trace)
        self._metrics.in_flight += 1
        try:
            await self._app(scope, receive, send_with_headers)
        finally:
            self._metrics.in_flight -= 1
            self._record(scope, context, time.perf_counter() - started)
            trace_id.reset(token)

    def _record(self, scope: Scope, context: RequestContext, seconds: float) -> None:
        # The path template, never the path itself: callers must not be able to create new series.
        route = scope["route"].path_format if "route" in scope else "unmatched"
        self._metrics.observe(scope["method"], route, context.status, seconds)
        self._audit(scope, context, route)
        is_probe = scope["path"] in PROBES
        if is_probe and not self._log_probes:
            return
        log = self._log.debug if is_probe else self._log.info
        log(
            "request",
            method=scope["method"],
            route=route,
            status=context.status,
            ms=round(seconds * 1000, 2),
            caller=context.caller.name if context.caller else None,
        )


class AdmissionMiddleware:
    """Refuse requests that exceed a limit or may not call, and stop those that take too long."""

    def __init__(
        self,
        app: ASGIApp,
        limits: Limits,
        metrics: ServerMetrics,
        gate: BearerGate | None = None,
        hosts: Hosts | None = None,
        origins: Origins | None = None,
    ) -> None:
        """`hosts` and `origins` protect a server without login from web pages."""
        self._app = app
        self._limits = limits
        self._metrics = metrics
        self._gate = gate
        self._hosts = hosts
        self._origins = origins
        self._callers = CallerLimit(limits.max_requests_per_caller)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass one admitted request on, or answer it with an error."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        context = context_of(scope)
        # A profile takes as long as its caller asks for.
        timeout = None if scope["path"].startswith("/debug/pprof/") else self._limits.request_timeout
        started = False
        try:
            async with asyncio.timeout(timeout) as deadline:
                self._check(scope, context)
                if self._gate is not None:
                    await self._log_in(self._gate, scope, context)
                with self._slot(scope, context) as free:

                    async def send_without_deadline(message: Message) -> None:
                        nonlocal started
                        if not started:
                            started = True
                            deadline.reschedule(None)  # a stream of events may outlive it
                            if _EVENT_STREAM in message["headers"]:
                                free()  # the route limits the streams of a caller
                        await send(message)

                    await self._app(scope, receive, send_without_deadline)
        except (Exception, asyncio.CancelledError) as error:
            if started:
                raise
            await error_response(context, error)(scope, receive, send)

    def _slot(self, scope: Scope, context: RequestContext) -> AbstractContextManager[Slot]:
        if scope["path"] in PROBES:
            return nullcontext(_nothing)
        return self._callers.slot(context.caller.name if context.caller else context.peer)

    async def _log_in(self, gate: BearerGate, scope: Scope, context: RequestContext) -> None:
        method, path = scope["method"], scope["path"]
        authorization, cookie = context.headers.get(b"authorization"), context.headers.get(b"cookie")
        has_credentials = gate.has_credentials(authorization, cookie)
        try:
            # Set before the role is checked, so that the log line of a 403 names the caller.
            context.caller = await gate.authenticate(method, path, context.peer, authorization, cookie)
            if context.caller is not None:
                origin, host = context.headers.get(b"origin"), context.headers.get(b"host", b"")
                context.needs_content_type = gate.check_origin(context.caller, method, origin, host)
                gate.authorize(context.caller, method, path)
        except HTTPException as error:
            if has_credentials:
                context.login_error = error
            raise
        if has_credentials and context.caller is None and gate.identifies(path):
            context.login_error = HTTPException(401, "the token is not valid")  # answered all the same

        async def still_allowed() -> bool:
            try:
                caller = await gate.authenticate(method, path, context.peer, authorization, cookie)
                if caller is not None:
                    gate.authorize(caller, method, path)
                if namespaces_of(caller) != namespaces_of(context.caller):
                    return False  # what the stream may show has changed
            except HTTPException:
                return False
            except Unavailable:
                return True  # Kubernetes does not answer: the last review stays valid
            return caller == context.caller  # with another role or namespaces, the stream must begin again

        context.still_allowed = still_allowed

    def _check(self, scope: Scope, context: RequestContext) -> None:
        if self._metrics.in_flight > self._limits.max_requests and scope["path"] not in PROBES:
            # Probes pass: restarting an overloaded server makes it worse.
            raise HTTPException(503, "too many requests; try again shortly", {"retry-after": "1"})
        if len(scope.get("raw_path") or b"") + len(scope["query_string"]) > MAX_URL_BYTES:
            raise HTTPException(414, f"the URL is longer than {MAX_URL_BYTES:,} bytes")
        if len(scope["headers"]) > MAX_HEADERS or _size(scope) > MAX_HEAD_BYTES:
            # h11 limits a head while it is incomplete; one that arrives at once may be larger.
            raise HTTPException(
                431, f"more than {MAX_HEADERS} headers, or more than {MAX_HEAD_BYTES:,} bytes"
            )
        if "\x00" in scope["path"] or "\ufffd" in scope["path"]:
            raise HTTPException(400, "the path is not valid UTF-8 text without NUL")
        host = context.headers.get(b"host", b"")
        if self._hosts is not None and not self._hosts.allow(host):
            raise HTTPException(
                421,
                f"this server does not answer to the host name {host.decode('latin-1')!r}; use its address "
                "or localhost, or add the name to the setting server.hosts",
            )
        if self._origins is not None and scope["method"] not in SAFE_METHODS:
            context.needs_content_type = True
            self._origins.check(context.headers.get(b"origin"), host)
        length = context.headers.get(b"content-length", b"")
        if length.isdigit() and int(length) > self._limits.max_body_bytes:
            raise HTTPException(413, f"the body is larger than {self._limits.max_body_bytes:,} bytes")


def _size(scope: Scope) -> int:
    return sum(len(name) + len(value) for name, value in scope["headers"])


def _nothing() -> None:
    return None
