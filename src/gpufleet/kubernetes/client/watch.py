"""Read a watch as batches of events.

The stream has one JSON object per line. All complete lines received so far are decoded in one
call; a partial line waits for the rest. A stream that ends in the middle of a line loses nothing:
the watch resumes at the last version seen, and the server sends that event again.
"""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Generic, cast

import msgspec

from gpufleet.kubernetes.client.decode import skip_object
from gpufleet.kubernetes.client.errors import TooLarge, UndecodableResponse, error_from_status
from gpufleet.kubernetes.client.resources import Added, Bookmark, Deleted, Failed, Modified, Resource, T
from gpufleet.kubernetes.client.transport import Request, Transport

MAX_LINE_BYTES = 4 << 20
"""Maximum size of one event; etcd itself accepts objects of up to 1.5 MiB by default, an API server of 3 MiB."""


@dataclass(frozen=True)
class WatchBatch(Generic[T]):
    """Changes in order, and the resource version after them."""

    changes: Sequence[Added[T] | Modified[T] | Deleted[T]]
    resource_version: str


class _RawEvent(msgspec.Struct, frozen=True):
    object: msgspec.Raw
    type: str = ""


_raw_event = msgspec.json.Decoder(_RawEvent)


async def watch_batches(
    transport: Transport, resource: Resource[T], request: Request, idle: float
) -> AsyncGenerator[WatchBatch[T], None]:
    """Open the watch and yield its batches; raise the server's ERROR events (such as `Gone`).

    The first batch is empty and shows that the watch is open.
    """
    async with transport.stream(request, idle) as content:
        yield WatchBatch((), request.query["resourceVersion"])
        async for lines in _complete_lines(content.iter_any(), request):
            batch, failure = _decode_batch(resource, lines, request)
            if batch.resource_version:
                yield batch
            if failure is not None:
                raise error_from_status(failure.object.code, failure.object, str(request))
            # A server that always has more to send must not keep other tasks waiting.
            await asyncio.sleep(0)


async def _complete_lines(chunks: AsyncIterator[bytes], request: Request) -> AsyncGenerator[bytes, None]:
    partial: list[bytes] = []
    size = 0
    async for chunk in chunks:
        end = chunk.rfind(b"\n") + 1
        if end:
            yield b"".join((*partial, chunk[:end]))
            partial, size = [chunk[end:]], len(chunk) - end
        else:
            partial.append(chunk)
            size += len(chunk)
            if size > MAX_LINE_BYTES:
                raise TooLarge(f"{request}: the watch sent an event of more than {MAX_LINE_BYTES} bytes")


def _decode_batch(
    resource: Resource[T], lines: bytes, request: Request
) -> tuple[WatchBatch[T], Failed | None]:
    try:
        events = resource.event_decoder.decode_lines(lines)
    except msgspec.MsgspecError:
        events = _decode_one_by_one(resource, lines, request)
    changes: list[Added[T] | Modified[T] | Deleted[T]] = []
    version = ""
    for event in events:
        if isinstance(event, Failed):
            return WatchBatch(changes, version), event
        version = event.object.metadata.resource_version
        if not isinstance(event, Bookmark):
            changes.append(event)
    return WatchBatch(changes, version), None


def _decode_one_by_one(
    resource: Resource[T], lines: bytes, request: Request
) -> list[Added[T] | Modified[T] | Deleted[T] | Bookmark | Failed]:
    """Decode each line by itself; reduce events whose object does not match its type."""
    events: list[Added[T] | Modified[T] | Deleted[T] | Bookmark | Failed] = []
    for line in lines.splitlines():
        try:
            events.append(resource.event_decoder.decode(line))
        except msgspec.ValidationError as error:
            events.append(_without_object(resource, line, error, request))
        except msgspec.MsgspecError as error:
            raise UndecodableResponse(f"{request}: a line of the watch is not JSON: {error}") from None
    return events


def _without_object(
    resource: Resource[T], line: bytes, error: Exception, request: Request
) -> Deleted[T] | Bookmark:
    """Return a bookmark with the event's version, or the deletion, for which the name is enough."""
    try:
        raw = _raw_event.decode(line)
    except msgspec.MsgspecError:
        raise UndecodableResponse(f"{request}: a line of the watch is not an event: {error}") from None
    item = skip_object(resource, bytes(raw.object), error)
    if not item.metadata.resource_version:
        raise UndecodableResponse(f"{request}: an event of the watch has no resource version: {error}")
    if raw.type == "DELETED":
        return Deleted(cast("T", item))
    return Bookmark(item)
