"""Measure the extender at 5,000 nodes: filter and bind every pod, as kube-scheduler does.

There are three processes: the embedded API as a fast fake API server, `gpufleet scheduler`, and this
one in the place of kube-scheduler, which filters one pod after the other while binds overlap. Pods
per second on one core are computed from the scheduler's CPU time, so that the other processes don't
count. Wall-clock figures are reported too.
"""

import asyncio
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from bench.result import Result

NODES, GPUS, PODS, WARM_UP = 5_000, 8, 1_500, 100
IN_FLIGHT = 32

API = """
import asyncio, sys
from pathlib import Path
from bench.scheduler import serve_api
asyncio.run(serve_api(Path(sys.argv[1])))
"""


async def serve_api(kubeconfig: Path) -> None:
    """Serve a cluster of 5,000 nodes on the embedded API until killed."""
    from gpufleet.kubernetes.crds.generate import definitions
    from kubelite import KubeLite
    from kubelite.storage.direct import DirectStorage

    async with KubeLite(window=100_000) as server:
        storage = DirectStorage(server)
        storage.put(definitions())
        storage.put(map(_node, range(NODES)))
        storage.put(map(_report, range(NODES)))
        storage.put(map(_claim, range(PODS + WARM_UP)))
        storage.put(map(_pod, range(PODS + WARM_UP)))
        server.write_kubeconfig(kubeconfig)
        await asyncio.Event().wait()


def _node(at: int) -> dict[str, Any]:
    ready = [{"type": "Ready", "status": "True"}]
    meta = {"name": f"node-{at:05d}", "labels": {"rack": f"r{at // 32}"}}
    return {"apiVersion": "v1", "kind": "Node", "metadata": meta, "status": {"conditions": ready}}


def _report(at: int) -> dict[str, Any]:
    name = f"node-{at:05d}"
    devices = [
        {"id": gpu, "health": "Healthy", "island": "i0", "bandwidthGBps": 900, "uuid": f"GPU-{at}-{gpu}"}
        for gpu in range(GPUS)
    ]
    return {
        "apiVersion": "gpu.scheduling/v1",
        "kind": "GpuNodeStatus",
        "metadata": {"name": name},
        "spec": {"nodeName": name},
        "status": {"devices": devices, "total": GPUS, "free": GPUS},
    }


def _claim(at: int) -> dict[str, Any]:
    size = (1, 1, 2, 1, 1, 1, 4, 1)[at % 8]
    return {
        "apiVersion": "gpu.scheduling/v1",
        "kind": "GpuClaim",
        "metadata": {"name": f"claim-{at:05d}", "namespace": "default"},
        "spec": {"devices": {"count": size}},
    }


def _pod(at: int) -> dict[str, Any]:
    meta = {
        "name": f"pod-{at:05d}",
        "namespace": "default",
        "uid": f"00000000-0000-4000-8000-{at:012d}",
        "annotations": {"gpu.scheduling/claim": f"claim-{at:05d}"},
    }
    spec = {"schedulerName": "gpu-scheduler", "containers": [{"name": "c", "image": "i"}]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


class Caller:
    """Calls the extender as kube-scheduler does."""

    def __init__(self, url: str, session: aiohttp.ClientSession) -> None:
        self._url = url
        self._session = session
        self._names = json.dumps([f"node-{at:05d}" for at in range(NODES)])
        self._free = asyncio.Semaphore(IN_FLIGHT)
        self._tasks: list[asyncio.Task[None]] = []
        self.filters: list[float] = []
        self.binds: list[float] = []

    async def schedule(self, at: int) -> None:
        """Filter one pod and start its bind."""
        pod = _pod(at)
        body = f'{{"Pod":{json.dumps(pod)},"Nodes":null,"NodeNames":{self._names}}}'
        started = time.perf_counter()
        answer = await self._post("/filter", body)
        self.filters.append(time.perf_counter() - started)
        await self._free.acquire()
        self._tasks.append(asyncio.create_task(self._bind(pod["metadata"], answer["NodeNames"][0])))

    async def _bind(self, meta: dict[str, Any], node: str) -> None:
        body = {"PodName": meta["name"], "PodNamespace": "default", "PodUID": meta["uid"], "Node": node}
        started = time.perf_counter()
        answer = await self._post("/bind", json.dumps(body))
        self.binds.append(time.perf_counter() - started)
        self._free.release()
        assert answer["Error"] == "", answer

    async def _post(self, path: str, body: str) -> Any:
        async with self._session.post(self._url + path, data=body) as answer:
            text = await answer.text()
            assert answer.status == 200, text
            return json.loads(text)

    async def done(self) -> None:
        await asyncio.gather(*self._tasks)
        self._tasks.clear()


async def _drive(url: str, scheduler: psutil.Process) -> tuple[list[float], list[float], float, float]:
    async with aiohttp.ClientSession() as session:
        await _ready(session, url)
        caller = Caller(url, session)
        for at in range(WARM_UP):
            await caller.schedule(at)
        await caller.done()
        caller.filters.clear()
        caller.binds.clear()
        before, started = sum(scheduler.cpu_times()[:2]), time.perf_counter()
        for at in range(WARM_UP, WARM_UP + PODS):
            await caller.schedule(at)
        await caller.done()
        return (
            caller.filters,
            caller.binds,
            time.perf_counter() - started,
            sum(scheduler.cpu_times()[:2]) - before,
        )


async def _ready(session: aiohttp.ClientSession, url: str) -> None:
    for _ in range(600):
        try:
            async with session.get(f"{url}/readyz") as answer:
                if answer.status == 200:
                    return
        except aiohttp.ClientError:
            pass
        await asyncio.sleep(0.1)
    raise TimeoutError("the scheduler did not become ready")


def measure() -> Iterable[Result]:
    with tempfile.TemporaryDirectory() as folder:
        kubeconfig = Path(folder) / "kubeconfig"
        environment = {
            **os.environ,
            "GPUFLEET_LOG_LEVEL": "error",
            "GPUFLEET_SCHEDULER_DIRECT_BINDING": "false",  # the calls of kube-scheduler are measured
        }
        api = subprocess.Popen([sys.executable, "-c", API, str(kubeconfig)])
        try:
            while not (kubeconfig.exists() and kubeconfig.read_text().strip()):
                assert api.poll() is None
                time.sleep(0.1)
            command = [
                sys.executable,
                "-m",
                "gpufleet",
                "scheduler",
                "--port",
                "0",
                "--kubeconfig",
                str(kubeconfig),
            ]
            scheduler = subprocess.Popen(
                command,
                cwd=folder,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            try:
                assert scheduler.stdout is not None
                found = re.search(r"http://\S+", scheduler.stdout.readline())
                assert found is not None
                figures = asyncio.run(_drive(found[0], psutil.Process(scheduler.pid)))
            finally:
                scheduler.terminate()
                scheduler.wait()
                assert scheduler.stdout is not None
                scheduler.stdout.close()
        finally:
            api.kill()
            api.wait()
    yield from _results(*figures)


def _results(filters: list[float], binds: list[float], wall: float, cpu: float) -> Iterable[Result]:
    setup = f"{NODES:,} nodes, {PODS:,} pods of 1.5 GPUs"
    yield Result(
        "scheduler: pods/s on one core", PODS / cpu, "pods/s", at_least=200, note=f"{setup}, CPU time"
    )
    yield Result(
        "scheduler: pods/s by wall clock",
        PODS / wall,
        "pods/s",
        note="with API server and caller on the same machine",
    )
    yield Result("scheduler: p99 of filter", _quantile(filters, 0.99) * 1000, "ms", at_most=15, note=setup)
    yield Result("scheduler: median of filter", _quantile(filters, 0.5) * 1000, "ms")
    yield Result(
        "scheduler: median of bind", _quantile(binds, 0.5) * 1000, "ms", note=f"{IN_FLIGHT} in flight"
    )


def _quantile(values: list[float], fraction: float) -> float:
    return sorted(values)[min(len(values) - 1, int(fraction * len(values)))]
