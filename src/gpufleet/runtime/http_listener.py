"""The HTTP port of a process that is not the API server: probes, metrics and a few POST routes.

The agent, the scheduler and the webhook use it. Their callers (kubelet, Prometheus, kube-scheduler, API
server) keep connections open, so idle connections are kept longer than Go's HTTP client keeps them. A
client must not find a connection closed at the moment it sends: while `drain` lasts, requests are still
accepted, `/readyz` answers 503, and each response announces that its connection closes.
"""

import asyncio
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

from aiohttp import web

Probe = Callable[[], str]
"""Returns what is wrong, or an empty string."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

METRICS_CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
KEEP_ALIVE = 300.0
"""Seconds to keep an idle connection. Go's HTTP client closes idle connections after 90."""
SHUTDOWN_TIMEOUT = 5.0
"""Seconds for requests in flight to finish."""
BACKLOG = 1024
_MAX_BODY = 1024 * 1024


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
    ) -> None:
        self._metrics = metrics
        self._ready = ready
        self._stopping = False
        self._app = web.Application(client_max_size=max_body, middlewares=[self._close_when_stopping])
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
            self._app,
            handle_signals=False,
            access_log=None,
            keepalive_timeout=KEEP_ALIVE,
            shutdown_timeout=SHUTDOWN_TIMEOUT,
        )
        await runner.setup()
        try:
            await web.SockSite(runner, listening, ssl_context=tls, backlog=BACKLOG).start()
            try:
                yield
            finally:
                self._stopping = True
                await asyncio.sleep(drain)
        finally:
            await runner.cleanup()

    def _not_ready(self) -> str:
        return "shutting down" if self._stopping else self._ready()

    async def _serve_metrics(self, _request: web.Request) -> web.Response:
        return web.Response(body=self._metrics(), headers={"Content-Type": METRICS_CONTENT_TYPE})

    @web.middleware
    async def _close_when_stopping(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        response = await handler(request)
        if self._stopping:
            response.force_close()
        return response


def _probe_handler(probe: Probe) -> Handler:
    async def answer(_request: web.Request) -> web.Response:
        problem = probe()
        return web.Response(status=503 if problem else 200, text=f"{problem or 'ok'}\n")

    return answer
