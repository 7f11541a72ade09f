"""Put the HTTP application together: routes, errors, login, limits.

    app = create_app(Api(routes=[*cluster_routes(fleet)], probes={"store": store.probe}))

The result is an ASGI application; `gpufleet.server.http.server` runs it.
"""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from litestar import Litestar, Request, Response
from litestar.handlers import HTTPRouteHandler
from litestar.types import ASGIApp, ControllerRouterHandler

from gpufleet import __version__
from gpufleet.server.auth.caller import Probe
from gpufleet.server.auth.hosts import Hosts
from gpufleet.server.health import Dependencies, Lifecycle
from gpufleet.server.http.cors import Cors
from gpufleet.server.http.errors import problem_of
from gpufleet.server.http.middleware import Gate, Limits, Middleware
from gpufleet.server.http.openapi import openapi
from gpufleet.server.http.request_context import call_of
from gpufleet.server.http.routing import direct_answers
from gpufleet.server.metrics import ServerMetrics
from gpufleet.server.routes.debug import debug_routes
from gpufleet.server.routes.docs import pages
from gpufleet.server.routes.health import own_routes


@dataclass(frozen=True)
class Api:
    """Everything that the application is made of."""

    routes: Sequence[HTTPRouteHandler] = ()
    pages: Sequence[ControllerRouterHandler] = ()
    """Static files of the dashboard, as Litestar serves them; public."""
    probes: Mapping[str, Probe] = field(default_factory=dict)
    gate: Gate | None = None
    limits: Limits = field(default_factory=Limits)
    metrics: ServerMetrics = field(default_factory=ServerMetrics)
    lifecycle: Lifecycle = field(default_factory=Lifecycle)
    cors_origins: Sequence[str] = ()
    hosts: Sequence[str] | None = None
    """Names that the server answers to beside its addresses and localhost; None for any."""
    simulated: bool = False
    debug_counts: Mapping[str, Callable[[], object]] | None = None
    """What /debug/vars shows beside its own; None for a server without /debug."""
    clock: Callable[[], float] = time.time


def create_app(api: Api) -> ASGIApp:
    """The application of `api`."""
    dependencies = Dependencies(api.probes)
    routes = [
        *own_routes(dependencies, api.lifecycle, api.metrics, simulated=api.simulated, clock=api.clock),
        *api.routes,
    ]
    routes += pages(openapi(routes, __version__, login=api.gate is not None))
    if api.debug_counts is not None:
        routes += debug_routes(api.metrics, api.debug_counts)
    app = Litestar(
        route_handlers=[*routes, *api.pages],
        openapi_config=None,
        exception_handlers={Exception: _answer_error},
        request_max_body_size=None,
        lifespan=[_lifespan(dependencies, api.lifecycle)],
        logging_config=None,
    )
    return Middleware(
        app,
        api.limits,
        api.metrics,
        api.gate,
        Cors(api.cors_origins),
        Hosts(api.hosts) if api.hosts is not None else None,
        direct_answers(routes),
    )


def _lifespan(
    dependencies: Dependencies, lifecycle: Lifecycle
) -> Callable[[Litestar], AbstractAsyncContextManager[None]]:
    @asynccontextmanager
    async def lifespan(_app: Litestar) -> AsyncIterator[None]:
        await dependencies.check()
        watching = asyncio.create_task(dependencies.watch(), name="watch dependencies")
        lifecycle.started = True
        try:
            yield
        finally:
            watching.cancel()
            await asyncio.wait([watching])

    return lifespan


def _answer_error(request: Request[Any, Any, Any], error: Exception) -> Response[bytes]:
    """An exception that reached Litestar, in the envelope of the request's family."""
    call = call_of(request.scope)
    problem = problem_of(error)
    return Response(
        call.family.error(problem.status, problem.sentence, call.trace),
        status_code=problem.status,
        media_type="application/json",
        headers={
            "cache-control": "no-store",
            **{name.decode(): value.decode("latin-1") for name, value in problem.headers},
        },
    )
