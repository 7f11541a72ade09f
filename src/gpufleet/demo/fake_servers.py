"""Fake slurmrestd and Docker engine API for the Slurm jobs and containers of a simulated fleet.

Both listen on one loopback port, because their paths do not overlap. Each response is computed for
the time of the request. The server's Slurm and Docker sources read them like real ones.
"""

import asyncio
import time
from collections.abc import Callable
from types import TracebackType
from typing import Self

import msgspec
from aiohttp import web

from gpufleet.demo.objects import docker, slurm
from gpufleet.demo.simulation.hardware import DAY
from gpufleet.demo.simulation.simulation import Simulation
from gpufleet.demo.simulation.timeline import Run

_MAX_HISTORY = 31 * DAY
"""Seconds of job history in the accounting database."""

_POLL_SECONDS = 1.0
"""Seconds between checks for changed containers."""


class FakeServers:
    """Serve slurmrestd and the Docker engine API; `async with` opens and closes them."""

    def __init__(self, simulation: Simulation, clock: Callable[[], float] = time.time) -> None:
        self._simulation = simulation
        self._clock = clock
        self._slots = tuple(slot for slot in simulation.slots if slot.role.source != "k8s")
        app = web.Application()
        if any(machine.source == "slurm" for machine in simulation.hardware.machines):
            app.router.add_get(f"/slurm/{slurm.FORMAT}/jobs", self._jobs)
            app.router.add_get(f"/slurm/{slurm.FORMAT}/nodes", self._nodes)
            app.router.add_get(f"/slurmdb/{slurm.FORMAT}/jobs", self._past_jobs)
        if (machine := docker.host(simulation.hardware)) is not None:
            self._info = docker.info(machine)
            for version in ("", r"/v{version:1\.\d+}"):
                app.router.add_get(f"{version}/_ping", self._ping)
                app.router.add_get(f"{version}/info", self._engine_info)
                app.router.add_get(f"{version}/version", self._engine_version)
                app.router.add_get(f"{version}/containers/json", self._containers)
                app.router.add_get(f"{version}/containers/{{id}}/json", self._container)
                app.router.add_get(f"{version}/events", self._events)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=0.1)

    async def __aenter__(self) -> Self:
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0).start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._runner.cleanup()

    @property
    def url(self) -> str:
        """The URL of both APIs."""
        host, port = self._runner.addresses[0][:2]
        return f"http://{host}:{port}"

    @property
    def sources(self) -> frozenset[str]:
        """Which of `slurm` and `docker` the fleet has."""
        return frozenset(machine.source for machine in self._simulation.hardware.machines) - {"k8s"}

    def _runs(self, since: float, until: float) -> list[Run]:
        return list(self._simulation.runs(since, until, self._slots))

    # slurmrestd

    async def _jobs(self, request: web.Request) -> web.Response:
        at = self._clock()
        runs = self._runs(at - slurm.MIN_JOB_AGE, at)
        return _json({"jobs": slurm.jobs(runs, self._simulation.hardware, at), "errors": []})

    async def _nodes(self, request: web.Request) -> web.Response:
        at = self._clock()
        return _json({"nodes": slurm.nodes(self._runs(at, at), self._simulation.hardware, at), "errors": []})

    async def _past_jobs(self, request: web.Request) -> web.Response:
        at = self._clock()
        start_time = request.query.get("start_time", "").removeprefix("uts")
        since = float(start_time) if start_time.isascii() and start_time.isdigit() else at - DAY
        runs = self._runs(min(max(since, at - _MAX_HISTORY), at), at)
        return _json({"jobs": slurm.past_jobs(runs, self._simulation.hardware, at), "errors": []})

    # Docker engine

    def _current_containers(self) -> dict[str, docker.Json]:
        at = self._clock()
        return docker.containers(self._runs(at - docker.EXITED_RETENTION_SECONDS, at), at)

    async def _ping(self, request: web.Request) -> web.Response:
        return web.Response(text="OK", headers={"Api-Version": docker.VERSION["ApiVersion"]})

    async def _engine_info(self, request: web.Request) -> web.Response:
        return _json(self._info)

    async def _engine_version(self, request: web.Request) -> web.Response:
        return _json(docker.VERSION)

    async def _containers(self, request: web.Request) -> web.Response:
        include_stopped = request.query.get("all", "").lower() in ("1", "true")
        rows = [docker.row(container) for container in self._current_containers().values()]
        return _json([row for row in rows if include_stopped or row["State"] == "running"])

    async def _container(self, request: web.Request) -> web.Response:
        found = self._current_containers().get(request.match_info["id"])
        if found is None:
            return _json({"message": f"No such container: {request.match_info['id']}"}, status=404)
        return _json(found)

    async def _events(self, request: web.Request) -> web.StreamResponse:
        """Stream a line for each container that appears, changes or disappears."""
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        before = self._states()
        while True:
            await asyncio.sleep(_POLL_SECONDS)
            now = self._states()
            for id, state in sorted(now.items() ^ before.items()):
                action = state if now.get(id) == state else "destroy" if id not in now else ""
                if action:
                    line = {"Type": "container", "Action": action, "Actor": {"ID": id}}
                    await response.write(msgspec.json.encode(line) + b"\n")
            before = now

    def _states(self) -> dict[str, str]:
        return {id: container["State"]["Status"] for id, container in self._current_containers().items()}


def _json(body: object, status: int = 200) -> web.Response:
    return web.Response(body=msgspec.json.encode(body), status=status, content_type="application/json")
