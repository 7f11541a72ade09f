"""Objects, resource versions, and the window of recent changes.

One counter numbers all changes, as etcd does. An object in the store is never changed in
place: a write stores a new dict and its JSON, encoded once, which lists, gets and every
watcher share. A bounded window of changes lets a watch start at a version of the recent
past; older versions are gone (410). A listing in pages reads from a frozen list of entries,
so that its pages belong to one moment.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator

from kubelite.errors import expired
from kubelite.json import Json, encode

Key = tuple[str, str]
_PAGED_LISTINGS = 64


class Entry:
    """An object at one version."""

    __slots__ = ("encoded", "key", "object", "version")

    def __init__(self, key: Key, item: Json, version: int) -> None:
        self.key = key
        self.object = item
        self.version = version
        self.encoded: bytes = encode(item)


class Change:
    """One event of the window: what is there now, and what was there before."""

    __slots__ = ("entry", "kind", "lines", "previous", "version")

    def __init__(self, kind: str, entry: Entry, previous: Entry | None) -> None:
        self.kind = kind
        self.entry = entry
        self.previous = previous
        self.version = entry.version
        self.lines: dict[tuple[str, str], bytes] = {}


class Shelf:
    """The objects of one resource, and its recent changes."""

    def __init__(self, window: int) -> None:
        self.entries: dict[Key, Entry] = {}
        self.changes: deque[Change] = deque(maxlen=window)
        self.forgotten = 0
        self.listeners: set[Callable[[Change], None]] = set()
        self._sorted: list[Entry] | None = None

    def record(self, change: Change) -> None:
        """Add a change to the window and tell those who watch."""
        if len(self.changes) == self.changes.maxlen:
            self.forgotten = self.changes[0].version
        self.changes.append(change)
        self._sorted = None
        for listener in tuple(self.listeners):
            listener(change)

    def in_order(self) -> list[Entry]:
        """Every entry by namespace and name. The list is not to be changed."""
        if self._sorted is None:
            self._sorted = [self.entries[key] for key in sorted(self.entries)]
        return self._sorted

    def since(self, version: int) -> Iterator[Change]:
        """The changes after a version, oldest first; 410 if some of them are forgotten."""
        if version < self.forgotten:
            raise expired(f"too old resource version: {version} ({self.forgotten + 1})")
        return (change for change in tuple(self.changes) if change.version > version)


class Store:
    """All shelves under one version counter."""

    def __init__(self, window: int = 10_000) -> None:
        self.version = 1
        self._window = window
        self._shelves: dict[str, Shelf] = {}
        self._listings: OrderedDict[str, tuple[list[Entry], int]] = OrderedDict()
        self._listing_count = 0
        self.on_commit: list[Callable[[str, Change], None]] = []

    def shelf(self, name: str) -> Shelf:
        """The shelf of a resource, made when first asked for."""
        shelf = self._shelves.get(name)
        if shelf is None:
            shelf = self._shelves[name] = Shelf(self._window)
            shelf.forgotten = self.version
        return shelf

    def shelves(self) -> list[tuple[str, Shelf]]:
        """Every shelf that has been used, with its name."""
        return list(self._shelves.items())

    def get(self, shelf: str, namespace: str, name: str) -> Entry | None:
        """The entry now, or None."""
        found = self._shelves.get(shelf)
        return None if found is None else found.entries.get((namespace, name))

    def put(self, shelf_name: str, item: Json) -> Entry:
        """Store a new state of an object; its resource version is set here."""
        self.version += 1
        metadata: Json = item["metadata"]
        metadata["resourceVersion"] = str(self.version)
        key = (metadata.get("namespace", ""), metadata["name"])
        entry = Entry(key, item, self.version)
        shelf = self.shelf(shelf_name)
        previous = shelf.entries.get(key)
        shelf.entries[key] = entry
        self._commit(shelf_name, shelf, Change("MODIFIED" if previous else "ADDED", entry, previous))
        return entry

    def remove(self, shelf_name: str, entry: Entry) -> Entry:
        """Take an object away; the answer is its last state, at the version of its removal."""
        self.version += 1
        shelf = self.shelf(shelf_name)
        del shelf.entries[entry.key]
        metadata = {**entry.object["metadata"], "resourceVersion": str(self.version)}
        gone = Entry(entry.key, {**entry.object, "metadata": metadata}, self.version)
        self._commit(shelf_name, shelf, Change("DELETED", gone, entry))
        return gone

    def _commit(self, shelf_name: str, shelf: Shelf, change: Change) -> None:
        shelf.record(change)
        for told in self.on_commit:
            told(shelf_name, change)

    def keep_listing(self, entries: list[Entry], version: int) -> str:
        """Keep a listing for its next pages; the answer names it."""
        self._listing_count += 1
        name = str(self._listing_count)
        self._listings[name] = (entries, version)
        while len(self._listings) > _PAGED_LISTINGS:
            self._listings.popitem(last=False)
        return name

    def kept_listing(self, name: str) -> tuple[list[Entry], int]:
        """A listing kept before; 410 once it is forgotten."""
        found = self._listings.get(name)
        if found is None:
            raise expired(
                "The provided continue parameter is too old to display a consistent list result. "
                "You must start a new list without the continue parameter."
            )
        self._listings.move_to_end(name)
        return found
