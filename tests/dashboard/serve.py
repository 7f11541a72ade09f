"""Serve the dashboard over the trial fleet, with a database of its own, until interrupted.

python -m tests.dashboard.serve --nodes 48 --port 8090
"""

import argparse
import asyncio
import tempfile
import time
from contextlib import suppress
from pathlib import Path

from tests.dashboard.trial_cluster import live_routes, open_trial, play

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


async def main(nodes: int, port: int, folder: Path, still: bool) -> None:
    """Fill a database, then serve from it; nothing changes if `still`."""
    async with open_store(StoreSettings(data=folder)) as store, Background() as background:
        cluster = await open_trial(store, nodes, time.time(), history=nodes <= 500)
        assert isinstance(cluster.metrics, EmbeddedMetrics)
        if not still:
            background.start("play", lambda: play(cluster))
        background.start("changes", cluster.publish_changes)
        lifecycle = Lifecycle()
        app = create_app(
            Api(
                lifecycle=lifecycle,
                routes=[*live_routes(Clusters([cluster]), lifecycle), *dashboard_routes()],
                simulated=True,
            )
        )
        with bind("127.0.0.1", port) as listening:
            server = Server(app, lifecycle, shutdown_grace=1.0)
            server.on_started = lambda: print(f"{address_of(listening)}/", flush=True)
            await server.serve(sockets=[listening])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=48)
    parser.add_argument("--port", type=int, default=8090)
    parser.add_argument("--still", action="store_true", help="let nothing change")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="gpufleet-trial-") as made, suppress(KeyboardInterrupt):
        asyncio.run(main(given.nodes, given.port, Path(made), given.still))
