"""Run a server with only the training routes, on a real socket and a real store."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gpufleet.exporters.embedded import EmbeddedMetrics
from gpufleet.fleet.clusters import Cluster, Clusters
from gpufleet.fleet.state import Fleet
from gpufleet.fleet.workloads.listing import Listing
from gpufleet.runtime.listening import address_of, bind
from gpufleet.runtime.settings import MetricsSettings
from gpufleet.server.app import Api, create_app
from gpufleet.server.auth.workload_tokens import WorkloadTokens
from gpufleet.server.health import Lifecycle
from gpufleet.server.http.server import Server
from gpufleet.server.routes.live.training import training_routes
from gpufleet.store import Store


@asynccontextmanager
async def training_server(fleet: Fleet, store: Store) -> AsyncIterator[str]:
    """Run a server that accepts training numbers for the workloads of `fleet`, and yield its address."""
    metrics = EmbeddedMetrics(fleet.cluster, store.readings, store.training, MetricsSettings())
    clusters = Clusters([Cluster(fleet.cluster, fleet, Listing(fleet), metrics)])
    routes = training_routes(clusters, store.training, WorkloadTokens(b"k" * 32))
    lifecycle, ready = Lifecycle(), asyncio.Event()
    server = Server(create_app(Api(routes=routes, lifecycle=lifecycle)), lifecycle, 1)
    server.on_started = ready.set
    with bind("127.0.0.1", 0) as listening:
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        try:
            await ready.wait()
            yield address_of(listening)
        finally:
            server.stop()
            await serving
