"""The routes of every server: health, liveness, readiness and its own metrics."""

from collections.abc import Callable
from datetime import UTC, datetime

from starlette.exceptions import HTTPException

from gpufleet import __version__
from gpufleet.server.health import Dependencies, DependencyHealth, Health, HealthAnswers, Lifecycle
from gpufleet.server.http.answers import Prepared, Raw
from gpufleet.server.http.request_context import RequestContext
from gpufleet.server.http.routing import Route, get
from gpufleet.server.metrics import ServerMetrics

_TEXT = "text/plain; charset=utf-8"
_EXPOSITION = "text/plain; version=1.0.0; charset=utf-8"
_EXAMPLE = Health(
    status="healthy",
    timestamp=datetime(2025, 11, 5, 12, tzinfo=UTC),
    version=__version__,
    dependencies={
        "metrics": DependencyHealth("ok", "Prometheus 3.7.3"),
        "store": DependencyHealth("ok", "PostgreSQL 18.1"),
        "kubernetes": DependencyHealth("off", "not configured"),
    },
)


def health_routes(
    dependencies: Dependencies,
    lifecycle: Lifecycle,
    metrics: ServerMetrics,
    *,
    simulated: bool,
    public_details: bool,
    clock: Callable[[], float],
) -> list[Route]:
    """Return the routes for health, liveness, readiness and metrics.

    With `public_details`, health shows the messages of dependencies to callers without login too.
    """
    answers = HealthAnswers(dependencies, __version__, simulated, clock)

    @get("/api/healthz", scope="public", example=_EXAMPLE)
    async def healthz(context: RequestContext) -> Prepared[Health]:
        """The health of the service and of each dependency.

        The status is 200 while the server can serve: losing a dependency makes it degraded. With a login,
        callers without a token, and those who are limited to namespaces, see the states of the dependencies but
        not their messages.
        """
        caller = context.caller
        full_login = caller is not None and caller.namespaces is None
        return answers.current(detailed=public_details or full_login)

    @get("/livez", scope="public", media_type=_TEXT)
    async def livez() -> Raw:
        """Liveness: restart the process if this does not answer."""
        return Raw(b"ok\n", _TEXT)

    @get("/readyz", scope="public", media_type=_TEXT)
    async def readyz() -> Raw:
        """Readiness: send traffic while this is 200."""
        if reason := lifecycle.unready:
            raise HTTPException(503, reason, {"retry-after": "1"})
        return Raw(b"ok\n", _TEXT)

    @get("/metrics", scope="unscoped", media_type=_EXPOSITION)
    async def own_metrics() -> Raw:
        """This server's own metrics, for Prometheus to scrape."""
        return Raw(metrics.exposition(), _EXPOSITION)

    return [healthz, livez, readyz, own_metrics]
