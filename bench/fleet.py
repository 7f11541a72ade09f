"""Measure a fleet of 100,000 GPUs: the initial list, then 2,000 events per second.

The fleet and the API server run in processes of their own, so that peak memory is measured for the
fleet alone. While events arrive, the overview and a page of workloads are requested 50 times per second
through the HTTP application. In the end the counts must be right.
"""

import asyncio
import json
import resource
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any

from bench.result import Result


def measure() -> Iterator[Result]:
    server = [sys.executable, "-m", "bench.fake_large_cluster"]
    with subprocess.Popen(server, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as api:
        assert api.stdout is not None
        assert api.stdin is not None
        try:
            url = api.stdout.readline().strip()
            run = [sys.executable, "-m", "bench.fleet", url]
            figures = json.loads(subprocess.run(run, capture_output=True, text=True, check=True).stdout)
        finally:
            api.stdin.close()
    yield Result("12,500 nodes, 30,000 pods: first list to ready", figures["ready_s"], "s", at_most=30)
    yield Result("readings of 100,000 GPUs put into the fleet", figures["readings_s"], "s")
    yield Result("events absorbed", figures["events_a_second"], "1/s", at_least=1900)
    yield Result(
        "overview while events come in, p99", figures["overview_p99_ms"], "ms", note="wall, in process"
    )
    yield Result(
        "page of workloads meanwhile, p99", figures["workloads_p99_ms"], "ms", note="wall, in process"
    )
    yield Result("peak memory of the reader", figures["peak_mib"], "MiB", at_most=2048)


async def _read(url: str) -> dict[str, float]:
    import aiohttp

    from bench.fake_large_cluster import EVENTS_A_SECOND, HOLDING, SECONDS
    from gpufleet.fleet.overview import overview
    from gpufleet.fleet.state import Fleet
    from gpufleet.kubernetes import Connection, KubeClient
    from gpufleet.sources.kubernetes import KubernetesSource

    fleet = Fleet("large")
    async with KubeClient(Connection(server=url), requests_per_second=1000, burst=1000) as client:
        source = KubernetesSource(client, fleet)
        started = time.perf_counter()
        following = asyncio.create_task(source.run())
        await source.synced()
        fleet.start_accounting()
        seen = overview(fleet)
        ready = time.perf_counter() - started
        assert (seen.nodes, seen.gpus, seen.allocated) == (12_500, 100_000, 100_000), seen
        readings_s = _put_readings(fleet)
        async with aiohttp.ClientSession() as session, session.get(url + "/go"):
            pass
        begun = time.perf_counter()
        latencies = await _request(fleet, lambda: time.perf_counter() - begun < SECONDS)
        total = EVENTS_A_SECOND * SECONDS
        ended = min(total, HOLDING) - max(0, total - HOLDING)
        while overview(fleet).allocated != 100_000 - 4 * ended and time.perf_counter() - begun < SECONDS + 60:  # noqa: ASYNC110
            await asyncio.sleep(0.05)
        took = time.perf_counter() - begun
        assert overview(fleet).allocated == 100_000 - 4 * ended, overview(fleet)
        following.cancel()
        await asyncio.wait([following])
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {
        "ready_s": ready,
        "readings_s": readings_s,
        "events_a_second": total / max(took, SECONDS),
        "peak_mib": peak,
        **latencies,
    }


def _put_readings(fleet: Any) -> float:
    import numpy as np

    from bench.fake_large_cluster import GPUS, NODES
    from gpufleet.model.reading import GpuIdentity, GpuRef, Quantity, Readings

    gpus = tuple(
        GpuIdentity(GpuRef(f"node-{n:05}", g), uuid=f"GPU-{n:05}-{g}", model="NVIDIA H200", vendor="NVIDIA")
        for n in range(NODES)
        for g in range(GPUS)
    )
    values = {quantity: np.random.default_rng(1).uniform(0, 100, len(gpus)) for quantity in Quantity}
    times = {quantity: np.full(len(gpus), 1.8e9) for quantity in Quantity}
    started = time.perf_counter()
    fleet.put_readings(Readings(taken_at=1.8e9, gpus=gpus, values=values, times=times))
    return time.perf_counter() - started


async def _request(fleet: Any, running: Any) -> dict[str, float]:
    from typing import cast

    import httpx

    from gpufleet.fleet.clusters import Cluster, Clusters
    from gpufleet.fleet.workloads.listing import Listing
    from gpufleet.server.app import Api, create_app
    from gpufleet.server.routes.live.clusters import cluster_routes
    from gpufleet.server.routes.live.workloads import workload_routes

    clusters = Clusters([Cluster("large", fleet, Listing(fleet), cast(Any, _NoMetrics()))])
    app = create_app(Api(routes=[*cluster_routes(clusters), *workload_routes(clusters)]))
    taken: dict[str, list[float]] = {"overview": [], "workloads": []}
    transport = httpx.ASGITransport(cast(Any, app))
    async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
        while running():
            for name, path in (
                ("overview", "/api/clusters/overview"),
                ("workloads", "/api/workloads?pageNum=3"),
            ):
                started = time.perf_counter()
                response = await http.get(path)
                taken[name].append(time.perf_counter() - started)
                assert response.status_code == 200, response.text
            await asyncio.sleep(0.02)
    return {f"{name}_p99_ms": sorted(times)[int(len(times) * 0.99)] * 1000 for name, times in taken.items()}


class _NoMetrics:
    """A metric source without storage and RDMA, which are not measured here."""

    async def storage(self) -> None:
        return None

    async def rdma(self) -> None:
        return None


if __name__ == "__main__":
    import os

    from gpufleet.runtime.logs import configure_logs

    configure_logs("error", "json")
    figures = asyncio.run(_read(sys.argv[1]))
    os.write(1, json.dumps(figures).encode())
