"""The server: wiring, a loopback socket, and a kubeconfig.

    async with KubeLite() as server:
        print(server.url, server.token)

The server runs in the caller's event loop and listens on loopback by default. Every request needs a
token; without `tokens` the server makes one, whose user is an administrator.
"""

import asyncio
import secrets
import socket
import ssl
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from urllib.parse import quote

import yaml
from aiohttp import web

from kubelite.admission.webhooks import Webhooks
from kubelite.api.handler import Handler
from kubelite.api.watch_streams import WatchStreams
from kubelite.builtin.kinds import builtin_kinds
from kubelite.clock import Clock, utc_now
from kubelite.custom_resources.definitions import Definitions
from kubelite.json import Json
from kubelite.kinds import Kind, Registry
from kubelite.objects.context import User, WriteContext
from kubelite.objects.deletion import Deletion
from kubelite.objects.garbage_collector import GarbageCollector
from kubelite.objects.objects import Objects
from kubelite.storage.store import Store

_MAX_BODY_BYTES = 3 * 1024 * 1024
_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
_PRIORITIES = {"system-cluster-critical": 2000000000, "system-node-critical": 2000001000}


class KubeLite:
    """An embedded Kubernetes API server.

    `window` is the number of changes per resource from which a watch can resume; older resource
    versions get a 410. `event_ttl` is the age at which Events are deleted.
    """

    def __init__(
        self,
        *,
        host: str = "127.0.0.1",
        port: int = 0,
        tokens: Mapping[str, User] | None = None,
        tls: ssl.SSLContext | None = None,
        clock: Clock = utc_now,
        window: int = 10_000,
        bookmark_seconds: float = 60.0,
        event_ttl: timedelta = timedelta(hours=1),
    ) -> None:
        self._host, self._port, self._tls = host, port, tls
        self.tokens = dict(tokens or {secrets.token_urlsafe(32): User()})
        self.store = Store(window)
        self.registry = Registry(builtin_kinds())
        self._definitions = Definitions(self.store, self.registry, clock)
        self._webhooks = Webhooks(self.store)
        self.objects = Objects(self.store, self.registry, self._webhooks, clock)
        self.deletion = Deletion(self.objects)
        self._garbage_collector = GarbageCollector(self.objects, self.deletion, self.registry, event_ttl)
        self._watches = WatchStreams(self.store, clock, backlog=2 * window, bookmark_seconds=bookmark_seconds)
        self._handler = Handler(self.registry, self.objects, self.deletion, self._watches, self.tokens, host)
        self._runner: web.ServerRunner | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def url(self) -> str:
        """The base URL of the server."""
        return f"{'https' if self._tls else 'http'}://{self._host}:{self._port}"

    @property
    def token(self) -> str:
        """The first token; `write_kubeconfig` writes it."""
        return next(iter(self.tokens))

    @property
    def headers(self) -> dict[str, str]:
        """The headers of a client with `token`."""
        return {"Authorization": f"Bearer {self.token}"}

    @property
    def watches(self) -> int:
        """The number of open watches."""
        return len(self._watches)

    async def start(self) -> None:
        """Start listening and garbage collection; on failure release everything."""
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        await self._create_default_objects()
        self._tasks.append(
            asyncio.create_task(self._garbage_collector.run(), name="kubelite-garbage-collector")
        )
        server = web.Server(
            self._handler.handle, request_factory=_request, access_log=None, handler_cancellation=True
        )
        self._runner = web.ServerRunner(server, handle_signals=False, shutdown_timeout=2.0)
        await self._runner.setup()
        listening = socket.create_server((self._host, self._port), backlog=1024)
        self._port = listening.getsockname()[1]
        await web.SockSite(self._runner, listening, ssl_context=self._tls).start()

    async def stop(self) -> None:
        """End all watches, close the socket and stop garbage collection."""
        self._watches.close_all()
        if self._runner is not None:
            await self._runner.cleanup()
            self._runner = None
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        await self._webhooks.close()

    async def __aenter__(self) -> "KubeLite":
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()

    async def _create_default_objects(self) -> None:
        """Create the namespaces and priority classes that every cluster has, unless an earlier start did."""
        context = WriteContext(manager="kubelite")
        namespaces = self.registry.find("", "v1", "namespaces")
        classes = self.registry.find("scheduling.k8s.io", "v1", "priorityclasses")
        assert namespaces is not None
        assert classes is not None
        defaults: list[tuple[Kind, str, Json]] = [(namespaces, name, {}) for name in _NAMESPACES]
        for name, value in _PRIORITIES.items():
            defaults.append(
                (classes, name, {"value": value, "description": "Used for system critical pods."})
            )
        for kind, name, fields in defaults:
            if self.store.get(kind.collection, "", name) is None:
                await self.objects.create(kind, "", {"metadata": {"name": name}, **fields}, context)

    def write_kubeconfig(self, path: Path, *, ca: Path | None = None) -> None:
        """Write a kubeconfig with `token` that only its owner can read; `ca` is the CA certificate with TLS."""
        # kubectl sends a token with TLS only, but always the credentials of an address.
        server = (
            self.url if self._tls else self.url.replace("://", f"://kubelite:{quote(self.token, safe='')}@")
        )
        cluster: dict[str, object] = {"server": server}
        if ca is not None:
            cluster["certificate-authority"] = str(ca)
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "kubelite", "cluster": cluster}],
            "users": [{"name": "kubelite", "user": {"token": self.token}}],
            "contexts": [{"name": "kubelite", "context": {"cluster": "kubelite", "user": "kubelite"}}],
            "current-context": "kubelite",
        }
        path.touch(mode=0o600)
        path.chmod(0o600)
        path.write_text(yaml.safe_dump(config))


def _request(message, payload, protocol, writer, task, loop=None):  # type: ignore[no-untyped-def]  # aiohttp calls it without types
    return web.BaseRequest(
        message, payload, protocol, writer, task, protocol._loop, client_max_size=_MAX_BODY_BYTES
    )
