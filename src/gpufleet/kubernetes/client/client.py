"""The verbs of the Kubernetes API that gpufleet uses, typed by `Resource`.

    async with KubeClient(load_connection()) as kube:
        lease = await kube.get(LEASES, "gpu-node-a-0", "gpufleet")

Errors are those of `gpufleet.kubernetes.client.errors`. Lists are fetched in pages, of which a server
can't send an endless number: a token that repeats, too many pages and too many objects are errors. A watch yields
everything received since the last step as one batch, so a burst of events costs one step of the
event loop per network read, not one per event.
"""

from collections.abc import AsyncGenerator, Collection, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Generic, Literal, Self

import msgspec

from gpufleet.kubernetes.cache_budget import CacheBudget
from gpufleet.kubernetes.client.connection import Connection, connection_from_settings
from gpufleet.kubernetes.client.decode import accept_header, decode_json, decode_list, decode_object
from gpufleet.kubernetes.client.errors import Gone, TooLarge
from gpufleet.kubernetes.client.patch import Patch
from gpufleet.kubernetes.client.resources import PODS, Resource, T
from gpufleet.kubernetes.client.timing import RateLimiter, Timing
from gpufleet.kubernetes.client.transport import MAX_RESPONSE_BYTES, Request, Retries, Transport
from gpufleet.kubernetes.client.watch import WatchBatch, watch_batches
from gpufleet.runtime.settings import KubernetesSettings

PAGE_SIZE = 500
REQUEST_TIMEOUT_S = 15.0
"""For one request, except watches; long enough for a page of a list from a busy API server."""
MAX_OBJECTS = 500_000
"""Objects of one kind in a list or by a watch; a cluster of Kubernetes is built for at most 150,000 pods."""
MAX_CACHE_BYTES = 1 << 30
_MAX_PAGES = 20_000
"""Pages of one list; the server may send pages without any object."""

FIELD_MANAGER = "gpufleet"


@dataclass(frozen=True)
class Page(Generic[T]):
    """A page of a list; `continue_token` fetches the next one."""

    items: list[T]
    resource_version: str
    continue_token: str = ""


@dataclass(frozen=True)
class Selection:
    """Select objects of a kind by namespace (all if empty), label selector and field selector."""

    namespace: str = ""
    labels: str = ""
    fields: str = ""

    def query(self) -> dict[str, str]:
        """Return the selectors as query parameters."""
        selectors = {"labelSelector": self.labels, "fieldSelector": self.fields}
        return {name: value for name, value in selectors.items() if value}


ALL = Selection()


def burst_of(requests_per_second: float) -> int:
    """Return how many requests may exceed the rate in a burst: those of two seconds."""
    return max(1, round(2 * requests_per_second))


class KubeClient:
    """A client of one API server with one identity."""

    def __init__(
        self,
        connection: Connection,
        *,
        requests_per_second: float = 50.0,
        burst: int = 100,
        timeout: float = REQUEST_TIMEOUT_S,
        retries: Retries = Retries(),  # noqa: B008  (frozen)
        timing: Timing = Timing(),  # noqa: B008  (frozen)
        field_manager: str = FIELD_MANAGER,
        max_response_bytes: int = MAX_RESPONSE_BYTES,
        max_objects: int = MAX_OBJECTS,
        max_cache_bytes: int = MAX_CACHE_BYTES,
        annotations: Collection[str] = (),
        namespace_share: float = 1.0,
    ) -> None:
        """Create the client; `annotations` of users' objects are cached beside those that gpufleet always reads.

        The objects of one namespace may use `namespace_share` of the cache.
        """
        self.timing = timing
        self.connection = connection
        self.field_manager = field_manager
        self._timeout = timeout
        self._retries = retries
        self._max_response_bytes = max_response_bytes
        self.max_objects = max_objects
        self.cache_budget = CacheBudget(max_cache_bytes, namespace_share)
        self.annotations = frozenset(annotations)
        self._transport = Transport(
            connection,
            limiter=RateLimiter(requests_per_second, burst, timing),
            timeout=timeout,
            retries=retries,
            timing=timing,
            max_response_bytes=max_response_bytes,
        )

    @classmethod
    def from_settings(
        cls, settings: KubernetesSettings, annotations: Collection[str] = (), namespace_share: float = 1.0
    ) -> Self:
        """Create a client from the settings."""
        return cls(
            connection_from_settings(settings),
            requests_per_second=settings.requests_per_second,
            burst=burst_of(settings.requests_per_second),
            max_cache_bytes=settings.max_cache_bytes,
            annotations=annotations,
            namespace_share=namespace_share,
        )

    def clone(self, *, requests_per_second: float = 10.0, burst: int = 20) -> "KubeClient":
        """Return a client with the same identity but its own rate limit and connections.

        For requests that must not queue behind those of this client. The caller closes it.
        """
        return KubeClient(
            self.connection,
            requests_per_second=requests_per_second,
            burst=burst,
            timeout=self._timeout,
            retries=self._retries,
            timing=self.timing,
            field_manager=self.field_manager,
            max_response_bytes=self._max_response_bytes,
            max_objects=self.max_objects,
            max_cache_bytes=self.cache_budget.max_bytes,
            annotations=self.annotations,
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
        """Return one object."""
        request = Request(
            "GET", resource.path(namespace, name), {}, accept=accept_header(resource), repeatable=True
        )
        return decode_object(resource, await self._transport.send(request), request)

    async def page(
        self,
        resource: Resource[T],
        select: Selection = ALL,
        *,
        limit: int = PAGE_SIZE,
        continue_token: str = "",
    ) -> Page[T]:
        """Return one page of a list, or the whole list if `limit` is 0."""
        query = select.query()
        if limit:
            query["limit"] = str(limit)
        if continue_token:
            query["continue"] = continue_token
        path = resource.path(select.namespace)
        request = Request("GET", path, query, accept=accept_header(resource, many=True), repeatable=True)
        items, meta = decode_list(resource, await self._transport.send(request), request)
        return Page(items, meta.resource_version, meta.continue_)

    async def pages(
        self, resource: Resource[T], select: Selection = ALL, *, limit: int = PAGE_SIZE
    ) -> AsyncGenerator[Page[T], None]:
        """Yield the list page by page; pages that are too large are requested again in smaller ones.

        Raise `Gone` if the continue token expires on the way, `TooLarge` if the list is too long.
        """
        token, tokens, objects = "", {""}, 0
        while True:
            try:
                page = await self.page(resource, select, limit=limit, continue_token=token)
            except TooLarge:
                if limit <= 1:
                    raise
                limit //= 2
                continue
            objects += len(page.items)
            if objects > self.max_objects:
                problem = f"has more than {self.max_objects} objects"
                raise TooLarge(f"GET {resource.path(select.namespace)}: the list {problem}")
            yield page
            token = page.continue_token
            if not token:
                return
            if token in tokens or len(tokens) >= _MAX_PAGES:
                raise TooLarge(f"GET {resource.path(select.namespace)}: the list does not end")
            tokens.add(token)

    async def list(
        self, resource: Resource[T], select: Selection = ALL, *, limit: int = PAGE_SIZE
    ) -> Page[T]:
        """Return the whole list, fetched in pages, or in one piece if the continue token expires."""
        items: list[T] = []
        version = ""
        try:
            async for page in self.pages(resource, select, limit=limit):
                items += page.items
                version = page.resource_version
        except Gone:
            return await anext(self.pages(resource, select, limit=0))
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
        """Yield batches of changes after `resource_version` until the server ends the watch after about `seconds`.

        The first batch is empty and shows that the watch is open. Silence of more than `idle` seconds
        is an error: servers send bookmarks about every minute.
        """
        query = {
            **select.query(),
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(max(1, round(seconds))),
        }
        path = resource.path(select.namespace)
        request = Request("GET", path, query, accept=accept_header(resource), repeatable=True)
        return watch_batches(self._transport, resource, request, idle)

    # Writing

    async def create(self, resource: Resource[T], item: T) -> T:
        """Create the object; raise `AlreadyExists` if the name is taken."""
        path = resource.path(item.metadata.namespace)
        return await self._write(resource, "POST", path, resource.encode(item))

    async def replace(self, resource: Resource[T], item: T, *, subresource: Literal["", "status"] = "") -> T:
        """Replace the object; raise `Conflict` if it has changed since it was read."""
        if not resource.complete:
            raise TypeError(
                f"{resource.type.__name__} has only some fields of a {resource.kind}: patch it instead"
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
    ) -> T:
        """Apply a `merge`, `json` or `apply` patch (see `gpufleet.kubernetes.client.patch`)."""
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
    ) -> None:
        """Delete the object; raise `Conflict` if it no longer has this `uid` or `resource_version`."""
        conditions = {"uid": uid, "resourceVersion": resource_version}
        options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if preconditions := {key: value for key, value in conditions.items() if value}:
            options["preconditions"] = preconditions
        if grace_seconds is not None:
            options["gracePeriodSeconds"] = grace_seconds
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
        """Bind the pod to `node` and set the annotations in the same write.

        Raise `Conflict` if the pod no longer has this `uid` or `resource_version`.
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

    # Kinds without a type here

    async def read_json(
        self, path: str, query: Mapping[str, str] | None = None, *, accept: str = "application/json"
    ) -> Any:
        """Return the JSON at `path` (version, discovery, OpenAPI)."""
        request = Request("GET", path, query or {}, accept=accept, repeatable=True)
        return decode_json(await self._transport.send(request), request)

    async def read_text(self, path: str, query: Mapping[str, str] | None = None) -> str:
        """Return the text at `path`, such as a log; bytes that are not UTF-8 are replaced."""
        request = Request("GET", path, query or {}, accept="*/*", repeatable=True)
        return (await self._transport.send(request)).decode(errors="replace")

    async def write_json(
        self,
        method: Literal["POST", "PUT", "PATCH", "DELETE"],
        path: str,
        body: Any,
        content_type: str = "application/json",
    ) -> Any:
        """Send a manifest and return the JSON of the response."""
        request = Request(method, path, {}, msgspec.json.encode(body), content_type)
        return decode_json(await self._transport.send(request), request)

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
    ) -> T:
        parameters = {"fieldManager": self.field_manager, **(query or {})}
        request = Request(method, path, parameters, body, content_type, accept_header(resource), repeatable)
        return decode_object(resource, await self._transport.send(request), request)
