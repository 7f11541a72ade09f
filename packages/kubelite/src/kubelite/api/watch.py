"""One client's watch: its filter and its unsent events.

The store calls `Watch.on_change` for each change. Encoded lines collect in a list, and the
connection's task sends them in one write. A selector can turn a change into another event: an
object that stops matching is DELETED for this client, one that starts matching is ADDED. A client
that falls behind by more than the window gets a 410, since it would have to list again anyway.
"""

import asyncio
from collections.abc import Callable, Iterable
from types import TracebackType

from kubelite.errors import ApiError, expired
from kubelite.json import Json, encode
from kubelite.kinds import Kind
from kubelite.objects.versions import encode_event
from kubelite.selectors import Predicate
from kubelite.storage.store import Change, Collection, Entry

Render = Callable[[str, Json], bytes]


class Watch:
    """A subscription to one collection of the store."""

    def __init__(
        self,
        collection: Collection,
        kind: Kind,
        namespace: str,
        predicate: Predicate | None,
        *,
        backlog: int,
        render: Render | None = None,
    ) -> None:
        self._shelf = collection
        self._kind = kind
        self._namespace = namespace
        self._predicate = predicate
        self._backlog = backlog
        self._render = render
        self._pending: list[bytes] = []
        self._wake = asyncio.Event()
        self.ended = False

    def __enter__(self) -> "Watch":
        self._shelf.listeners.add(self.on_change)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._shelf.listeners.discard(self.on_change)

    def replay(self, changes: Iterable[Change]) -> None:
        """Send past changes."""
        for change in changes:
            self.on_change(change)

    def send_initial(self, entries: Iterable[Entry]) -> None:
        """Send existing objects as ADDED. They do not count towards the backlog limit."""
        for entry in entries:
            if self._matches(entry):
                line = (
                    self._render("ADDED", entry.object)
                    if self._render
                    else encode_event(self._kind, "ADDED", Change("ADDED", entry, None), entry)
                )
                self._backlog += 1
                self._add(line)

    def send(self, event: str, item: Json) -> None:
        """Send an event without a change behind it: a bookmark or an error."""
        if self._render is not None and event != "ERROR":
            self._add(self._render(event, item))
        else:
            self._add(encode({"type": event, "object": item}) + b"\n")

    def on_change(self, change: Change) -> None:
        """Queue a change as the event that this client has to see."""
        before = change.previous is not None and self._matches(change.previous)
        after = change.kind != "DELETED" and self._matches(change.entry)
        if not before and not after:
            return
        event = "MODIFIED" if before and after else "ADDED" if after else "DELETED"
        entry = change.entry
        if event == "DELETED" and change.kind != "DELETED":
            entry = _last_seen(change)
        if self._render is not None:
            self._add(self._render(event, entry.object))
        else:
            self._add(encode_event(self._kind, event, change, entry))

    def _matches(self, entry: Entry) -> bool:
        if self._namespace and entry.key[0] != self._namespace:
            return False
        return self._predicate is None or self._predicate(entry.object)

    def _add(self, line: bytes) -> None:
        if self.ended:
            return
        if len(self._pending) >= self._backlog:
            self.fail(expired("the watch fell too far behind; list again"))
            return
        self._pending.append(line)
        self._wake.set()

    def fail(self, error: ApiError) -> None:
        """End the watch with an ERROR event."""
        self._pending = [encode({"type": "ERROR", "object": error.wire()}) + b"\n"]
        self.end()

    def end(self) -> None:
        """End the watch after the queued events are sent."""
        self.ended = True
        self._wake.set()

    async def pending(self, seconds: float) -> bytes:
        """Return the queued events, or nothing if none arrives within `seconds`."""
        if not self._pending and not self.ended:
            self._wake.clear()
            try:
                async with asyncio.timeout(seconds):
                    await self._wake.wait()
            except TimeoutError:
                return b""
        waiting, self._pending = self._pending, []
        return b"".join(waiting)


def _last_seen(change: Change) -> Entry:
    """Return the last matching state of an object that left a selector, at the version of the change."""
    previous = change.previous
    assert previous is not None
    metadata = {**previous.object["metadata"], "resourceVersion": str(change.version)}
    return Entry(previous.key, {**previous.object, "metadata": metadata}, change.version)
