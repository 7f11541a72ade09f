"""Serve the dashboard over a sample fleet, with a temporary database, until interrupted.

python -m dashboard.tools.serve --nodes 48 --port 8090
"""

import argparse
import asyncio
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from dashboard.tools.sample_cluster import live_routes, open_sample_cluster, simulate_changes

from gpufleet.exporters.embedded import EmbeddedMetrics
from gpufleet.fleet.clusters import Clusters
from gpufleet.runtime.background import Background
from gpufleet.runtime.listening import address_of, bind
from gpufleet.runtime.settings import StoreSettings
from gpufleet.server.app import Api, create_app
from gpufleet.server.dashboard import dashboard_routes
from gpufleet.server.health import Lifecycle
from gpufleet.server.http.server import Server
from gpufleet.store import open_store


async def main(nodes: int, port: int, folder: Path, static: bool) -> None:
    """Fill a database in `folder` and serve from it. With `static`, nothing changes afterwards."""
    async with open_store(StoreSettings(data=folder)) as store, Background() as background:
        cluster = await open_sample_cluster(store, nodes, time.time(), history=nodes <= 500)
        assert isinstance(cluster.metrics, EmbeddedMetrics)
        if not static:
            background.start("simulate_changes", lambda: simulate_changes(cluster))
        background.start("changes", cluster.publish_changes)
        lifecycle = Lifecycle()
        routes = [*live_routes(Clusters([cluster]), lifecycle, store), *dashboard_routes()]
        app = create_app(Api(lifecycle=lifecycle, routes=routes, simulated=True))
        with bind("127.0.0.1", port) as listening:
            server = Server(app, lifecycle, shutdown_grace=1.0)
            server.on_started = lambda: print(f"{address_of(listening)}/", flush=True)
            await server.serve(sockets=[listening])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=48)
    parser.add_argument("--port", type=int, default=8090)
    parser.add_argument("--static", action="store_true", help="do not change readings and nodes")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpufleet-sample-") as folder, suppress(KeyboardInterrupt):
        asyncio.run(main(args.nodes, args.port, Path(folder), args.static))
