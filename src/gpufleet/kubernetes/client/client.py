"""The Kubernetes API in the verbs that gpufleet uses, typed by `Resource`.

    async with KubeClient(load_connection()) as kube:
        lease = await kube.get(LEASES, "gpu-node-a-0", "gpufleet")

Errors are those of `gpufleet.kubernetes.client.errors`. Lists come in pages; a watch yields what has
come since the last step as one batch, so that a storm of events costs one step of the
event loop per network read, not one per event.
"""

from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Literal, Self

import msgspec

from gpufleet.kubernetes.client import decode
from gpufleet.kubernetes.client.connection import Connection, connection_from_settings
from gpufleet.kubernetes.client.errors import Gone
from gpufleet.kubernetes.client.patch import Patch
from gpufleet.kubernetes.client.resources import EVENTS, PODS, Resource, T
from gpufleet.kubernetes.client.timing import RequestRate, Timing
from gpufleet.kubernetes.client.transport import Request, Retries, Transport
from gpufleet.kubernetes.client.watch import WatchBatch, watch_batches
from gpufleet.kubernetes.objects import Event
from gpufleet.runtime.settings import KubernetesSettings

PAGE_SIZE = 500

FIELD_MANAGER = "gpufleet"


@dataclass(frozen=True)
class Page(Generic[T]):
    """A part of a list, or all of it, at one resource version; `rest` asks for the next part."""

    items: list[T]
    resource_version: str
    rest: str = ""


@dataclass(frozen=True)
class Selection:
    """Which objects of a kind: of one namespace (all if empty), by label and by field selector."""

    namespace: str = ""
    labels: str = ""
    fields: str = ""

    def query(self) -> dict[str, str]:
        """As query parameters."""
        given = {"labelSelector": self.labels, "fieldSelector": self.fields}
        return {name: value for name, value in given.items() if value}


ALL = Selection()


class KubeClient:
    """Speaks to one API server as one identity."""

    def __init__(
        self,
        connection: Connection,
        *,
        requests_per_second: float = 50.0,
        burst: int = 100,
        timeout: float = 15.0,
        retries: Retries = Retries(),  # noqa: B008  (frozen)
        timing: Timing = Timing(),  # noqa: B008  (frozen)
        field_manager: str = FIELD_MANAGER,
    ) -> None:
        self.timing = timing
        self.connection = connection
        self.field_manager = field_manager
        self._timeout = timeout
        self._retries = retries
        self._transport = Transport(
            connection,
            rate=RequestRate(requests_per_second, burst, timing),
            timeout=timeout,
            retries=retries,
            timing=timing,
        )

    @classmethod
    def from_settings(cls, settings: KubernetesSettings) -> Self:
        """A client for the API that the settings name."""
        return cls(
            connection_from_settings(settings),
            requests_per_second=settings.requests_per_second,
            burst=settings.burst,
            timeout=settings.timeout,
        )

    def apart(self, *, requests_per_second: float = 10.0, burst: int = 20) -> "KubeClient":
        """Another client as the same identity, for what must never wait behind the requests of this one.

        It has a rate and connections of its own, and is closed by whoever asked for it.
        """
        return KubeClient(
            self.connection,
            requests_per_second=requests_per_second,
            burst=burst,
            timeout=self._timeout,
            retries=self._retries,
            timing=self.timing,
            field_manager=self.field_manager,
        )

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections."""
        await self._transport.close()

    # Reading

    async def get(self, resource: Resource[T], name: str, namespace: str = "") -> T:
        """One object."""
        request = Request(
            "GET", resource.path(namespace, name), {}, accept=decode.accept(resource), repeatable=True
        )
        return decode.item(resource, await self._transport.send(request), request)

    async def page(
        self, resource: Resource[T], select: Selection = ALL, *, limit: int = PAGE_SIZE, rest: str = ""
    ) -> Page[T]:
        """One page of a list, or all of it with `limit` 0; `rest` is what the page before said."""
        query = select.query()
        if limit:
            query["limit"] = str(limit)
        if rest:
            query["continue"] = rest
        path = resource.path(select.namespace)
        request = Request("GET", path, query, accept=decode.accept(resource, many=True), repeatable=True)
        items, meta = decode.items(resource, await self._transport.send(request), request)
        return Page(items, meta.resource_version, meta.continue_)

    async def pages(
        self, resource: Resource[T], select: Selection = ALL, *, limit: int = PAGE_SIZE
    ) -> AsyncGenerator[Page[T], None]:
        """The list page by page; `Gone` if the server forgets the list's version before the last."""
        page = await self.page(resource, select, limit=limit)
        yield page
        while page.rest:
            page = await self.page(resource, select, limit=limit, rest=page.rest)
            yield page

    async def list(
        self, resource: Resource[T], select: Selection = ALL, *, limit: int = PAGE_SIZE
    ) -> Page[T]:
        """The whole list, fetched in pages; in one piece if the pages went stale on the way."""
        items: list[T] = []
        version = ""
        try:
            async for page in self.pages(resource, select, limit=limit):
                items += page.items
                version = page.resource_version
        except Gone:
            return await self.page(resource, select, limit=0)
        return Page(items, version)

    def watch(
        self,
        resource: Resource[T],
        select: Selection = ALL,
        *,
        resource_version: str,
        seconds: float = 300.0,
        idle: float = 120.0,
    ) -> AsyncGenerator[WatchBatch[T], None]:
        """Changes after `resource_version` in batches, until the server ends the watch after about `seconds`.

        The first batch is empty and says that the watch stands.
        Silence of more than `idle` seconds is an error: the server sends bookmarks about every minute.
        """
        query = {
            **select.query(),
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(max(1, round(seconds))),
        }
        path = resource.path(select.namespace)
        request = Request("GET", path, query, accept=decode.accept(resource), repeatable=True)
        return watch_batches(self._transport, resource, request, idle)

    # Writing

    async def create(self, resource: Resource[T], item: T, *, dry_run: bool = False) -> T:
        """Create the object; `AlreadyExists` if there is one of its name."""
        path = resource.path(item.metadata.namespace)
        return await self._write(resource, "POST", path, resource.encode(item), dry_run=dry_run)

    async def replace(self, resource: Resource[T], item: T, *, subresource: Literal["", "status"] = "") -> T:
        """Write the object back; `Conflict` if it has changed since it was read."""
        if not resource.whole:
            raise TypeError(
                f"{resource.type.__name__} holds only a part of a {resource.kind}: patch it instead"
            )
        path = resource.path(item.metadata.namespace, item.metadata.name, subresource)
        return await self._write(resource, "PUT", path, resource.encode(item))

    async def patch(
        self,
        resource: Resource[T],
        name: str,
        patch: Patch,
        namespace: str = "",
        *,
        subresource: str = "",
        dry_run: bool = False,
    ) -> T:
        """Change the object by a `merge`, `json` or `apply` patch (see `gpufleet.kubernetes.client.patch`)."""
        path = resource.path(namespace, name, subresource)
        body = patch.body(resource.api_version, resource.kind, name, namespace)
        query = patch.query(self.field_manager)
        return await self._write(
            resource,
            "PATCH",
            path,
            body,
            patch.content_type,
            query,
            repeatable=patch.repeatable,
            dry_run=dry_run,
        )

    async def delete(
        self,
        resource: Resource[T],
        name: str,
        namespace: str = "",
        *,
        uid: str = "",
        resource_version: str = "",
        grace_seconds: int | None = None,
        propagation: Literal["", "Orphan", "Background", "Foreground"] = "",
    ) -> None:
        """Delete the object; with `uid` or `resource_version`, only if it is still that one (else `Conflict`)."""
        conditions = {"uid": uid, "resourceVersion": resource_version}
        options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if preconditions := {key: value for key, value in conditions.items() if value}:
            options["preconditions"] = preconditions
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
        if propagation:
            options["propagationPolicy"] = propagation
        await self._transport.send(
            Request("DELETE", resource.path(namespace, name), {}, msgspec.json.encode(options))
        )

    async def bind(
        self,
        namespace: str,
        pod: str,
        uid: str,
        node: str,
        annotations: Mapping[str, str] | None = None,
        *,
        resource_version: str = "",
    ) -> None:
        """Place the pod of that uid on `node`; the annotations get on the pod in the same write.

        With `resource_version` only if the pod is still in that state (else `Conflict`).
        """
        meta = {"name": pod, "namespace": namespace, "uid": uid, "annotations": annotations or {}}
        if resource_version:
            meta["resourceVersion"] = resource_version
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": meta,
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        path = PODS.path(namespace, pod, "binding")
        await self._transport.send(Request("POST", path, {}, msgspec.json.encode(binding)))

    async def post_event(self, event: Event) -> Event:
        """Write an event; its namespace is that of the object that it is about, or `default`."""
        meta = event.metadata
        named = msgspec.structs.replace(
            meta, namespace=meta.namespace or event.regarding.namespace or "default"
        )
        return await self.create(EVENTS, msgspec.structs.replace(event, metadata=named))

    # Anything else

    async def read_json(
        self, path: str, query: Mapping[str, str] | None = None, *, accept: str = "application/json"
    ) -> Any:
        """Whatever JSON the server has at `path` (version, discovery, OpenAPI)."""
        request = Request("GET", path, query or {}, accept=accept, repeatable=True)
        return decode.anything(await self._transport.send(request), request)

    async def write_json(
        self,
        method: Literal["POST", "PUT", "PATCH", "DELETE"],
        path: str,
        body: Any,
        content_type: str = "application/json",
    ) -> Any:
        """Send a manifest as it is, for kinds without a type here."""
        request = Request(method, path, {}, msgspec.json.encode(body), content_type)
        return decode.anything(await self._transport.send(request), request)

    async def _write(
        self,
        resource: Resource[T],
        method: str,
        path: str,
        body: bytes,
        content_type: str = "application/json",
        query: Mapping[str, str] | None = None,
        *,
        repeatable: bool = False,
        dry_run: bool = False,
    ) -> T:
        parameters = {"fieldManager": self.field_manager, **(query or {})}
        if dry_run:
            parameters["dryRun"] = "All"
        request = Request(method, path, parameters, body, content_type, decode.accept(resource), repeatable)
        return decode.item(resource, await self._transport.send(request), request)
