"""The object store: entries, resource versions and a window of recent changes.

One counter numbers all changes, as in etcd. Stored objects are never modified in place: a write
stores a new dict and its JSON, encoded once and shared by gets, lists and watches. A bounded
window of changes lets a watch resume from a recent version; older versions get a 410. The pages
of a list come from one frozen list of entries, so they show one snapshot.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator

from kubelite.errors import expired
from kubelite.json import Json, encode

Key = tuple[str, str]
_MAX_KEPT_LISTINGS = 64


class Entry:
    """An object at one version."""

    __slots__ = ("encoded", "key", "object", "version")

    def __init__(self, key: Key, item: Json, version: int) -> None:
        self.key = key
        self.object = item
        self.version = version
        self.encoded: bytes = encode(item)


class Change:
    """One change: the new state and the previous one."""

    __slots__ = ("entry", "kind", "lines", "previous", "version")

    def __init__(self, kind: str, entry: Entry, previous: Entry | None) -> None:
        self.kind = kind
        self.entry = entry
        self.previous = previous
        self.version = entry.version
        self.lines: dict[tuple[str, str], bytes] = {}


class Collection:
    """The objects of one resource and its recent changes."""

    def __init__(self, window: int) -> None:
        self.entries: dict[Key, Entry] = {}
        self.changes: deque[Change] = deque(maxlen=window)
        self.oldest_version = 0
        self.listeners: set[Callable[[Change], None]] = set()
        self._sorted: list[Entry] | None = None

    def record(self, change: Change) -> None:
        """Add a change to the window and notify listeners."""
        if len(self.changes) == self.changes.maxlen:
            self.oldest_version = self.changes[0].version
        self.changes.append(change)
        self._sorted = None
        for listener in tuple(self.listeners):
            listener(change)

    def in_order(self) -> list[Entry]:
        """Return all entries sorted by namespace and name. Callers must not modify the list."""
        if self._sorted is None:
            self._sorted = [self.entries[key] for key in sorted(self.entries)]
        return self._sorted

    def since(self, version: int) -> Iterator[Change]:
        """Return the changes after a version, oldest first. Raise 410 if the window does not reach back."""
        if version < self.oldest_version:
            raise expired(f"too old resource version: {version} ({self.oldest_version + 1})")
        return (change for change in tuple(self.changes) if change.version > version)


class Store:
    """All collections, under one version counter."""

    def __init__(self, window: int = 10_000) -> None:
        self.version = 1
        self._window = window
        self._collections: dict[str, Collection] = {}
        self._listings: OrderedDict[str, tuple[list[Entry], int]] = OrderedDict()
        self._listing_count = 0
        self.on_commit: list[Callable[[str, Change], None]] = []

    def collection(self, name: str) -> Collection:
        """Return the collection of a resource, created on first use."""
        collection = self._collections.get(name)
        if collection is None:
            collection = self._collections[name] = Collection(self._window)
            collection.oldest_version = self.version
        return collection

    def collections(self) -> list[tuple[str, Collection]]:
        """Return every collection in use with its name."""
        return list(self._collections.items())

    def get(self, collection: str, namespace: str, name: str) -> Entry | None:
        """Return the current entry, or None."""
        found = self._collections.get(collection)
        return None if found is None else found.entries.get((namespace, name))

    def put(self, collection_name: str, item: Json) -> Entry:
        """Store a new state of an object and set its resource version."""
        self.version += 1
        metadata: Json = item["metadata"]
        metadata["resourceVersion"] = str(self.version)
        key = (metadata.get("namespace", ""), metadata["name"])
        entry = Entry(key, item, self.version)
        collection = self.collection(collection_name)
        previous = collection.entries.get(key)
        collection.entries[key] = entry
        self._commit(
            collection_name, collection, Change("MODIFIED" if previous else "ADDED", entry, previous)
        )
        return entry

    def remove(self, collection_name: str, entry: Entry) -> Entry:
        """Remove an object and return its last state at the version of the removal."""
        self.version += 1
        collection = self.collection(collection_name)
        del collection.entries[entry.key]
        metadata = {**entry.object["metadata"], "resourceVersion": str(self.version)}
        removed = Entry(entry.key, {**entry.object, "metadata": metadata}, self.version)
        self._commit(collection_name, collection, Change("DELETED", removed, entry))
        return removed

    def _commit(self, collection_name: str, collection: Collection, change: Change) -> None:
        collection.record(change)
        for callback in self.on_commit:
            callback(collection_name, change)

    def keep_listing(self, entries: list[Entry], version: int) -> str:
        """Keep a listing for its next pages and return its name."""
        self._listing_count += 1
        name = str(self._listing_count)
        self._listings[name] = (entries, version)
        while len(self._listings) > _MAX_KEPT_LISTINGS:
            self._listings.popitem(last=False)
        return name

    def kept_listing(self, name: str) -> tuple[list[Entry], int]:
        """Return a kept listing and its version. Raise 410 if it is no longer kept."""
        found = self._listings.get(name)
        if found is None:
            raise expired(
                "The provided continue parameter is too old to display a consistent list result. "
                "You must start a new list without the continue parameter."
            )
        self._listings.move_to_end(name)
        return found
