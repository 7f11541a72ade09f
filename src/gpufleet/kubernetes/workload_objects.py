"""Read the manifest, the events and the logs of one workload when a user asks for them.

Nothing here is watched or cached. Sizes are limited: a log to some lines and bytes, events to the newest ones.
"""

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from typing import Any
from urllib.parse import quote

import msgspec

from gpufleet.errors import OperationRefused
from gpufleet.kubernetes.annotations import LAST_APPLIED
from gpufleet.kubernetes.client.client import KubeClient
from gpufleet.kubernetes.client.discovery import Discovery
from gpufleet.kubernetes.client.errors import BadRequest, Forbidden
from gpufleet.kubernetes.objects import KubeObject

MAX_LOG_BYTES = 1 << 20
MAX_EVENTS = 200


class WorkloadEvent(msgspec.Struct, frozen=True):
    """An event about a workload or one of its pods."""

    kind: str
    name: str
    type: str
    reason: str
    message: str
    count: int
    last: str
    """When it was last seen, in RFC 3339; empty if the event does not say."""
    reporter: str


class _Involved(msgspec.Struct):
    kind: str = ""
    name: str = ""


class _Source(msgspec.Struct):
    component: str = ""


class _Series(msgspec.Struct, rename="camel"):
    count: int = 0
    last_observed_time: str = ""


class _Event(msgspec.Struct, rename="camel"):
    involved_object: _Involved = msgspec.field(default_factory=_Involved)
    type: str = ""
    reason: str = ""
    message: str = ""
    count: int | None = None
    event_time: str | None = None
    first_timestamp: str | None = None
    last_timestamp: str | None = None
    series: _Series | None = None
    source: _Source = msgspec.field(default_factory=_Source)
    reporting_component: str = ""


class WorkloadObjects:
    """Reads from one API server with the identity of its client."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self._discovery = Discovery(client)

    @property
    def server(self) -> str:
        """The address of the API server."""
        return self._client.connection.server

    async def resource_of(self, api_version: str, kind: str) -> tuple[str, str]:
        """Return the API group and the plural name of a kind, as RBAC names it."""
        found = await self._discovery.find(api_version, kind, KubeObject)
        return found.group, found.plural

    async def manifest(self, api_version: str, kind: str, namespace: str, name: str) -> dict[str, Any]:
        """Return an object without the fields that only the API server needs."""
        resource = await self._discovery.find(api_version, kind, KubeObject)
        with _explained():
            found: dict[str, Any] = await self._client.read_json(resource.path(namespace, name))
        metadata = found.get("metadata", {})
        metadata.pop("managedFields", None)
        metadata.get("annotations", {}).pop(LAST_APPLIED, None)
        return found

    async def events(self, namespace: str, uids: Sequence[str]) -> list[WorkloadEvent]:
        """Return the events about some objects of a namespace, the newest first."""
        path = f"/api/v1/namespaces/{quote(namespace, safe='')}/events"

        async def read(uid: str) -> list[_Event]:
            query = {"fieldSelector": f"involvedObject.uid={uid}", "limit": str(MAX_EVENTS)}
            with _explained():
                answer = await self._client.read_json(path, query)
            return msgspec.convert(answer.get("items") or [], list[_Event])

        found = [event for events in await asyncio.gather(*map(read, uids)) for event in events]
        return sorted(map(_event, found), key=_time, reverse=True)[:MAX_EVENTS]

    async def logs(
        self, namespace: str, pod: str, *, container: str = "", lines: int, previous: bool = False
    ) -> str:
        """Return the last lines of a container's log; of the only container if none is named."""
        query = {"tailLines": str(lines), "limitBytes": str(MAX_LOG_BYTES), "timestamps": "true"}
        if container:
            query["container"] = container
        if previous:
            query["previous"] = "true"
        path = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(pod, safe='')}/log"
        try:
            with _explained():
                return await self._client.read_text(path, query)
        except BadRequest as error:
            # The container has not started, there are several, or none of that name: the message says which.
            return error.status.message or str(error)


@contextmanager
def _explained() -> Iterator[None]:
    """Say what to do if this server's own identity may not read something."""
    try:
        yield
    except Forbidden as error:
        raise OperationRefused(
            f"Kubernetes does not let this server read it: {error.status.message or error}; "
            "the chart gpufleet allows it with kubernetes.readWorkloadObjects"
        ) from None


def _event(event: _Event) -> WorkloadEvent:
    series = event.series
    last = (
        (series.last_observed_time if series else "")
        or event.last_timestamp
        or event.event_time
        or event.first_timestamp
        or ""
    )
    return WorkloadEvent(
        event.involved_object.kind,
        event.involved_object.name,
        event.type,
        event.reason,
        event.message,
        (series.count if series else 0) or event.count or 1,
        last,
        event.source.component or event.reporting_component,
    )


def _time(event: WorkloadEvent) -> float:
    try:
        return datetime.fromisoformat(event.last).timestamp()
    except ValueError:
        return 0.0
