"""Measure the latency of the live routes with 100,000 GPUs and 10,000 workloads, while the fleet refreshes.

The server runs in its own process over a fleet built in memory: 12,500 nodes of 8 GPUs, and 10,000
workloads that hold 80,000 of them. Every 5 seconds it takes new readings of all GPUs, with the holders that
exporters name, and it gets 50 watch events a second. Another process sends 200 requests a second without
waiting for responses (an open loop); the latency of a request counts from the time it was due.

`/api/v1/gpu/metrics` is requested from a fleet of 10,000 GPUs as fast as it answers; responses are counted
per second of the server's CPU time.
"""

import asyncio
import itertools
import multiprocessing
import os
import time
from collections.abc import Iterable, Sequence
from multiprocessing.connection import Connection

import numpy as np
import psutil
import uvloop

from bench.http import _bare, _connect, _rate, _run, _server
from bench.result import Result
from gpufleet.fleet.clusters import Cluster, Clusters
from gpufleet.fleet.state import Fleet
from gpufleet.fleet.workloads.listing import Listing
from gpufleet.model.metric_source import SourceHealth
from gpufleet.model.node import FleetNode
from gpufleet.model.reading import (
    GpuIdentity,
    GpuRef,
    GpuUser,
    Processes,
    Quantity,
    RdmaPorts,
    Readings,
    StorageUse,
)
from gpufleet.model.workload import FleetOwner, FleetPod, OwnerRef, Status
from gpufleet.runtime.logs import configure_logs
from gpufleet.server.app import Api, create_app
from gpufleet.server.health import Lifecycle
from gpufleet.server.http.server import Server
from gpufleet.server.routes.live.clusters import cluster_routes
from gpufleet.server.routes.live.gpus import gpu_routes
from gpufleet.server.routes.live.workloads import workload_routes

NODES, GPUS, WORKLOADS = 12_500, 8, 10_000
RATE, SECONDS, WARM = 200, 12.0, 2.0
EVENTS_A_SECOND, REFRESH = 50, 5.0
PATHS = (
    "/api/clusters/overview",
    "/api/clusters/gpuHeatmap",
    "/api/clusters/consumers?pageNum={page}&pageSize=20",
    "/api/workloads?pageNum={page}&pageSize=20",
    "/api/workloads?namespace=team-3&pageNum={page}&pageSize=20",
)
_QUANTITIES = (
    Quantity.UTILIZATION,
    Quantity.TEMPERATURE,
    Quantity.POWER,
    Quantity.MEMORY_USED,
    Quantity.MEMORY_TOTAL,
    Quantity.MEMORY_FREE,
    Quantity.MEMORY_UTILIZATION,
)
_spawn = multiprocessing.get_context("spawn")


def measure() -> Iterable[Result]:
    with _server(_bare) as (port, _):
        times = _open_loop(port, ("/",))["/"]
        noise = float(np.percentile(times, 99)) * 1000
        yield Result(f"a bare server, p99 at {RATE} requests/s", noise, "ms", note="noise of this machine")
    with _server(_serve_fleet) as (port, pid):
        before = sum(psutil.Process(pid).cpu_times()[:2])
        latencies = _open_loop(port, PATHS)
        busy = (sum(psutil.Process(pid).cpu_times()[:2]) - before) / (SECONDS + WARM)
        yield Result("CPU time of the server", busy, "cores", at_most=1)
        for path, times in latencies.items():
            name = path.partition("?")[0].rpartition("/")[2] + (
                " of one namespace" if "namespace" in path else ""
            )
            p50, p99 = np.percentile(times, [50, 99])
            yield Result(f"{name}, p50 at {RATE} requests/s", float(p50) * 1000, "ms")
            yield Result(f"{name}, p99 at {RATE} requests/s", float(p99) * 1000, "ms", at_most=15)
    with _server(_serve_gpus) as server:
        for encoding in ("gzip", "identity"):
            headers = f"Accept-Encoding: {encoding}\r\n"
            rate = _rate(server, "/api/v1/gpu/metrics", headers, connections=4)
            yield Result(f"gpu/metrics of 10,000 GPUs, {encoding}", rate, "responses/s", at_least=100)


class RandomReadings:
    """A metric source with random readings of every GPU."""

    def __init__(self, nodes: int, held: int) -> None:
        self._dice = np.random.default_rng(7)
        self._gpus = tuple(
            GpuIdentity(GpuRef(_node(n), i), uuid=f"GPU-{n}-{i}", model="NVIDIA H200", vendor="NVIDIA")
            for n in range(nodes)
            for i in range(GPUS)
        )
        self._holders = {
            n * GPUS + i: (GpuUser(namespace=f"team-{n % 20}", pod=f"train-{n}-0", container="main"),)
            for n in range(held)
            for i in range(GPUS)
        }

    async def latest(self) -> Readings:
        now, size = time.time(), len(self._gpus)
        values = {quantity: self._dice.uniform(1, 100, size) for quantity in _QUANTITIES}
        return Readings(now, self._gpus, values, {q: np.full(size, now) for q in values}, self._holders)

    async def processes(self) -> Processes:
        return Processes()

    async def storage(self) -> StorageUse | None:
        return StorageUse(1e15, 4e14, 6e14)

    async def rdma(self) -> RdmaPorts | None:
        return RdmaPorts(100, 99, 5e10, 5e12)

    def health(self) -> SourceHealth:
        return SourceHealth(True, time.time())


def _node(number: int) -> str:
    return f"node-{number:05}"


def _fleet(nodes: int, workloads: int) -> Fleet:
    fleet = Fleet("bench")
    for n in range(nodes):
        fleet.put_node(FleetNode(name=_node(n), gpu_count=GPUS, gpu_model="NVIDIA H200"))
    for w in range(workloads):
        fleet.put_owner(
            FleetOwner(
                uid=f"job-{w}",
                kind="Job",
                name=f"train-{w}",
                namespace=f"team-{w % 20}",
                api_version="batch/v1",
                status=Status.RUNNING,
                created=1.7e9 + w,
            )
        )
        fleet.put_pod(_pod(w))
    return fleet


def _pod(number: int, turn: int = 0) -> FleetPod:
    return FleetPod(
        uid=f"pod-{number}",
        name=f"train-{number}-0",
        namespace=f"team-{number % 20}",
        node=_node(number),
        gpus=GPUS,
        # Half of the pods name the GPUs they hold; exporters name those of the rest.
        held=tuple(range(GPUS)) if number % 2 else (),
        phase=Status.RUNNING,
        labels={"turn": str(turn)},
        bound=1.7e9 + number,
        started=1.7e9 + number + turn,
        owner=OwnerRef(f"job-{number}", "Job", f"train-{number}", "batch/v1"),
    )


def _serve_fleet(ready: Connection) -> None:
    _serve(ready, NODES, WORKLOADS, refreshes=True)


def _serve_gpus(ready: Connection) -> None:
    _serve(ready, 10_000 // GPUS, 1_000, refreshes=False)


def _serve(ready: Connection, nodes: int, workloads: int, *, refreshes: bool) -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    configure_logs("info", "json")
    fleet, source = _fleet(nodes, workloads), RandomReadings(nodes, workloads)
    fleet.put_readings(asyncio.run(source.latest()))
    cluster = Cluster("bench", fleet, Listing(fleet), source)  # type: ignore[arg-type]
    clusters, lifecycle = Clusters([cluster]), Lifecycle()
    routes = [*cluster_routes(clusters), *workload_routes(clusters), *gpu_routes(clusters)]
    server = Server(create_app(Api(routes=routes, lifecycle=lifecycle)), lifecycle, 1)
    if refreshes:
        server.on_started = lambda: _start_background(cluster)
    _run(server, ready)


_tasks: list["asyncio.Task[None]"] = []


def _start_background(cluster: Cluster) -> None:
    work = (cluster.refresh_readings(REFRESH), cluster.publish_changes(), _watch(cluster.fleet))
    _tasks.extend(asyncio.ensure_future(each) for each in work)


async def _watch(fleet: Fleet) -> None:
    """Apply watch events: changed pods, new and deleted workloads."""
    for turn in itertools.count(1):
        number = (turn * 37) % WORKLOADS
        if turn % 10 == 0:
            fleet.drop_pod(f"pod-{number}")
            fleet.drop_owner(f"job-{number}")
        else:
            fleet.put_pod(_pod(number, turn))
        await asyncio.sleep(1 / EVENTS_A_SECOND)


def _open_loop(port: int, paths: tuple[str, ...]) -> dict[str, Sequence[float]]:
    ours, theirs = _spawn.Pipe()
    process = _spawn.Process(target=_send_load, args=(theirs, port, paths), daemon=True)
    process.start()
    times: dict[str, Sequence[float]] = ours.recv()
    process.join(10)
    return times


def _send_load(report: Connection, port: int, paths: tuple[str, ...]) -> None:
    report.send(uvloop.run(_load(port, paths)))


async def _load(port: int, paths: tuple[str, ...]) -> dict[str, list[float]]:
    loop = asyncio.get_running_loop()
    idle: list[_Client] = []
    for _ in range(64):
        client = _Client()
        await _connect(loop, client, port)  # type: ignore[arg-type]
        idle.append(client)
    times: dict[str, list[float]] = {path: [] for path in paths}
    waiting = []
    start = time.perf_counter() + 0.5
    for number in range(int(RATE * (SECONDS + WARM))):
        due = start + number / RATE
        await asyncio.sleep(max(0.0, due - time.perf_counter()))
        path = paths[number % len(paths)]
        client = idle.pop(0) if idle else _Client()
        if not hasattr(client, "transport"):
            await _connect(loop, client, port)  # type: ignore[arg-type]
        response = client.send(path.format(page=number % 50 + 1), due)

        def done(
            response: "asyncio.Future[float]", path: str = path, client: "_Client" = client, due: float = due
        ) -> None:
            if due > start + WARM:
                times[path].append(response.result())
            idle.append(client)

        response.add_done_callback(done)
        waiting.append(response)
    await asyncio.gather(*waiting)
    return times


class _Client(asyncio.Protocol):
    """A keep-alive connection that carries one request at a time."""

    transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self._missing = 0
        self._response: asyncio.Future[float] | None = None

    def send(self, path: str, due: float) -> "asyncio.Future[float]":
        self._due = due
        self._response = asyncio.get_running_loop().create_future()
        self.transport.write(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
        return self._response

    def data_received(self, data: bytes) -> None:
        if not self._missing:
            head, _, rest = data.partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 "), head
            self._missing = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0])
            data = rest
        self._missing -= len(data)
        if not self._missing and self._response is not None:
            self._response.set_result(time.perf_counter() - self._due)
