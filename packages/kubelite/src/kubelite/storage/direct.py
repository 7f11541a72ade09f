"""The storage behind the API, for whoever owns the cluster's past.

A client can't choose the uid, the age or the first status of what it creates, and must not. A
simulation must: its pods were there before the server was started. So it writes where a real
server finds its objects when it starts, in the storage, and watchers hear of it as of any write.
Objects are still read by their schema and checked, so that nothing gets in that the API couldn't hold.
"""

import logging
from collections.abc import Callable, Iterable
from functools import lru_cache

from kubelite.json import Json
from kubelite.kinds import Kind
from kubelite.objects.context import Asking
from kubelite.objects.metadata import new_uid, timestamp
from kubelite.objects.validation import check, conform, finish
from kubelite.server import KubeLite
from kubelite.storage.store import Change

_log = logging.getLogger("kubelite")
_STRICT = Asking(manager="storage", field_validation="Strict")


class Storage:
    """Puts objects into a server's storage as they are."""

    def __init__(self, server: KubeLite) -> None:
        self._store = server.store
        self._registry = server.registry
        self._clock = server.objects.clock
        self._kind = lru_cache(maxsize=256)(self._find)

    def put(self, objects: Iterable[Json]) -> None:
        """Add or replace objects."""
        for item in objects:
            kind = self._kind(item["apiVersion"], item["kind"], self._registry.changes)
            whole = finish(kind, conform(kind, item, _STRICT))
            metadata = whole["metadata"]
            metadata.setdefault("uid", new_uid())
            metadata.setdefault("creationTimestamp", timestamp(self._clock()))
            if kind.generation or kind.custom:
                metadata.setdefault("generation", 1)
            check(kind, whole, None)
            self._store.put(kind.shelf, whole)

    def drop(self, objects: Iterable[Json]) -> None:
        """Remove objects; one that is not there, or is another by now, is no fault."""
        for item in objects:
            kind = self._kind(item["apiVersion"], item["kind"], self._registry.changes)
            metadata = item["metadata"]
            entry = self._store.get(kind.shelf, metadata.get("namespace", ""), metadata["name"])
            if entry is not None and entry.object["metadata"]["uid"] == metadata.get("uid"):
                self._store.remove(kind.shelf, entry)

    def follow(self, api_version: str, kind: str, told: Callable[[Json, bool], None]) -> None:
        """Call `told` with every object of a kind, now and at each change; and whether it is gone.

        Where it fails that is logged: the write has been done, and others have to hear of it too.
        """
        shelf = self._store.shelf(self._kind(api_version, kind, self._registry.changes).shelf)
        for entry in shelf.in_order():
            told(entry.object, False)

        def tell(change: Change) -> None:
            try:
                told(change.entry.object, change.kind == "DELETED")
            except Exception:  # noqa: BLE001  (whatever it is, it is not the writer's fault)
                _log.exception("callback_failed kind=%s name=%s", kind, change.entry.key[1])

        shelf.listeners.add(tell)

    def _find(self, api_version: str, kind: str, _changes: int) -> Kind:
        found = self._registry.by_kind(api_version, kind)
        if found is None:
            raise LookupError(f"no kind {kind} in {api_version}")
        return found
