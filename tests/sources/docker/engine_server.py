"""A fake engine that serves recorded responses over a Unix socket and can fail on demand.

The responses have the shape of Docker 27's and Podman 4's, reduced to the relevant fields.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aiohttp import web


class EngineServer:
    """Serve containers by id."""

    def __init__(self, name: str = "dgx-7") -> None:
        self.info: dict[str, Any] = {"Name": name, "DefaultRuntime": "runc", "Runtimes": {"nvidia": {}}}
        self.version: dict[str, Any] = {"Version": "27.3.1", "Components": [{"Name": "Engine"}]}
        self.containers: dict[str, dict[str, Any]] = {}
        self.fault = ""
        self.stuck: dict[str, str] = {}
        """Containers whose inspection fails, and how: hang or 500."""
        self.inspected = 0
        self.listed = 0
        self._listeners: dict[asyncio.Queue[bytes], list[str]] = {}

    def run(self, name: str, status: str = "running", **host_config: Any) -> str:
        """Add or change a container and return its id."""
        id = format(abs(hash(name)), "016x") * 4
        state = {
            "Status": status,
            "ExitCode": host_config.pop("exit_code", 0),
            "StartedAt": "0001-01-01T00:00:00Z" if status == "created" else "2026-05-01T10:00:00.123456789Z",
            "FinishedAt": "2026-05-01T11:00:00Z" if status == "exited" else "0001-01-01T00:00:00Z",
        }
        config = {
            "Env": host_config.pop("env", []),
            "Labels": host_config.pop("labels", {}),
            "Image": "pytorch:2.6",
        }
        self.containers[id] = {
            "Id": id,
            "Name": f"/{name}",
            "Created": "2026-05-01T09:59:59Z",
            "State": state,
            "HostConfig": {"Runtime": "runc", "DeviceRequests": None, "Devices": [], **host_config},
            "Config": config,
        }
        self.emit(id, "start")
        return id

    def remove(self, id: str) -> None:
        """Remove a container."""
        del self.containers[id]
        self.emit(id, "destroy")

    @asynccontextmanager
    async def serving(self, socket: Path) -> AsyncIterator[str]:
        """Serve and yield the URL."""
        app = web.Application(middlewares=[self._fail])
        app.router.add_get("/info", self._info)
        app.router.add_get("/version", self._version)
        app.router.add_get("/containers/json", self._list)
        app.router.add_get("/containers/{id}/json", self._inspect)
        app.router.add_get("/events", self._events)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        await web.UnixSite(runner, str(socket)).start()
        try:
            yield f"unix://{socket}"
        finally:
            await runner.cleanup()

    def emit(self, id: str, action: str) -> int:
        """Send an event to the listeners that filter for the action; return their number."""
        line = json.dumps({"Type": "container", "Action": action, "Actor": {"ID": id}}).encode() + b"\n"
        name = action.partition(":")[0]
        listeners = [listener for listener, actions in self._listeners.items() if name in actions]
        for listener in listeners:
            listener.put_nowait(line)
        return len(listeners)

    @web.middleware
    async def _fail(self, request: web.Request, handler: Any) -> web.StreamResponse:
        match self.fault:
            case "500":
                return web.json_response({"message": "driver failed"}, status=500)
            case "garbage":
                return web.Response(body=b'{"Name": 7, "Id": [')
            case "hang":
                await asyncio.sleep(60)
        answer: web.StreamResponse = await handler(request)
        return answer

    async def _info(self, request: web.Request) -> web.Response:
        return web.json_response(self.info)

    async def _version(self, request: web.Request) -> web.Response:
        return web.json_response(self.version)

    async def _list(self, request: web.Request) -> web.Response:
        assert request.query["all"] == "true"
        self.listed += 1
        return web.json_response(
            [{"Id": id, "State": c["State"]["Status"], "Status": "…"} for id, c in self.containers.items()]
        )

    async def _inspect(self, request: web.Request) -> web.Response:
        self.inspected += 1
        if fault := self.stuck.get(request.match_info["id"]):
            if fault == "hang":
                await asyncio.sleep(60)
            return web.json_response({"message": "layer not found"}, status=500)
        found = self.containers.get(request.match_info["id"])
        if found is None:
            return web.json_response({"message": "No such container"}, status=404)
        return web.json_response(found)

    async def _events(self, request: web.Request) -> web.StreamResponse:
        filters = json.loads(request.query["filters"])
        assert filters["type"] == ["container"]
        response = web.StreamResponse()
        await response.prepare(request)
        mine: asyncio.Queue[bytes] = asyncio.Queue()
        self._listeners[mine] = filters["event"]
        try:
            while True:
                await response.write(await mine.get())
        finally:
            del self._listeners[mine]
