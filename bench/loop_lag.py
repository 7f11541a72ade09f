"""Measure how long one request blocks the event loop, with 100,000 GPUs and 10,000 workloads.

Each route is requested right after the fleet has changed, so that nothing is cached, and then again. The
figure is the longest CPU time that the loop's thread spent in one callback: other requests wait for that
long, whatever else runs on the machine.
"""

import asyncio
import contextlib
import gc
import time
from collections.abc import AsyncIterator, Iterable, Iterator

import httpx
import uvloop

from bench.live_api import NODES, WORKLOADS, RandomReadings, _fleet, _pod
from bench.result import Result
from gpufleet.fleet.clusters import Cluster, Clusters
from gpufleet.fleet.state import Fleet
from gpufleet.fleet.workloads.listing import Listing
from gpufleet.runtime.listening import address_of, bind
from gpufleet.runtime.logs import configure_logs
from gpufleet.server.app import Api, create_app
from gpufleet.server.fleet_metrics import FleetMetrics
from gpufleet.server.health import Lifecycle
from gpufleet.server.http.server import Server
from gpufleet.server.metrics import ServerMetrics
from gpufleet.server.routes.live.clusters import cluster_routes
from gpufleet.server.routes.live.gpus import gpu_routes
from gpufleet.server.routes.live.nodes import node_routes
from gpufleet.server.routes.live.workloads import workload_routes

MAX_STALL = 100.0
"""Milliseconds."""
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
    for name, longest in uvloop.run(_measure()).items():
        yield Result(name, longest, "ms", at_most=MAX_STALL)


class LoopMonitor:
    """Measure the longest callback of the loop since the last call, in CPU time of its thread."""

    def __init__(self) -> None:
        self._last, self._longest = time.thread_time(), 0.0
        asyncio.get_running_loop().call_soon(self._tick)

    def _tick(self) -> None:
        self._look()
        asyncio.get_running_loop().call_soon(self._tick)

    def longest(self) -> float:
        """Return it in milliseconds."""
        self._look()
        found, self._longest = self._longest, 0.0
        return found * 1000

    def _look(self) -> None:
        now = time.thread_time()
        self._longest, self._last = max(self._longest, now - self._last), now


async def _measure() -> dict[str, float]:
    found: dict[str, float] = {}
    monitor = LoopMonitor()
    fleet, source = _fleet(NODES, WORKLOADS), RandomReadings(NODES, WORKLOADS)
    readings = await source.latest()
    gc.freeze()  # as the server does when it starts
    monitor.longest()
    await _run_steps(fleet.start_accounting_steps())
    found["start of accounting"] = monitor.longest()
    cluster = Cluster("bench", fleet, Listing(fleet), source)  # type: ignore[arg-type]
    async with _serving(Clusters([cluster])) as address:
        monitor.longest()
        await _run_steps(fleet.put_readings_steps(readings))
        found["first readings"] = monitor.longest()
        for turn, path in enumerate(PATHS):
            _change(fleet, turn)
            readings = await source.latest()
            monitor.longest()
            await _run_steps(fleet.put_readings_steps(readings))
            found["readings"] = max(monitor.longest(), found.get("readings", 0.0))
            for when in ("first", "again"):
                await asyncio.to_thread(_request, address + path)
                found[f"{path}, {when}"] = monitor.longest()
    return found


async def _run_steps(steps: Iterator[None]) -> None:
    for _ in steps:
        await asyncio.sleep(0)


def _change(fleet: Fleet, turn: int) -> None:
    """Change the fleet, so that no cached response is valid."""
    fleet.put_pod(_pod(turn, turn + 1))
    fleet.drop_pod(f"pod-{WORKLOADS - 1 - turn}")


def _request(url: str) -> None:
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
