"""Check under flapping sources that the fleet converges and every response is valid.

A server over kubelite and a real Prometheus, both behind faulty proxies: the API's connections are reset
every two seconds, and Prometheus is healthy, slow, failing with 500 and returning garbage in turn, while
pods come and go. Meanwhile the live routes are requested all the time. In the end the faults stop, and
the fleet must equal the API.

`GPUFLEET_FLAP_SECONDS` sets the duration (default 30; 300 for a full run).
"""

import asyncio
import gc
import itertools
import os
import random
import resource
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, cast

import aiohttp
import httpx
from aiohttp import web
from e2e.cluster.proxy import Proxy
from tests.exporters.samples import exporter, scrape_config
from tests.prometheus_fixture import running_prometheus

from bench.result import Result
from gpufleet.exporters.prometheus.source import PrometheusSource
from gpufleet.fleet.clusters import Cluster, Clusters
from gpufleet.fleet.state import Fleet
from gpufleet.fleet.workloads.listing import Listing
from gpufleet.kubernetes import Backoff, Connection, KubeClient, WatchTimings
from gpufleet.kubernetes.crds.generate import definitions
from gpufleet.model.reading import Quantity
from gpufleet.runtime.logs import configure_logs
from gpufleet.runtime.settings import MetricsSettings
from gpufleet.server.app import Api, create_app
from gpufleet.server.routes.live.clusters import cluster_routes
from gpufleet.server.routes.live.gpus import gpu_routes
from gpufleet.server.routes.live.nodes import node_routes
from gpufleet.server.routes.live.workloads import workload_routes
from gpufleet.sources.kubernetes import KubernetesSource
from kubelite import KubeLite

SECONDS = float(os.environ.get("GPUFLEET_FLAP_SECONDS", "30"))
NODES, GPUS = 20, 8
PATHS = (
    "/api/clusters/overview",
    "/api/clusters/consumers",
    "/api/clusters/gpuHeatmap",
    "/api/workloads",
    "/api/nodes",
    "/api/v1/gpu/metrics",
    "/api/healthz",
)


def measure() -> Iterator[Result]:
    configure_logs("critical", "json")
    figures = asyncio.run(_measure())
    yield Result("responses while everything flapped", figures["responses"], "responses", at_least=1)
    yield Result("invalid responses", figures["invalid"], "responses", at_most=0)
    yield Result("unhandled exceptions", figures["unhandled"], "exceptions", at_most=0)
    yield Result("fleet equals the API in the end", figures["converged"], "1 = yes", at_least=1)
    yield Result("time to converge", figures["converged_s"], "s", at_most=60)
    yield Result("tasks left over", figures["tasks"], "tasks", at_most=0)
    yield Result("memory grown in the second half", figures["grown_mib"], "MiB", at_most=30)


async def _measure() -> dict[str, float]:
    unhandled: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: unhandled.append(context))
    figures: dict[str, float] = {}
    with exporter({"dcgm": _page()}) as target:
        config = scrape_config(target, {"dcgm": ""})
        with running_prometheus(config) as prometheus:
            async with KubeLite() as kubelite, _faulty(prometheus) as (url, fault):
                port = int(kubelite.url.rsplit(":", 1)[1])
                with Proxy(port) as proxy:
                    before = len(asyncio.all_tasks())
                    api = f"http://127.0.0.1:{proxy.port}"
                    figures = await _flap(kubelite, api, proxy, url, fault)
                    await asyncio.sleep(3.0)
                    figures["tasks"] = max(0, len(asyncio.all_tasks()) - before)
    gc.collect()
    figures["unhandled"] = len(unhandled)
    return figures


async def _flap(
    kubelite: KubeLite, url: str, proxy: Proxy, prometheus: str, fault: list[str]
) -> dict[str, float]:
    fleet = Fleet("flapping")
    settings = MetricsSettings(url=prometheus, refresh=1.0, timeout=1.0)
    async with (
        aiohttp.ClientSession(kubelite.url, headers=kubelite.headers) as session,
        KubeClient(Connection(url, token=kubelite.token), requests_per_second=500, burst=500) as client,
        PrometheusSource(settings) as metrics,
    ):
        world = World(session)
        await world.begin()
        timings = WatchTimings(backoff=Backoff(initial=0.1, maximum=1.0))
        source = KubernetesSource(client, fleet, timings=timings)
        cluster = Cluster("flapping", fleet, Listing(fleet, max_staleness=0.05), metrics)
        tasks = [
            asyncio.create_task(source.run()),
            asyncio.create_task(cluster.refresh_readings(1.0)),
            asyncio.create_task(cluster.publish_changes(0.2)),
        ]
        client_load = Requests(Clusters([cluster]))
        requesting = asyncio.create_task(client_load.run())
        loop = asyncio.get_running_loop()
        end, half, middle = loop.time() + SECONDS, loop.time() + SECONDS / 2, 0.0
        faults = itertools.cycle(["none", "slow", "error", "garbage"])
        while loop.time() < end:
            fault[0] = next(faults)
            proxy.drop()
            await world.change()
            await asyncio.sleep(2.0)
            if not middle and loop.time() >= half:
                middle = _memory()
        grown = _memory() - middle
        proxy.drop()
        await world.change()
        fault[0] = "none"
        repaired_at = loop.time()
        expected = await world.allocated()
        while loop.time() - repaired_at < 90 and not equals(fleet, expected):  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        converged_s = loop.time() - repaired_at
        converged = float(equals(fleet, expected))
        for task in (requesting, *tasks):
            task.cancel()
        await asyncio.wait([requesting, *tasks])
    return {
        "responses": client_load.responses,
        "invalid": client_load.invalid,
        "converged": converged,
        "converged_s": converged_s,
        "grown_mib": grown,
    }


class World:
    """Creates, ends and deletes pods, directly on the API."""

    def __init__(self, session: aiohttp.ClientSession) -> None:
        self._session = session
        self._random = random.Random(5)
        self._names = itertools.count()

    async def begin(self) -> None:
        for definition in definitions():
            await self._write("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
        status = {
            "capacity": {"nvidia.com/gpu": str(GPUS)},
            "allocatable": {"nvidia.com/gpu": str(GPUS)},
            "conditions": [{"type": "Ready", "status": "True"}],
        }
        for number in range(NODES):
            await self._write("POST", "/api/v1/nodes", {"metadata": {"name": f"n{number}"}})
            await self._write("PATCH", f"/api/v1/nodes/n{number}/status", {"status": status})

    async def change(self) -> None:
        for _ in range(10):
            await self._create()
        for pod in self._random.sample(await self._pods(), 5):
            name = pod["metadata"]["name"]
            if self._random.random() < 0.5:
                done = {"status": {"phase": self._random.choice(["Succeeded", "Failed"])}}
                await self._write("PATCH", f"/api/v1/namespaces/default/pods/{name}/status", done)
            else:
                path = f"/api/v1/namespaces/default/pods/{name}"
                await self._write("DELETE", path, {"gracePeriodSeconds": 0})

    async def allocated(self) -> dict[str, int]:
        """Return the GPUs held by the pods of each node, from the API."""
        held = {f"n{number}": 0 for number in range(NODES)}
        for pod in await self._pods():
            if pod["status"].get("phase") not in ("Succeeded", "Failed"):
                amount = pod["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"]
                held[pod["spec"]["nodeName"]] += int(amount)
        return {node: min(GPUS, gpus) for node, gpus in held.items()}

    async def _create(self) -> None:
        name = f"p{next(self._names)}"
        resources = {"limits": {"nvidia.com/gpu": str(self._random.randint(1, 2))}}
        container = {"name": "c", "image": "i", "resources": resources}
        spec = {"nodeName": f"n{self._random.randrange(NODES)}", "containers": [container]}
        await self._write(
            "POST", "/api/v1/namespaces/default/pods", {"metadata": {"name": name}, "spec": spec}
        )

    async def _pods(self) -> list[dict[str, Any]]:
        async with self._session.get("/api/v1/namespaces/default/pods") as response:
            return cast(list[dict[str, Any]], (await response.json())["items"])

    async def _write(self, method: str, path: str, body: dict[str, Any]) -> None:
        headers = {"Content-Type": "application/merge-patch+json"} if method == "PATCH" else {}
        async with self._session.request(method, path, json=body, headers=headers) as response:
            assert response.status < 300, await response.text()


class Requests:
    """Requests the live routes in a loop and checks each response."""

    def __init__(self, clusters: Clusters) -> None:
        routes = [
            *cluster_routes(clusters),
            *workload_routes(clusters),
            *gpu_routes(clusters),
            *node_routes(clusters),
        ]
        self._app = create_app(Api(routes=routes))
        self.responses = 0
        self.invalid = 0

    async def run(self) -> None:
        transport = httpx.ASGITransport(cast(Any, self._app))
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1", timeout=10) as http:
            for path in itertools.cycle(PATHS):
                response = await http.get(path)
                body = response.json()
                valid = response.status_code == 200 and (body.get("code") == 0 or body.get("success") is True)
                self.responses += 1
                self.invalid += not valid
                await asyncio.sleep(0.01)


def equals(fleet: Fleet, held: dict[str, int]) -> bool:
    """Return whether the fleet has these GPUs held on each node, and recent, right readings of all."""
    column = fleet.gpu_columns.column(Quantity.UTILIZATION)
    readings = {key: column[slot] for slot, key in enumerate(fleet.gpu_columns.keys) if key is not None}
    fresh = time.time() - fleet.gpu_columns.readings.taken_at < 5 and not fleet.gpu_columns.readings.errors
    expected = {(f"n{n}", g): g * 10.0 for n in range(NODES) for g in range(GPUS)}
    return fresh and readings == expected and {n: v.allocated for n, v in fleet.views().items()} == held


@asynccontextmanager
async def _faulty(prometheus: str) -> AsyncIterator[tuple[str, list[str]]]:
    """Proxy Prometheus with the current fault."""
    fault = ["none"]

    async def handle(request: web.Request) -> web.Response:
        if fault[0] == "error":
            return web.Response(status=500, text="no")
        if fault[0] == "garbage":
            return web.Response(body=b'{"status":"success","data":{"resultType":"vector","result":[{"metric"')
        if fault[0] == "slow":
            await asyncio.sleep(1.5)
        body = await request.read()
        headers = {"Content-Type": request.headers.get("Content-Type", "application/x-www-form-urlencoded")}
        async with session.request(request.method, request.path_qs, data=body, headers=headers) as response:
            return web.Response(
                body=await response.read(), status=response.status, content_type="application/json"
            )

    app = web.Application()
    app.router.add_route("*", "/{path:.*}", handle)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    async with aiohttp.ClientSession(prometheus) as session:
        try:
            yield f"http://127.0.0.1:{runner.addresses[0][1]}", fault
        finally:
            await runner.cleanup()


def _page() -> str:
    lines = [
        f'DCGM_FI_DEV_GPU_UTIL{{Hostname="n{n}",gpu="{g}",UUID="GPU-{n}-{g}",modelName="NVIDIA H200"}} {g * 10}'
        for n in range(NODES)
        for g in range(GPUS)
    ]
    return "\n".join(lines) + "\n"


def _memory() -> float:
    with open("/proc/self/statm") as status:
        return int(status.read().split()[1]) * resource.getpagesize() / 2**20
