"""One replica: watches that fill the ledger, the election, and the HTTP server, until it is told to stop.

Every replica follows the cluster, so that a new leader need not read it first; only the leader
is Ready and changes anything. State is rebuilt from objects at every start.
"""

import asyncio
import socket
from collections.abc import Callable
from contextlib import AsyncExitStack

import uvicorn

from gpufleet.kubernetes import (
    GPU_CLAIMS,
    GPU_NODE_STATUSES,
    LEASES,
    NODES,
    POD_GROUPS,
    PODS,
    KubeClient,
    LeaderElection,
    Reflector,
    Selection,
    Terms,
)
from gpufleet.runtime.logs import get_logger
from gpufleet.runtime.settings import SchedulerSettings
from gpufleet.scheduler.extender import Extender
from gpufleet.scheduler.kubernetes_api import KubeApi
from gpufleet.scheduler.scheduler import Scheduler
from gpufleet.scheduler.standalone import Standalone

_log = get_logger("scheduler")

ELECTION = "gpufleet-scheduler"
"""The name of the lease by which the replicas elect a leader."""

STALE = 60.0
"""Seconds without a word from a watch after which this replica no longer calls itself Ready."""


class Replica:
    """A scheduler over one client."""

    def __init__(
        self,
        client: KubeClient,
        settings: SchedulerSettings,
        namespace: str,
        identity: str,
        terms: Terms = Terms(),  # noqa: B008  (frozen)
    ) -> None:
        self._settings = settings
        self.election = LeaderElection(client, namespace, ELECTION, identity, terms)
        self.desk = Scheduler(
            KubeApi(client, namespace, identity),
            settings,
            namespace,
            leading=lambda: self.election.leading,
            timing=client.timing,
        )
        self._nodes = Reflector(client, NODES)
        self._reports = Reflector(client, GPU_NODE_STATUSES)
        self._leases = Reflector(client, LEASES, Selection(namespace=namespace))
        self._claims = Reflector(client, GPU_CLAIMS)
        self._groups = Reflector(client, POD_GROUPS)
        self._pods = Reflector(client, PODS)
        self._needed = (self._nodes, self._reports, self._leases, self._claims, self._pods)
        self._synced = False
        self._leading = False
        desk = self.desk
        # Leases before pods: a holder is never seen without what it holds.
        self._leases.subscribe(desk.on_leases)
        self._nodes.subscribe(desk.on_nodes)
        self._reports.subscribe(desk.on_reports)
        self._claims.subscribe(desk.on_claims)
        self._groups.subscribe(desk.on_groups)
        self._pods.subscribe(desk.on_pods)

    def unready(self) -> str:
        """What keeps this replica from serving, or nothing."""
        if not self._synced:
            return "still reading the cluster"
        if not self._leading or not self.election.leading:
            return f"not the leader; {self.election.leader or 'nobody'} is"
        stale = [each.resource.kind for each in self._needed if each.state.lag > STALE]
        return f"nothing heard of {', '.join(stale)} for {STALE:g} s" if stale else ""

    def extender(self) -> Extender:
        """The HTTP application."""
        return Extender(self.desk, self.unready, self._settings.max_body_bytes)

    async def run(self) -> None:
        """Follow the cluster, stand for election and lead, until cancelled."""
        async with asyncio.TaskGroup() as group:
            for reflector in (*self._needed, self._groups):
                group.create_task(reflector.run())
            for reflector in self._needed:
                await reflector.synced()
            self._synced = True
            _log.info("cluster read", nodes=len(self._nodes.cache), pods=len(self._pods.cache))
            group.create_task(self.election.run(self._lead))

    async def _lead(self) -> None:
        self._leading = True
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self.desk.lead())
                if self._settings.standalone:
                    group.create_task(Standalone(self.desk, self._settings.name).run())
        finally:
            self._leading = False


class ExtenderServer(uvicorn.Server):
    """uvicorn without its signal handling; `stop` ends `serve`."""

    def __init__(self, extender: Extender, on_started: Callable[[], None]) -> None:
        super().__init__(
            uvicorn.Config(
                extender,
                http="httptools",
                ws="none",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_keep_alive=120,
                timeout_graceful_shutdown=5,
            )
        )
        self._on_started = on_started

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen, and say so."""
        await super().startup(sockets)
        self._on_started()

    def install_signal_handlers(self) -> None:
        """Signals are the command's."""

    def stop(self) -> None:
        """Finish what is in flight and return from `serve`."""
        self.should_exit = True


async def serve(replica: Replica, server: ExtenderServer, listening: socket.socket) -> None:
    """Run a replica and its server until the server is stopped."""
    async with AsyncExitStack() as closing:
        work = asyncio.ensure_future(replica.run())

        async def end() -> None:
            work.cancel()
            await asyncio.wait((work,))

        closing.push_async_callback(end)
        serving = asyncio.ensure_future(server._serve([listening]))
        done, _ = await asyncio.wait((work, serving), return_when=asyncio.FIRST_COMPLETED)
        if work in done:
            server.stop()
            await serving
            await work
