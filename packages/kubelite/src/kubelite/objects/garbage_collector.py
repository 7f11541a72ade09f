"""The garbage collector: what has no owner left goes, and namespaces and definitions empty themselves.

It listens to the store and keeps two maps: which ids live, and which objects name an id as
owner. A deletion puts the dependents on a list that one task works off. Events older than
their time to live go as well, as they do on a real server.
"""

import asyncio
import contextlib
import logging
from collections import deque
from datetime import datetime, timedelta

from kubelite.errors import ApiError
from kubelite.json import Json
from kubelite.kinds import Kind, Registry
from kubelite.objects.context import Asking, User
from kubelite.objects.deletion import CRD_CLEANUP, FOREGROUND, ORPHAN, DeleteOptions, Deletion
from kubelite.objects.objects import Objects
from kubelite.storage.store import Change, Entry, Key

Place = tuple[str, Key]
_SWEEP_SECONDS = 60.0
_CRDS = "apiextensions.k8s.io/customresourcedefinitions"
_log = logging.getLogger("kubelite")


class Collector:
    """Watches the store and cleans up."""

    def __init__(
        self,
        objects: Objects,
        deletion: Deletion,
        registry: Registry,
        event_ttl: timedelta,
        sweep_seconds: float = _SWEEP_SECONDS,
    ) -> None:
        self._objects = objects
        self._store = objects.store
        self._deletion = deletion
        self._registry = registry
        self._event_ttl = event_ttl
        self._sweep_seconds = sweep_seconds
        self._alive: dict[str, Place] = {}
        self._dependents: dict[str, set[Place]] = {}
        self._waiting: deque[Place] = deque()
        self._wake = asyncio.Event()
        user = User(
            "system:serviceaccount:kube-system:generic-garbage-collector", ("system:serviceaccounts",)
        )
        self._asking = Asking(user=user, manager="garbage-collector")
        self._store.on_commit.append(self.noticed)

    def noticed(self, shelf: str, change: Change) -> None:
        """Keep the maps and put on the list what a change may concern."""
        metadata = change.entry.object["metadata"]
        uid, place = metadata["uid"], (shelf, change.entry.key)
        before = _owners(change.previous.object) if change.previous else set()
        after = set() if change.kind == "DELETED" else _owners(change.entry.object)
        for owner in before - after:
            places = self._dependents.get(owner)
            if places is not None:
                places.discard(place)
                if not places:
                    del self._dependents[owner]
                if owner in self._alive:
                    self._add(self._alive[owner])
        for owner in after - before:
            self._dependents.setdefault(owner, set()).add(place)
            self._add(place)
        if change.kind == "DELETED":
            self._alive.pop(uid, None)
            for dependent in self._dependents.get(uid, ()):
                self._add(dependent)
            self._space_changed(change.entry.key[0])
            if shelf not in ("pods", "events"):
                self._definition_changed(shelf)
        else:
            self._alive[uid] = place
            if "deletionTimestamp" in metadata:
                self._add(place)

    def _space_changed(self, namespace: str) -> None:
        space = self._store.get("namespaces", "", namespace) if namespace else None
        if space is not None and "deletionTimestamp" in space.object["metadata"]:
            self._add(("namespaces", space.key))

    def _definition_changed(self, shelf: str) -> None:
        group, _, plural = shelf.partition("/")
        definition = self._store.get(_CRDS, "", f"{plural}.{group}")
        if definition is not None and "deletionTimestamp" in definition.object["metadata"]:
            self._add((_CRDS, definition.key))

    def _add(self, place: Place) -> None:
        self._waiting.append(place)
        self._wake.set()

    async def run(self) -> None:
        """Work until cancelled."""
        loop = asyncio.get_running_loop()
        sweep_at = loop.time() + self._sweep_seconds
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(sweep_at):
                    await self._wake.wait()
            # By the clock, not when there is nothing else to do: a busy server never has that.
            if loop.time() >= sweep_at:
                await self.sweep_events(self._objects.clock())
                sweep_at = loop.time() + self._sweep_seconds
            self._wake.clear()
            await self.work()

    async def work(self) -> None:
        """Work off the list."""
        done = 0
        while self._waiting:
            shelf, key = self._waiting.popleft()
            try:
                await self._look_at(shelf, key)
            except ApiError as error:
                _log.warning(
                    "garbage_collection_refused collection=%s namespace=%s name=%s error=%s",
                    shelf,
                    *key,
                    error,
                )
            done += 1
            if done % 100 == 0:
                await asyncio.sleep(0)

    async def _look_at(self, shelf: str, key: Key) -> None:
        kind, entry = self._registry.for_shelf(shelf), self._store.get(shelf, *key)
        if kind is None or entry is None:
            return
        metadata = entry.object["metadata"]
        if metadata.get("deletionTimestamp"):
            await self._help_to_go(kind, entry, metadata)
        elif metadata.get("ownerReferences"):
            await self._check_owners(kind, entry, metadata["ownerReferences"])

    async def _check_owners(self, kind: Kind, entry: Entry, owners: list[Json]) -> None:
        gone = [owner for owner in owners if owner.get("uid") not in self._alive]
        going = [owner for owner in owners if self._goes_in_foreground(owner)]
        lasting = [owner for owner in owners if owner not in gone and owner not in going]
        if lasting:
            if gone or going:
                metadata = {**entry.object["metadata"], "ownerReferences": lasting}
                self._store.put(kind.shelf, {**entry.object, "metadata": metadata})
            return
        policy = (
            "Foreground" if going and self._dependents.get(entry.object["metadata"]["uid"]) else "Background"
        )
        options = DeleteOptions(uid=entry.object["metadata"]["uid"], policy=policy)
        await self._deletion.delete(kind, *entry.key, options, self._asking)

    def _goes_in_foreground(self, owner: Json) -> bool:
        place = self._alive.get(owner.get("uid", ""))
        entry = self._store.get(place[0], *place[1]) if place else None
        return (
            entry is not None
            and FOREGROUND in (entry.object["metadata"].get("finalizers") or ())
            and bool(entry.object["metadata"].get("deletionTimestamp"))
        )

    async def _help_to_go(self, kind: Kind, entry: Entry, metadata: Json) -> None:
        finalizers = metadata.get("finalizers") or ()
        places = list(self._dependents.get(metadata["uid"], ()))
        if ORPHAN in finalizers:
            for shelf, key in places:
                self._disown(shelf, key, metadata["uid"])
            self._drop(kind, entry, ORPHAN)
        elif FOREGROUND in finalizers:
            for shelf, key in places:
                await self._look_at(shelf, key)
            if not self._blocked(metadata["uid"]):
                self._drop(kind, entry, FOREGROUND)
        elif kind.shelf == "namespaces":
            await self._empty_namespace(kind, entry)
        elif CRD_CLEANUP in finalizers:
            await self._empty_definition(kind, entry)

    def _drop(self, kind: Kind, entry: Entry, finalizer: str) -> None:
        current = self._store.get(kind.shelf, *entry.key)
        if current is not None and finalizer in (current.object["metadata"].get("finalizers") or ()):
            self._deletion.drop_finalizer(kind, current, finalizer)

    def _blocked(self, uid: str) -> bool:
        for shelf, key in self._dependents.get(uid, ()):
            entry = self._store.get(shelf, *key)
            owners = entry.object["metadata"].get("ownerReferences") or () if entry else ()
            if any(owner.get("uid") == uid and owner.get("blockOwnerDeletion") for owner in owners):
                return True
        return False

    def _disown(self, shelf: str, key: Key, uid: str) -> None:
        entry = self._store.get(shelf, *key)
        if entry is None:
            return
        metadata = dict(entry.object["metadata"])
        rest = [owner for owner in metadata.get("ownerReferences") or () if owner.get("uid") != uid]
        if rest:
            metadata["ownerReferences"] = rest
        else:
            metadata.pop("ownerReferences", None)
        self._store.put(shelf, {**entry.object, "metadata": metadata})

    async def _empty_namespace(self, kind: Kind, space: Entry) -> None:
        name, left = space.key[1], 0
        for shelf, content in self._store.shelves():
            of_shelf = self._registry.for_shelf(shelf)
            if of_shelf is None or not of_shelf.namespaced:
                continue
            for entry in [entry for entry in content.in_order() if entry.key[0] == name]:
                if not entry.object["metadata"].get("deletionTimestamp"):
                    await self._deletion.delete(of_shelf, *entry.key, DeleteOptions(), self._asking)
                left += entry.key in content.entries
        current = self._store.get("namespaces", "", name)
        if not left and current is not None and not current.object["metadata"].get("finalizers"):
            self._store.remove("namespaces", current)

    async def _empty_definition(self, kind: Kind, definition: Entry) -> None:
        spec = definition.object["spec"]
        shelf = f"{spec['group']}/{spec['names']['plural']}"
        content, of_shelf = self._store.shelf(shelf), self._registry.for_shelf(shelf)
        for entry in list(content.in_order()):
            if of_shelf is not None and not entry.object["metadata"].get("deletionTimestamp"):
                await self._deletion.delete(of_shelf, *entry.key, DeleteOptions(), self._asking)
        if not content.entries:
            self._drop(kind, definition, CRD_CLEANUP)

    async def sweep_events(self, now: datetime) -> None:
        """Delete events past their time to live."""
        oldest = (now - self._event_ttl).strftime("%Y-%m-%dT%H:%M:%SZ")
        for entry in list(self._store.shelf("events").entries.values()):
            if entry.object["metadata"]["creationTimestamp"] < oldest:
                self._store.remove("events", entry)


def _owners(item: Json) -> set[str]:
    return {owner.get("uid", "") for owner in item["metadata"].get("ownerReferences") or ()}
