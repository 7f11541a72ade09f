"""The HTTP port of a process that is not the API server: probes, metrics and a few POST routes.

The agent, the scheduler and the webhook use it. Their callers (kubelet, Prometheus, kube-scheduler, API
server) keep connections open, so idle connections are kept longer than Go's HTTP client keeps them. A
client must not find a connection closed at the moment it sends: while `drain` lasts, requests are still
accepted, `/readyz` answers 503, and each response announces that its connection closes.

Callers need no login on some of these ports, so heads, bodies, the time for both and the memory of all bodies
together are limited.
"""

import asyncio
import socket
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from gpufleet.runtime.stalled_connections import ClosesStalled, StallLimits

Probe = Callable[[], str]
"""Returns what is wrong, or an empty string."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

METRICS_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
KEEP_ALIVE = 300.0
"""Seconds to keep an idle connection. Go's HTTP client closes idle connections after 90."""
SHUTDOWN_TIMEOUT = 5.0
"""Seconds for requests in flight to finish."""
BODY_TIMEOUT = 30.0
"""Seconds for the body of a request to arrive."""
BACKLOG = 1024
MAX_HEAD_BYTES = 32 * 1024
MAX_HEADERS = 100
_MAX_BODY = 1024 * 1024
_MAX_BODIES = 32 * 1024 * 1024
"""Bytes of all bodies in memory at a time; one caller may use half of it."""
_LINGER = 1.0
"""Seconds to read on after a response, so that a client that still sends its body gets the response."""
_HANDSHAKE = 20.0
"""Seconds for a TLS handshake."""


def _no_problem() -> str:
    return ""


class HttpListener:
    """Answers `/livez`, `/readyz`, `/metrics` and the paths in `posts`."""

    def __init__(
        self,
        *,
        metrics: Callable[[], bytes],
        alive: Probe = _no_problem,
        ready: Probe = _no_problem,
        posts: Mapping[str, Handler] | None = None,
        max_body: int = _MAX_BODY,
        stalls: StallLimits = StallLimits(),  # noqa: B008  (frozen)
        body_timeout: float = BODY_TIMEOUT,
        max_bodies: int = _MAX_BODIES,
    ) -> None:
        self._metrics = metrics
        self._ready = ready
        self._stalls = stalls
        self._body_timeout = body_timeout
        self._stopping = False
        self._max_body = max_body
        self._bodies = _Bodies(max(max_bodies, max_body), max(max_bodies // 2, max_body))
        self._app = web.Application(
            client_max_size=max_body, middlewares=[self._close_when_stopping, self._limit_request]
        )
        self._app.router.add_get("/metrics", self._serve_metrics)
        for path, probe in (("/livez", alive), ("/healthz", alive), ("/readyz", self._not_ready)):
            self._app.router.add_get(path, _probe_handler(probe))
        for path, handler in (posts or {}).items():
            self._app.router.add_post(path, handler)

    @asynccontextmanager
    async def serving(
        self, listening: socket.socket, *, tls: ssl.SSLContext | None = None, drain: float = 0.0
    ) -> AsyncIterator[None]:
        """Serve within the block; at its end keep accepting requests for `drain` seconds."""
        runner = web.AppRunner(
            self._app, handle_signals=False, access_log=None, shutdown_timeout=SHUTDOWN_TIMEOUT
        )
        await runner.setup()
        server = None
        try:
            server = await asyncio.get_running_loop().create_server(
                lambda: self._connection(runner),
                sock=listening,
                ssl=tls,
                backlog=BACKLOG,
                ssl_handshake_timeout=_HANDSHAKE if tls else None,
            )
            try:
                yield
            finally:
                self._stopping = True
                await asyncio.sleep(drain)
        finally:
            if server is not None:
                server.close()
            await runner.cleanup()

    def _connection(self, runner: web.AppRunner) -> asyncio.Protocol:
        """Return the protocol of a new connection; aiohttp's own sites can't take another class."""
        assert runner.server is not None
        connection = _Connection(
            runner.server,
            loop=asyncio.get_running_loop(),
            access_log=None,  # type: ignore[arg-type]
            keepalive_timeout=KEEP_ALIVE,
            lingering_time=_LINGER,
            max_headers=MAX_HEADERS,
        )
        connection.stall_limits = self._stalls
        return connection

    def _not_ready(self) -> str:
        return "shutting down" if self._stopping else self._ready()

    async def _serve_metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=self._metrics(), headers={"Content-Type": METRICS_CONTENT_TYPE})

    @web.middleware
    async def _limit_request(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        if sum(len(name) + len(value) for name, value in request.raw_headers) > MAX_HEAD_BYTES:
            # aiohttp limits the number of headers and the length of each.
            raise web.HTTPRequestHeaderFieldsTooLarge(text=f"the headers exceed {MAX_HEAD_BYTES} bytes\n")
        if request.method != "POST" or request.match_info.http_exception is not None:
            return await handler(request)
        declared = self._max_body if request.content_length is None else request.content_length
        with self._bodies.reserve(request.remote or "", min(declared, self._max_body)):
            try:
                async with asyncio.timeout(self._body_timeout):
                    await request.read()  # the handler reads it again from memory
            except TimeoutError:
                raise web.HTTPRequestTimeout(
                    text=f"the body did not arrive within {self._body_timeout:g} s\n"
                ) from None
            return await handler(request)

    @web.middleware
    async def _close_when_stopping(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        response = await handler(request)
        if self._stopping:
            response.force_close()
        return response


class _Bodies:
    """The memory of the bodies that are read and handled, by the address of the caller."""

    def __init__(self, total: int, per_caller: int) -> None:
        self._total = total
        self._per_caller = per_caller
        self._used = Counter[str]()

    @contextmanager
    def reserve(self, caller: str, size: int) -> Iterator[None]:
        """Count `size` bytes within the block; refuse the request if there are too many."""
        again = {"Retry-After": "1"}
        if self._used[caller] + size > self._per_caller:
            raise web.HTTPTooManyRequests(text="this address sends too many large bodies\n", headers=again)
        if self._used.total() + size > self._total:
            raise web.HTTPServiceUnavailable(text="too many large bodies\n", headers=again)
        self._used[caller] += size
        try:
            yield
        finally:
            self._used[caller] -= size
            if not self._used[caller]:
                del self._used[caller]


def _probe_handler(probe: Probe) -> Handler:
    async def answer(_request: web.Request) -> web.Response:
        problem = probe()
        return web.Response(status=503 if problem else 200, text=f"{problem or 'ok'}\n")

    return answer


class _Connection(ClosesStalled, RequestHandler):  # type: ignore[misc]
    """One connection; the type of an argument is wider in one of the bases."""

    def awaits_request(self) -> bool:
        """Return whether the head of the next request is not complete."""
        return self._waiter is not None and not self._waiter.done()
