"""`/debug/vars` and `/debug/pprof/profile`, for operators on the server's own machine.

They exist with `--debug` only, answer only callers on loopback and, if login is on, only operators.
"""

import asyncio
import gc
import ipaddress
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Annotated

import msgspec
import psutil
from msgspec import Meta
from starlette.exceptions import HTTPException

from gpufleet.server.http.answers import Raw
from gpufleet.server.http.request_context import RequestContext
from gpufleet.server.http.routing import Route, get
from gpufleet.server.metrics import ServerMetrics
from gpufleet.server.routes.platform.profile import profile


class ProfileParams(msgspec.Struct):
    """The query parameters of a profile."""

    seconds: Annotated[float, Meta(ge=0.1, le=300, description="How long to sample.")] = 30.0


def debug_routes(metrics: ServerMetrics, counts: Mapping[str, Callable[[], object]]) -> list[Route]:
    """Return the routes under /debug; `counts` are sizes of queues and caches to show."""
    profiling = asyncio.Lock()

    @get("/debug/vars", scope="unscoped", hidden=True)
    async def variables(context: RequestContext) -> Raw:
        """Return memory, tasks, queues and caches of this process, as one JSON object."""
        _require_loopback(context)
        return Raw(msgspec.json.encode(_variables(metrics, counts)), "application/json")

    @get("/debug/pprof/profile", scope="unscoped", hidden=True)
    async def pprof_profile(query: ProfileParams, context: RequestContext) -> Raw:
        """Return a profile for `go tool pprof`."""
        _require_loopback(context)
        if profiling.locked():
            raise HTTPException(503, "another profile is running; try again when it is done")
        async with profiling:
            profiled = await asyncio.to_thread(profile, query.seconds)
        headers = {"content-disposition": 'attachment; filename="profile.pb.gz"'}
        return Raw(profiled, "application/gzip", headers=headers)

    return [variables, pprof_profile]


def _variables(metrics: ServerMetrics, counts: Mapping[str, Callable[[], object]]) -> dict[str, object]:
    process = psutil.Process()
    return {
        "memory": {"rss_bytes": process.memory_info().rss, "gc_objects": sum(gc.get_count())},
        "tasks": len(asyncio.all_tasks()),
        "threads": threading.active_count(),
        "open_files": process.num_fds(),
        "requests_in_flight": metrics.in_flight,
        "python": sys.version.split()[0],
        **{name: count() for name, count in counts.items()},
    }


def _require_loopback(context: RequestContext) -> None:
    try:
        is_loopback = ipaddress.ip_address(context.peer.partition("%")[0]).is_loopback
    except ValueError:
        is_loopback = False
    # A proxy on this machine that is not trusted forwards callers from elsewhere.
    is_forwarded = b"x-forwarded-for" in context.headers or b"forwarded" in context.headers
    if not is_loopback or is_forwarded:
        raise HTTPException(403, "/debug answers only callers on this machine")
