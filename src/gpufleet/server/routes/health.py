"""The routes that every server has: health, readiness and its own metrics."""

from collections.abc import Callable
from datetime import UTC, datetime

from gpufleet import __version__
from gpufleet.server.health import Dependencies, DependencyHealth, Health, HealthAnswers, Lifecycle
from gpufleet.server.http.answers import Prepared, Raw
from gpufleet.server.http.errors import Problem
from gpufleet.server.http.routing import Route, get
from gpufleet.server.metrics import ServerMetrics

_TEXT = b"text/plain; charset=utf-8"
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


def own_routes(
    dependencies: Dependencies,
    lifecycle: Lifecycle,
    metrics: ServerMetrics,
    *,
    simulated: bool,
    clock: Callable[[], float],
) -> list[Route]:
    """Health, liveness, readiness and metrics."""

    healths = HealthAnswers(dependencies, __version__, simulated, clock)

    @get("/api/healthz", example=_EXAMPLE)
    async def healthz() -> Prepared[Health]:
        """Whether the service works, and each of its dependencies.

        The status is 200 while the server can serve: losing a dependency makes it degraded.
        """
        return healths.now()

    @get("/livez", media_type="text/plain; charset=utf-8")
    async def livez() -> Raw:
        """Whether the process lives: restart it if this does not answer."""
        return Raw(b"ok\n", _TEXT)

    @get("/readyz", media_type="text/plain; charset=utf-8")
    async def readyz() -> Raw:
        """Whether to send traffic here."""
        if lifecycle.unready:
            raise Problem(503, lifecycle.unready, ((b"retry-after", b"1"),))
        return Raw(b"ok\n", _TEXT)

    @get("/metrics", media_type="text/plain; version=1.0.0; charset=utf-8")
    async def own_metrics() -> Raw:
        """This server's own metrics, for Prometheus to scrape."""
        return Raw(metrics.exposition(), b"text/plain; version=1.0.0; charset=utf-8")

    return [healthz, livez, readyz, own_metrics]
