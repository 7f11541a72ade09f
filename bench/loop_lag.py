"""How long one request keeps all others waiting, at 100,000 GPUs and 10,000 workloads.

Each route is asked right after the fleet has changed, so that nothing of its answer is there yet, and again.
What counts is the longest stretch of processor time that the loop's thread spent without looking at
anything else: time that other requests wait, whatever else runs on the machine.
"""

import asyncio
import contextlib
import gc
import time
from collections.abc import AsyncIterator, Iterable, Iterator

import httpx
import uvloop

from bench.live_api import NODES, WORKLOADS, Made, _fleet, _pod
from bench.result import Result
from gpufleet.fleet.clusters import Cluster, Clusters
from gpufleet.fleet.listing import Listing
from gpufleet.fleet.state import Fleet
from gpufleet.runtime.listening import address_of, bind
from gpufleet.runtime.logs import configure_logs
from gpufleet.server.app import Api, create_app
from gpufleet.server.fleet_metrics import FleetMetrics
from gpufleet.server.health import Lifecycle
from gpufleet.server.http.server import Server
from gpufleet.server.metrics import ServerMetrics
from gpufleet.server.routes.clusters import cluster_routes
from gpufleet.server.routes.gpus import gpu_routes
from gpufleet.server.routes.nodes import node_routes
from gpufleet.server.routes.workloads import workload_routes

MOST = 100.0
"""Milliseconds that a request may keep the loop."""
PATHS = (
    "/api/clusters/overview",
    "/api/clusters/consumers",
    "/api/clusters/consumers?pageNum=1000&pageSize=1000",
    "/api/clusters/gpuHeatmap",
    "/api/clusters/gpuHeatmap?topK=1000",
    "/api/workloads",
    "/api/workloads?name=99&pageSize=1000",
    "/api/workloads?namespace=team-3&status=Running&orderBy=end_at&pageSize=1000",
    "/api/workloads/job-77",
    "/api/workloads/job-77/hierarchy",
    "/api/workloadMetadata",
    "/api/nodes",
    "/api/nodes?pageSize=1000",
    "/api/nodes/node-00077",
    "/api/v1/gpu/metrics?node=node-00077",
    "/api/v1/gpu/metrics?namespace=team-3",
    "/api/v1/gpu/metrics?workload=job-77",
    "/api/v1/gpu/metrics",
    "/metrics",
)


def measure() -> Iterable[Result]:
    configure_logs("error", "json")
    for name, longest in uvloop.run(_measured()).items():
        yield Result(name, longest, "ms", at_most=MOST)


class Watch:
    """The longest stretch of the loop since it was last asked, in processor time of its thread."""

    def __init__(self) -> None:
        self._last, self._longest = time.thread_time(), 0.0
        asyncio.get_running_loop().call_soon(self._tick)

    def _tick(self) -> None:
        self._look()
        asyncio.get_running_loop().call_soon(self._tick)

    def longest(self) -> float:
        """In milliseconds."""
        self._look()
        found, self._longest = self._longest, 0.0
        return found * 1000

    def _look(self) -> None:
        now = time.thread_time()
        self._longest, self._last = max(self._longest, now - self._last), now


async def _measured() -> dict[str, float]:
    found: dict[str, float] = {}
    watch = Watch()
    fleet, source = _fleet(NODES, WORKLOADS), Made(NODES, WORKLOADS)
    readings = await source.latest()
    gc.freeze()  # as the server does once it has listed everything
    watch.longest()
    await _slowly(fleet.start_accounting_steps())
    found["all is there, billing begins"] = watch.longest()
    cluster = Cluster("bench", fleet, Listing(fleet), source)  # type: ignore[arg-type]
    async with _serving(Clusters([cluster])) as address:
        watch.longest()
        await _slowly(fleet.put_readings_steps(readings))
        found["the first readings"] = watch.longest()
        for turn, path in enumerate(PATHS):
            _change(fleet, turn)
            readings = await source.latest()
            watch.longest()
            await _slowly(fleet.put_readings_steps(readings))
            found["readings"] = max(watch.longest(), found.get("readings", 0.0))
            for when in ("first", "again"):
                await asyncio.to_thread(_ask, address + path)
                found[f"{path}, {when}"] = watch.longest()
    return found


async def _slowly(steps: Iterator[None]) -> None:
    for _ in steps:
        await asyncio.sleep(0)


def _change(fleet: Fleet, turn: int) -> None:
    """What makes every answer of before an old one."""
    fleet.put_pod(_pod(turn, turn + 1))
    fleet.drop_pod(f"pod-{WORKLOADS - 1 - turn}")


def _ask(url: str) -> None:
    with httpx.Client(timeout=60) as client:
        client.get(url).raise_for_status()


@contextlib.asynccontextmanager
async def _serving(clusters: Clusters) -> AsyncIterator[str]:
    routes = [
        *cluster_routes(clusters),
        *workload_routes(clusters),
        *gpu_routes(clusters),
        *node_routes(clusters),
    ]
    metrics, lifecycle, ready = ServerMetrics(), Lifecycle(), asyncio.Event()
    metrics.registry.register(FleetMetrics(clusters))
    server = Server(create_app(Api(routes=routes, lifecycle=lifecycle, metrics=metrics)), lifecycle, 1)
    server.on_started = ready.set
    with bind("127.0.0.1", 0) as listening:
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        await ready.wait()
        try:
            yield address_of(listening)
        finally:
            server.stop()
            await serving
