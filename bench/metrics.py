"""Measure readings of 100,000 GPUs: decode one response, and a whole refresh over loopback.

Another process serves canned responses with dcgm-exporter's metrics, gzipped as by Prometheus. So the
figures are the cost of a refresh for the gpufleet server. The longest stall of the event loop is the
longest time that a request has to wait meanwhile. The baseline is the standard library's JSON.
"""

import asyncio
import gzip
import json
import multiprocessing
import random
import re
import resource
import sys
import time
from collections.abc import Callable, Iterable
from multiprocessing.connection import Connection

from aiohttp import web

from bench.result import Result
from gpufleet.exporters.prometheus.responses import decode_instant
from gpufleet.exporters.prometheus.source import PrometheusSource
from gpufleet.runtime.settings import MetricsSettings
from gpufleet.server.http.server import SWITCH_SECONDS

GPUS = 100_000
METRICS = {
    "DCGM_FI_DEV_GPU_UTIL": 100,
    "DCGM_FI_DEV_FB_USED": 80_000,
    "DCGM_FI_DEV_FB_FREE": 80_000,
    "DCGM_FI_DEV_FB_RESERVED": 600,
    "DCGM_FI_DEV_GPU_TEMP": 80,
    "DCGM_FI_DEV_POWER_USAGE": 700,
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 1_000_000,
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": 1,
}


def measure() -> Iterable[Result]:
    """Yield the figures."""
    sys.setswitchinterval(SWITCH_SECONDS)  # as the server does
    body = _response(_series(100, identity=False))
    ours = min(_timed(lambda: decode_instant(body, ("Hostname", "gpu"), print)) for _ in range(3))
    theirs = min(_timed(lambda: json.loads(body)) for _ in range(3))
    yield Result("decode 100,000 series", ours, "s", at_most=1.0)
    yield Result("decode 100,000 series, beside json.loads", theirs / ours, "times", at_least=2.0)
    ready, child = multiprocessing.get_context("spawn").Pipe()
    server = multiprocessing.get_context("spawn").Process(target=_serve, args=(child,), daemon=True)
    server.start()
    try:
        yield from asyncio.run(_refresh(f"http://127.0.0.1:{ready.recv()}"))
    finally:
        server.terminate()
        server.join()


async def _refresh(url: str) -> list[Result]:
    stalls: list[float] = []
    settings = MetricsSettings(url=url, refresh=3600.0, timeout=120.0)
    async with PrometheusSource(settings) as source:
        await source.refresh()
        watch = asyncio.create_task(_watch(stalls))
        walls, cores = [], []
        for _ in range(3):
            before = _cpu()
            wall = time.perf_counter()
            readings = await source.refresh()
            walls.append(time.perf_counter() - wall)
            cores.append(_cpu() - before)
        watch.cancel()
        assert len(readings) == GPUS
        assert not readings.errors
        assert len(readings.values) >= len(METRICS)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return [
        Result("refresh 100,000 GPUs × 8 quantities", min(walls), "s"),
        Result("refresh 100,000 GPUs × 8 quantities, processor time", min(cores), "s", at_most=4.0),
        Result("longest stall of the event loop while refreshing", max(stalls) * 1000, "ms", at_most=100.0),
        Result("99 of 100 stalls while refreshing are below", _high(stalls) * 1000, "ms", at_most=50.0),
        Result("largest memory of the process", peak, "MiB"),
    ]


async def _watch(stalls: list[float]) -> None:
    """Measure the time between two turns of the loop: the lower of wall time and this process's CPU time.

    Other processes lengthen wall time; threads that do not block the loop lengthen CPU time.
    """
    while True:
        clock, processor = time.perf_counter(), time.process_time()
        await asyncio.sleep(0.001)
        stalls.append(min(time.perf_counter() - clock, time.process_time() - processor))


def _high(stalls: list[float]) -> float:
    return sorted(stalls)[len(stalls) * 99 // 100]


def _cpu() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def _timed(call: Callable[[], object]) -> float:
    started = time.process_time()
    call()
    return time.process_time() - started


def _series(largest: int, identity: bool) -> list[str]:
    rng = random.Random(largest)
    rows = []
    for gpu in range(GPUS):
        labels = f'"Hostname":"node-{gpu // 8:05d}","gpu":"{gpu % 8}"'
        if identity:
            labels += (
                f',"UUID":"GPU-{gpu:08x}-0000-0000-0000-000000000000","instance":"10.0.0.1:9400",'
                f'"modelName":"NVIDIA H100 80GB HBM3","device":"nvidia{gpu % 8}"'
            )
        value = f"{time.time():.3f}" if identity or not largest else f"{rng.random() * largest:.3f}"
        rows.append(f'{{"metric":{{{labels}}},"value":[{time.time():.3f},"{value}"]}}')
    return rows


def _response(rows: list[str]) -> bytes:
    return ('{"status":"success","data":{"resultType":"vector","result":[' + ",".join(rows) + "]}}").encode()


def _serve(ready: "Connection[int, int]") -> None:
    bodies = {
        name: gzip.compress(_response(_series(top, identity=False)), 1) for name, top in METRICS.items()
    }
    identity = gzip.compress(_response(_series(1, identity=True)), 1)
    times = gzip.compress(_response(_series(0, identity=False)), 1)
    nothing = gzip.compress(_response([]), 1)
    names = gzip.compress(json.dumps({"status": "success", "data": list(METRICS)}).encode())

    async def respond(request: web.Request) -> web.Response:
        body = names
        if request.method == "POST":
            query = str((await request.post())["query"])
            metric = re.search(r"DCGM_[A-Z_]+", query)
            body = nothing if metric is None or query.startswith("group") else bodies[metric[0]]
            if "timestamp(" in query:
                body = identity if "UUID" in query else times
        headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
        return web.Response(body=body, headers=headers)

    async def main() -> None:
        app = web.Application()
        app.router.add_route("*", "/{tail:.*}", respond)
        runner = web.AppRunner(app)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        ready.send(runner.addresses[0][1])
        await asyncio.Event().wait()

    asyncio.run(main())
