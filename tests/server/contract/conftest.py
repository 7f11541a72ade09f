"""A running server over the known fleet."""

import asyncio
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field

import asyncpg
import pytest
from tests.accounting.histories import HOUR
from tests.server.aggregation.conftest import record_known_hours
from tests.server.live.conftest import NOW, TOKENS, known_fleet, known_readings

from gpufleet.exporters.embedded import EmbeddedMetrics
from gpufleet.fleet.clusters import Cluster, Clusters
from gpufleet.fleet.workloads.listing import Listing
from gpufleet.model.reading import GpuProcess, GpuRef, Processes, TrainingPoint
from gpufleet.runtime.listening import address_of, bind
from gpufleet.runtime.settings import MetricsSettings, StoreSettings
from gpufleet.server.app import Api, create_app
from gpufleet.server.health import Lifecycle
from gpufleet.server.http.routing import Route
from gpufleet.server.http.server import Server
from gpufleet.server.routes.accounting.aggregation import aggregation_routes
from gpufleet.server.routes.accounting.report import report_routes
from gpufleet.server.routes.live.clusters import cluster_routes
from gpufleet.server.routes.live.events import event_routes
from gpufleet.server.routes.live.gpus import gpu_routes
from gpufleet.server.routes.live.nodes import node_routes
from gpufleet.server.routes.live.training import training_routes
from gpufleet.server.routes.live.workload_metrics import workload_metric_routes
from gpufleet.server.routes.live.workloads import workload_routes
from gpufleet.store import Store, open_store
from gpufleet.store.postgres.data_directory import DataDirectory as Postgres
from gpufleet.store.training import TrainingStore


class RecordingTraining(TrainingStore):
    """The real store; records the uids of its queries."""

    queried: set[str]

    async def read(
        self, workload_uid: str, start: float, end: float, rank: int | None = None
    ) -> list[TrainingPoint]:
        self.queried.add(workload_uid)
        return await super().read(workload_uid, start, end, rank)


@dataclass
class Running:
    """A server, until its lifecycle is stopped."""

    url: str = ""
    queried: set[str] = field(default_factory=set)
    """The uids that reached a query."""
    server: Server | None = None
    loop: asyncio.AbstractEventLoop | None = None
    error: BaseException | None = None
    ready: threading.Event = field(default_factory=threading.Event)


@pytest.fixture(scope="session")
def running(postgres: Postgres) -> Iterator[Running]:
    """The server; stops after the tests."""
    asyncio.run(_execute(postgres, 'CREATE DATABASE "contract" TEMPLATE template0'))
    running = Running()
    thread = threading.Thread(target=_run, args=(running, postgres.dsn_of("contract")))
    thread.start()
    try:
        assert running.ready.wait(60)
        if running.error is not None:
            raise running.error
        yield running
    finally:
        if running.loop is not None and running.server is not None:
            running.loop.call_soon_threadsafe(running.server.stop)
        thread.join(30)
    asyncio.run(_execute(postgres, 'DROP DATABASE "contract" WITH (FORCE)'))


def _run(running: Running, dsn: str) -> None:
    try:
        asyncio.run(_serve(running, dsn))
    except BaseException as error:
        running.error = error
    finally:
        running.ready.set()


async def _serve(running: Running, dsn: str) -> None:
    with bind("127.0.0.1", 0) as listening:
        async with open_store(StoreSettings(url=dsn, pool_size=4)) as store:
            lifecycle = Lifecycle()
            routes = await _routes(store, lifecycle, running.queried)
            server = Server(create_app(Api(routes=routes, lifecycle=lifecycle)), lifecycle, 1)
            running.url, running.server = address_of(listening), server
            running.loop = asyncio.get_running_loop()
            server.on_started = running.ready.set
            await server.serve(sockets=[listening])


async def _routes(store: Store, lifecycle: Lifecycle, queried: set[str]) -> list[Route]:
    training = RecordingTraining(store.database)
    training.queried = queried
    metrics = EmbeddedMetrics("prod", store.readings, training, MetricsSettings(), clock=lambda: NOW)
    for minutes in (20, 15, 10, 5):
        await metrics.record(known_readings(NOW - minutes * 60))
    await metrics.record(known_readings())
    await metrics.record_processes(
        Processes(
            (GpuProcess(GpuRef("half", 0), 42, "python", "alice", "python t.py", 2.0**30, 8.5, 1.5, NOW - 5),)
        )
    )
    points = [TrainingPoint(name, 0.5, NOW - 60 * n) for name in ("loss", "tflops") for n in range(5)]
    await metrics.record_training("job", points)
    fleet = known_fleet()
    fleet.put_readings(await metrics.latest())
    clusters = Clusters([Cluster("prod", fleet, Listing(fleet), metrics)])
    await record_known_hours(store)
    return [
        *aggregation_routes(store, "prod", lambda: HOUR + 7300.0),
        *report_routes(store, "prod", lambda: HOUR + 7300.0),
        *cluster_routes(clusters),
        *workload_routes(clusters),
        *workload_metric_routes(clusters, store.allocation_periods),
        *training_routes(clusters, training, TOKENS, clock=lambda: NOW),
        *gpu_routes(clusters),
        *node_routes(clusters),
        *event_routes(clusters, lifecycle),
    ]


async def _execute(cluster: Postgres, statement: str) -> None:
    connection = await asyncpg.connect(cluster.dsn_of("postgres"), timeout=10)
    try:
        await connection.execute(statement)
    finally:
        await connection.close()
