"""Write to the store directly, past the API.

A client cannot choose the uid, creation time or initial status of an object. A simulation or a
test fixture may need to: its pods existed before the server started. Objects are still validated
against their schema, and watchers see the writes like any others.
"""

import logging
from collections.abc import Callable, Iterable
from functools import lru_cache

from kubelite.json import Json
from kubelite.kinds import Kind
from kubelite.objects.context import WriteContext
from kubelite.objects.metadata import new_uid, timestamp
from kubelite.objects.validation import add_derived, normalize, validate
from kubelite.server import KubeLite
from kubelite.storage.store import Change

_log = logging.getLogger("kubelite")
_STRICT = WriteContext(manager="storage", field_validation="Strict")


class DirectStorage:
    """Write objects to the store of a server as they are."""

    def __init__(self, server: KubeLite) -> None:
        self._store = server.store
        self._registry = server.registry
        self._clock = server.objects.clock
        self._kind = lru_cache(maxsize=256)(self._find)

    def put(self, objects: Iterable[Json]) -> None:
        """Add or replace objects."""
        for item in objects:
            kind = self._kind(item["apiVersion"], item["kind"], self._registry.changes)
            complete = add_derived(kind, normalize(kind, item, _STRICT))
            metadata = complete["metadata"]
            metadata.setdefault("uid", new_uid())
            metadata.setdefault("creationTimestamp", timestamp(self._clock()))
            if kind.generation or kind.custom:
                metadata.setdefault("generation", 1)
            validate(kind, complete, None)
            self._store.put(kind.collection, complete)

    def remove(self, objects: Iterable[Json]) -> None:
        """Remove objects. Skip those that are missing or have another uid by now."""
        for item in objects:
            kind = self._kind(item["apiVersion"], item["kind"], self._registry.changes)
            metadata = item["metadata"]
            entry = self._store.get(kind.collection, metadata.get("namespace", ""), metadata["name"])
            if entry is not None and entry.object["metadata"]["uid"] == metadata.get("uid"):
                self._store.remove(kind.collection, entry)

    def subscribe(self, api_version: str, kind: str, callback: Callable[[Json, bool], None]) -> None:
        """Call `callback(object, deleted)` for every object of a kind, now and at each change.

        An exception in the callback is logged: the write is done, and other subscribers need to see it.
        """
        collection = self._store.collection(self._kind(api_version, kind, self._registry.changes).collection)
        for entry in collection.in_order():
            callback(entry.object, False)

        def notify(change: Change) -> None:
            try:
                callback(change.entry.object, change.kind == "DELETED")
            except Exception:  # noqa: BLE001  a faulty callback must not fail the write
                _log.exception("callback_failed kind=%s name=%s", kind, change.entry.key[1])

        collection.listeners.add(notify)

    def _find(self, api_version: str, kind: str, _changes: int) -> Kind:
        found = self._registry.by_kind(api_version, kind)
        if found is None:
            raise LookupError(f"no kind {kind} in {api_version}")
        return found
