"""`/debug/vars` and `/debug/pprof/profile`, for operators at the machine itself.

They are there with `--debug` only, answer only callers on loopback, and, where login is on, only
operators (the gate sees to that). Profiles run one at a time.
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

from gpufleet.server.http.answers import Raw
from gpufleet.server.http.errors import Problem
from gpufleet.server.http.request_context import RequestContext
from gpufleet.server.http.routing import Route, get
from gpufleet.server.metrics import ServerMetrics
from gpufleet.server.routes.profile import profile


class ProfileAsked(msgspec.Struct):
    """How long to look."""

    seconds: Annotated[float, Meta(ge=0.1, le=300, description="How long to look.")] = 30.0


def debug_routes(metrics: ServerMetrics, counts: Mapping[str, Callable[[], object]]) -> list[Route]:
    """The routes under /debug; `counts` are sizes of queues and caches that other parts show."""
    one_at_a_time = asyncio.Semaphore(1)

    @get("/debug/vars", hidden=True)
    async def variables(context: RequestContext) -> Raw:
        """Memory, tasks, queues and caches of this process, as one JSON object."""
        _refuse_from_afar(context)
        return Raw(msgspec.json.encode(_variables(metrics, counts)), b"application/json")

    @get("/debug/pprof/profile", hidden=True)
    async def pprof_profile(query: ProfileAsked, context: RequestContext) -> Raw:
        """Where the time goes, for `go tool pprof`."""
        _refuse_from_afar(context)
        if one_at_a_time.locked():
            raise Problem(503, "another profile is being taken; try again when it is done")
        async with one_at_a_time:
            taken = await asyncio.to_thread(profile, query.seconds)
        disposition = (b"content-disposition", b'attachment; filename="profile.pb.gz"')
        return Raw(taken, b"application/octet-stream", headers=(disposition,), compress=False)

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


def _refuse_from_afar(context: RequestContext) -> None:
    try:
        near = ipaddress.ip_address(context.peer.partition("%")[0]).is_loopback
    except ValueError:
        near = False
    if not near:
        raise Problem(403, "/debug answers only callers on this machine")
