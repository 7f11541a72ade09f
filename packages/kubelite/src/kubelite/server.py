"""The server itself: wiring, a loopback socket, and a kubeconfig.

    async with KubeLite() as server:
        print(server.url)

Everything runs in the caller's event loop. With `data` the objects outlive the process, see
`journal`. Without `tokens` everybody who can connect is an administrator, so that the server
listens on loopback unless told otherwise.
"""

import asyncio
import socket
import ssl
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from types import TracebackType

import yaml
from aiohttp import web

from kubelite.admission.webhooks import Webhooks
from kubelite.api.handler import Api
from kubelite.api.watch_streams import Streams
from kubelite.builtin.kinds import builtin_kinds
from kubelite.clock import Clock, utc_now
from kubelite.custom_resources.definitions import Definitions
from kubelite.kinds import Registry
from kubelite.objects.context import Asking, User
from kubelite.objects.deletion import Deletion
from kubelite.objects.garbage_collector import Collector
from kubelite.objects.objects import Objects
from kubelite.storage.store import Store

_BODY_BYTES = 3 * 1024 * 1024
_NAMESPACES = ("default", "kube-system", "kube-public", "kube-node-lease")
_PRIORITIES = {"system-cluster-critical": 2000000000, "system-node-critical": 2000001000}


class KubeLite:
    """An embedded Kubernetes-shaped API server."""

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
        self.tokens = dict(tokens or {})
        self.store = Store(window)
        self.registry = Registry(builtin_kinds())
        self._definitions = Definitions(self.store, self.registry, clock)
        self._webhooks = Webhooks(self.store)
        self.objects = Objects(self.store, self.registry, self._webhooks, clock)
        self.deletion = Deletion(self.objects)
        self._collector = Collector(self.objects, self.deletion, self.registry, event_ttl)
        self._streams = Streams(self.store, clock, backlog=2 * window, bookmark_seconds=bookmark_seconds)
        self._api = Api(self.registry, self.objects, self.deletion, self._streams, self.tokens)
        self._runner: web.ServerRunner | None = None
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def url(self) -> str:
        """Where the server listens."""
        return f"{'https' if self._tls else 'http'}://{self._host}:{self._port}"

    @property
    def watches(self) -> int:
        """How many watches are open now."""
        return len(self._streams)

    async def start(self) -> None:
        """Listen, and start to clean up after what is deleted; where that fails nothing is left behind."""
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        await self._settle_in()
        self._tasks.append(asyncio.create_task(self._collector.run(), name="kubelite-collector"))
        server = web.Server(
            self._api.answer, request_factory=_request, access_log=None, handler_cancellation=True
        )
        self._runner = web.ServerRunner(server, handle_signals=False, shutdown_timeout=2.0)
        await self._runner.setup()
        listening = socket.create_server((self._host, self._port), backlog=1024)
        self._port = listening.getsockname()[1]
        await web.SockSite(self._runner, listening, ssl_context=self._tls).start()

    async def stop(self) -> None:
        """End every watch, close the socket, stop cleaning up."""
        self._streams.end_all()
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

    async def _settle_in(self) -> None:
        """What a new cluster has from the start."""
        asking = Asking(manager="kubelite")
        spaces = self.registry.find("", "v1", "namespaces")
        classes = self.registry.find("scheduling.k8s.io", "v1", "priorityclasses")
        assert spaces is not None
        assert classes is not None
        for name in _NAMESPACES:
            if self.store.get(spaces.shelf, "", name) is None:
                await self.objects.create(spaces, "", {"metadata": {"name": name}}, asking)
        for name, value in _PRIORITIES.items():
            if self.store.get(classes.shelf, "", name) is None:
                body = {
                    "metadata": {"name": name},
                    "value": value,
                    "description": "Used for system critical pods.",
                }
                await self.objects.create(classes, "", body, asking)

    def write_kubeconfig(self, path: Path, *, authority: Path | None = None) -> None:
        """Write a kubeconfig that reaches this server; `authority` is its CA certificate where it has TLS."""
        cluster: dict[str, object] = {"server": self.url}
        if authority is not None:
            cluster["certificate-authority"] = str(authority)
        user = {"token": next(iter(self.tokens))} if self.tokens else {}
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "kubelite", "cluster": cluster}],
            "users": [{"name": "kubelite", "user": user}],
            "contexts": [{"name": "kubelite", "context": {"cluster": "kubelite", "user": "kubelite"}}],
            "current-context": "kubelite",
        }
        path.touch(mode=0o600)
        path.write_text(yaml.safe_dump(config))


def _request(message, payload, protocol, writer, task, loop=None):  # type: ignore[no-untyped-def]  # aiohttp's own signature
    return web.BaseRequest(
        message, payload, protocol, writer, task, protocol._loop, client_max_size=_BODY_BYTES
    )
