"""One client's watch: what it has not been sent yet, and what it wants to see.

The store calls `Watch.take` for each change; lines pile up in a list and the connection's
task sends them in one write. A selector can turn a change into another event: an object that
no longer matches is DELETED for this client, one that matches now is ADDED. A client that
falls behind by more than the window is cut off with a 410, as it would have to list anyway.
"""

import asyncio
from collections.abc import Callable, Iterable
from types import TracebackType

from kubelite.errors import ApiError, expired
from kubelite.json import Json, encode
from kubelite.kinds import Kind
from kubelite.objects.versions import event_line
from kubelite.selectors import Predicate
from kubelite.storage.store import Change, Entry, Shelf

Render = Callable[[str, Json], bytes]


class Watch:
    """A subscription to one shelf."""

    def __init__(
        self,
        shelf: Shelf,
        kind: Kind,
        namespace: str,
        wanted: Predicate | None,
        *,
        backlog: int,
        render: Render | None = None,
    ) -> None:
        self._shelf = shelf
        self._kind = kind
        self._namespace = namespace
        self._wanted = wanted
        self._backlog = backlog
        self._render = render
        self._lines: list[bytes] = []
        self._wake = asyncio.Event()
        self.ended = False

    def __enter__(self) -> "Watch":
        self._shelf.listeners.add(self.take)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._shelf.listeners.discard(self.take)

    def replay(self, changes: Iterable[Change]) -> None:
        """Send changes of the past first."""
        for change in changes:
            self.take(change)

    def show(self, entries: Iterable[Entry]) -> None:
        """Send the objects that are there as ADDED. They may be many, and put nobody behind."""
        for entry in entries:
            if self._sees(entry):
                line = (
                    self._render("ADDED", entry.object)
                    if self._render
                    else event_line(self._kind, "ADDED", Change("ADDED", entry, None), entry)
                )
                self._backlog += 1
                self._add(line)

    def say(self, event: str, item: Json) -> None:
        """Send an event that no change stands behind: a bookmark, an error."""
        if self._render is not None and event != "ERROR":
            self._add(self._render(event, item))
        else:
            self._add(encode({"type": event, "object": item}) + b"\n")

    def take(self, change: Change) -> None:
        """Note a change, as this client has to see it."""
        before = change.previous is not None and self._sees(change.previous)
        after = change.kind != "DELETED" and self._sees(change.entry)
        if not before and not after:
            return
        event = "MODIFIED" if before and after else "ADDED" if after else "DELETED"
        entry = change.entry
        if event == "DELETED" and change.kind != "DELETED":
            entry = _last_seen(change)
        if self._render is not None:
            self._add(self._render(event, entry.object))
        else:
            self._add(event_line(self._kind, event, change, entry))

    def _sees(self, entry: Entry) -> bool:
        if self._namespace and entry.key[0] != self._namespace:
            return False
        return self._wanted is None or self._wanted(entry.object)

    def _add(self, line: bytes) -> None:
        if self.ended:
            return
        if len(self._lines) >= self._backlog:
            self.fail(expired("the watch fell too far behind; list again"))
            return
        self._lines.append(line)
        self._wake.set()

    def fail(self, error: ApiError) -> None:
        """End the watch with an ERROR event."""
        self._lines = [encode({"type": "ERROR", "object": error.wire()}) + b"\n"]
        self.end()

    def end(self) -> None:
        """End the watch once what waits has been sent."""
        self.ended = True
        self._wake.set()

    async def lines(self, seconds: float) -> bytes:
        """What waits to be sent, joined; empty if nothing came within `seconds`."""
        if not self._lines and not self.ended:
            self._wake.clear()
            try:
                async with asyncio.timeout(seconds):
                    await self._wake.wait()
            except TimeoutError:
                return b""
        waiting, self._lines = self._lines, []
        return b"".join(waiting)


def _last_seen(change: Change) -> Entry:
    """For an object that left a selector: its former content at the version of the change."""
    previous = change.previous
    assert previous is not None
    metadata = {**previous.object["metadata"], "resourceVersion": str(change.version)}
    return Entry(previous.key, {**previous.object, "metadata": metadata}, change.version)
