"""Create the ASGI application from routes, probes and limits.

    app = create_app(Api(routes=[*cluster_routes(fleet)], probes={"store": store.probe}))

`gpufleet.server.http.server` runs the result.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.body_limit import RequestBodyLimitMiddleware
from starlette.middleware.cors import CORSMiddleware
from starlette.middleware.gzip import GZipMiddleware

from gpufleet import __version__
from gpufleet.errors import GpufleetError
from gpufleet.server.audit import AuditLog
from gpufleet.server.auth.gate import BearerGate
from gpufleet.server.auth.hosts import Hosts
from gpufleet.server.auth.oidc.sign_in import SignIn
from gpufleet.server.auth.origins import Origins
from gpufleet.server.health import Dependencies, Lifecycle, Probe
from gpufleet.server.http.answers import GZIP_MIN_BYTES
from gpufleet.server.http.errors import answer_error
from gpufleet.server.http.middleware import AdmissionMiddleware, Limits, TracingMiddleware
from gpufleet.server.http.openapi import openapi
from gpufleet.server.http.routing import Route
from gpufleet.server.limits.unread_body import UnreadBodyMiddleware
from gpufleet.server.metrics import ServerMetrics
from gpufleet.server.routes.platform.auth import auth_routes
from gpufleet.server.routes.platform.debug import debug_routes
from gpufleet.server.routes.platform.docs import docs_routes
from gpufleet.server.routes.platform.health import health_routes
from gpufleet.server.routes.platform.mcp import McpEndpoint

_NOT_COMPRESSED = ("application/gzip", "font/woff2", "image/png", "text/event-stream")


@dataclass(frozen=True)
class Api:
    """Everything that the application consists of."""

    routes: Sequence[Route] = ()
    probes: Mapping[str, Probe] = field(default_factory=dict)
    gate: BearerGate | None = None
    sign_in: SignIn | None = None
    limits: Limits = field(default_factory=Limits)
    metrics: ServerMetrics = field(default_factory=ServerMetrics)
    lifecycle: Lifecycle = field(default_factory=Lifecycle)
    cors_origins: Sequence[str] = ()
    hosts: Sequence[str] | None = None
    """Host names to answer to, in addition to IP addresses and localhost; None for any."""
    mcp: bool = False
    """Whether to serve tools for AI assistants at /mcp."""
    simulated: bool = False
    debug_counts: Mapping[str, Callable[[], object]] | None = None
    """Additional values for /debug/vars; None for a server without /debug."""
    clock: Callable[[], float] = time.time


def create_app(api: Api) -> Starlette:
    """Return the application of `api`."""
    dependencies = Dependencies(api.probes)
    audit = AuditLog()
    mcp = McpEndpoint(Origins(api.cors_origins, api.hosts or ()), enabled=api.mcp)
    api.metrics.dependencies(lambda: {name: state.state for name, state in dependencies.states.items()})
    routes = [
        *health_routes(
            dependencies,
            api.lifecycle,
            api.metrics,
            simulated=api.simulated,
            public_details=api.gate is None and api.hosts is not None,
            clock=api.clock,
        ),
        *auth_routes(login=api.gate is not None, sign_in=api.sign_in),
        *api.routes,
    ]
    routes += docs_routes(openapi(routes, __version__, login=api.gate is not None))
    if api.debug_counts is not None:
        routes += debug_routes(api.metrics, api.debug_counts)

    @asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        await dependencies.check()
        watching = asyncio.create_task(dependencies.watch(), name="watch dependencies")
        api.lifecycle.started = True
        try:
            async with mcp.running():
                yield
        finally:
            watching.cancel()
            await asyncio.wait([watching])
            audit.close()

    app = Starlette(
        routes=[*routes, mcp.route()],
        middleware=_middleware(api, audit),
        exception_handlers={HTTPException: answer_error, GpufleetError: answer_error},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False  # the tracing middleware normalizes paths
    return app


def _middleware(api: Api, audit: AuditLog) -> list[Middleware]:
    """Return the middleware, outermost first."""
    cors = Middleware(
        CORSMiddleware,
        allow_origins=[origin.rstrip("/") for origin in api.cors_origins],
        allow_methods=("GET", "HEAD", "POST"),
        allow_headers=(
            "authorization",
            "content-type",
            "if-none-match",
            "mcp-method",
            "mcp-name",
            "mcp-protocol-version",
            "traceparent",
        ),
        expose_headers=("etag", "retry-after", "traceresponse", "warning", "x-gpufleet-scope", "x-trace-id"),
        max_age=3600,
    )
    hosts = Hosts(api.hosts) if api.hosts is not None else None
    # Requests with tokens need no check of their origin: pages of other sites can't add the header. The gate
    # checks that of changes in a session.
    origins = Origins(api.cors_origins, api.hosts or ()) if api.gate is None else None
    return [
        Middleware(UnreadBodyMiddleware),
        Middleware(TracingMiddleware, api.metrics, audit.request),
        *([cors] if api.cors_origins else []),
        Middleware(
            GZipMiddleware,
            minimum_size=GZIP_MIN_BYTES,
            compresslevel=5,
            exclude_content_types=_NOT_COMPRESSED,
        ),
        Middleware(AdmissionMiddleware, api.limits, api.metrics, api.gate, hosts, origins),
        Middleware(RequestBodyLimitMiddleware, max_body_size=api.limits.max_body_bytes),
    ]
