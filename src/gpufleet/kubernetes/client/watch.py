"""A watch as batches of events.

The stream is one JSON object per line. All whole lines that have arrived are decoded in
one call, and what follows the last newline waits for the rest. A stream that ends in the
middle of a line loses nothing: the half line is dropped, and its event comes again when
the watch is taken up from the last version seen.
"""

from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Generic, cast

import msgspec

from gpufleet.kubernetes.client import decode
from gpufleet.kubernetes.client.errors import UndecodableAnswer, error_of_status
from gpufleet.kubernetes.client.resources import Added, Bookmark, Deleted, Failed, Modified, Resource, T
from gpufleet.kubernetes.client.transport import Request, Transport

LONGEST_LINE = 32 << 20
"""Bytes of one event at most; etcd itself takes objects of 1.5 MiB by default."""


@dataclass(frozen=True)
class WatchBatch(Generic[T]):
    """Changes in the order in which they happened, and the version that the watch has come to with them."""

    changes: Sequence[Added[T] | Modified[T] | Deleted[T]]
    resource_version: str


class _RawEvent(msgspec.Struct, frozen=True):
    object: msgspec.Raw
    type: str = ""


_raw_event = msgspec.json.Decoder(_RawEvent)


async def watch_batches(
    transport: Transport, resource: Resource[T], request: Request, idle: float
) -> AsyncGenerator[WatchBatch[T], None]:
    """Open the watch and yield its batches; an ERROR event of the server is raised (`Gone`, for one).

    The first batch is empty and says that the watch stands.
    """
    async with transport.stream(request, idle) as content:
        yield WatchBatch((), request.query["resourceVersion"])
        async for lines in _whole_lines(content.iter_any()):
            batch, failure = _batch(resource, lines, request)
            if batch.resource_version:
                yield batch
            if failure is not None:
                raise error_of_status(failure.object.code, failure.object, str(request))


async def _whole_lines(chunks: AsyncIterator[bytes]) -> AsyncGenerator[bytes, None]:
    waiting: list[bytes] = []
    size = 0
    async for chunk in chunks:
        end = chunk.rfind(b"\n") + 1
        if end:
            yield b"".join((*waiting, chunk[:end]))
            waiting, size = [chunk[end:]], len(chunk) - end
        else:
            waiting.append(chunk)
            size += len(chunk)
            if size > LONGEST_LINE:
                raise UndecodableAnswer(f"the watch sent a line of more than {LONGEST_LINE} bytes")


def _batch(resource: Resource[T], lines: bytes, request: Request) -> tuple[WatchBatch[T], Failed | None]:
    try:
        events = resource.event_decoder.decode_lines(lines)
    except msgspec.MsgspecError:
        events = _one_by_one(resource, lines, request)
    changes: list[Added[T] | Modified[T] | Deleted[T]] = []
    version = ""
    for event in events:
        if isinstance(event, Failed):
            return WatchBatch(changes, version), event
        version = event.object.metadata.resource_version
        if not isinstance(event, Bookmark):
            changes.append(event)
    return WatchBatch(changes, version), None


def _one_by_one(
    resource: Resource[T], lines: bytes, request: Request
) -> list[Added[T] | Modified[T] | Deleted[T] | Bookmark | Failed]:
    """The events of `lines`; of an object that breaks its type only its version is kept, or that it is gone."""
    events: list[Added[T] | Modified[T] | Deleted[T] | Bookmark | Failed] = []
    for line in lines.splitlines():
        try:
            events.append(resource.event_decoder.decode(line))
        except msgspec.ValidationError as error:
            events.append(_without_object(resource, line, error, request))
        except msgspec.MsgspecError as error:
            raise UndecodableAnswer(f"{request}: a line of the watch is not JSON: {error}") from None
    return events


def _without_object(
    resource: Resource[T], line: bytes, error: Exception, request: Request
) -> Deleted[T] | Bookmark:
    try:
        raw = _raw_event.decode(line)
    except msgspec.MsgspecError:
        raise UndecodableAnswer(f"{request}: a line of the watch is no event: {error}") from None
    known = decode.left_out(resource, bytes(raw.object), error)
    if not known.metadata.resource_version:
        raise UndecodableAnswer(f"{request}: an event of the watch has no version: {error}")
    if raw.type == "DELETED":
        # An object that was good once may be in a cache: its name, which can be read, is enough to take it out.
        return Deleted(cast("T", known))
    return Bookmark(known)
