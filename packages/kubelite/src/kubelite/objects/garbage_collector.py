"""Garbage collection of dependents, namespace content, custom resources and old Events.

The collector listens to the store and keeps two maps: the live uids, and the dependents of each
uid. A deletion enqueues the dependents, and one task processes the queue. Events are deleted after
their time to live, as on kube-apiserver.
"""

import asyncio
import contextlib
import logging
from collections import deque
from datetime import datetime, timedelta

from kubelite.errors import ApiError
from kubelite.json import Json
from kubelite.kinds import Kind, Registry
from kubelite.objects.context import User, WriteContext
from kubelite.objects.deletion import CRD_CLEANUP, FOREGROUND, ORPHAN, DeleteOptions, Deletion
from kubelite.objects.objects import Objects
from kubelite.storage.store import Change, Entry, Key

ObjectRef = tuple[str, Key]
_SWEEP_SECONDS = 60.0
_CRDS = "apiextensions.k8s.io/customresourcedefinitions"
_log = logging.getLogger("kubelite")


class GarbageCollector:
    """Delete objects whose owners, namespace or definition are deleted."""

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
        self._live: dict[str, ObjectRef] = {}
        self._dependents: dict[str, set[ObjectRef]] = {}
        self._queue: deque[ObjectRef] = deque()
        self._wake = asyncio.Event()
        user = User(
            "system:serviceaccount:kube-system:generic-garbage-collector", ("system:serviceaccounts",)
        )
        self._context = WriteContext(user=user, manager="garbage-collector")
        self._store.on_commit.append(self.on_change)

    def on_change(self, collection: str, change: Change) -> None:
        """Update the maps and enqueue the objects that a change may affect."""
        metadata = change.entry.object["metadata"]
        uid, ref = metadata["uid"], (collection, change.entry.key)
        before = _owner_uids(change.previous.object) if change.previous else set()
        after = set() if change.kind == "DELETED" else _owner_uids(change.entry.object)
        for owner in before - after:
            refs = self._dependents.get(owner)
            if refs is not None:
                refs.discard(ref)
                if not refs:
                    del self._dependents[owner]
                if owner in self._live:
                    self._enqueue(self._live[owner])
        for owner in after - before:
            self._dependents.setdefault(owner, set()).add(ref)
            self._enqueue(ref)
        if change.kind == "DELETED":
            self._live.pop(uid, None)
            for dependent in self._dependents.get(uid, ()):
                self._enqueue(dependent)
            self._enqueue_namespace(change.entry.key[0])
            if collection not in ("pods", "events"):
                self._enqueue_definition(collection)
        else:
            self._live[uid] = ref
            if "deletionTimestamp" in metadata:
                self._enqueue(ref)

    def _enqueue_namespace(self, namespace: str) -> None:
        namespace_entry = self._store.get("namespaces", "", namespace) if namespace else None
        if namespace_entry is not None and "deletionTimestamp" in namespace_entry.object["metadata"]:
            self._enqueue(("namespaces", namespace_entry.key))

    def _enqueue_definition(self, collection: str) -> None:
        group, _, plural = collection.partition("/")
        definition = self._store.get(_CRDS, "", f"{plural}.{group}")
        if definition is not None and "deletionTimestamp" in definition.object["metadata"]:
            self._enqueue((_CRDS, definition.key))

    def _enqueue(self, ref: ObjectRef) -> None:
        self._queue.append(ref)
        self._wake.set()

    async def run(self) -> None:
        """Process the queue and sweep Events until cancelled."""
        loop = asyncio.get_running_loop()
        sweep_at = loop.time() + self._sweep_seconds
        while True:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout_at(sweep_at):
                    await self._wake.wait()
            # Sweep by the clock: a busy server is never idle.
            if loop.time() >= sweep_at:
                await self.sweep_events(self._objects.clock())
                sweep_at = loop.time() + self._sweep_seconds
            self._wake.clear()
            await self.process_queue()

    async def process_queue(self) -> None:
        """Process all queued objects."""
        done = 0
        while self._queue:
            collection, key = self._queue.popleft()
            try:
                await self._process(collection, key)
            except ApiError as error:
                _log.warning(
                    "garbage_collection_refused collection=%s namespace=%s name=%s error=%s",
                    collection,
                    *key,
                    error,
                )
            done += 1
            if done % 100 == 0:
                await asyncio.sleep(0)

    async def _process(self, collection: str, key: Key) -> None:
        kind, entry = self._registry.for_collection(collection), self._store.get(collection, *key)
        if kind is None or entry is None:
            return
        metadata = entry.object["metadata"]
        if metadata.get("deletionTimestamp"):
            await self._finish_deletion(kind, entry, metadata)
        elif metadata.get("ownerReferences"):
            await self._check_owners(kind, entry, metadata["ownerReferences"])

    async def _check_owners(self, kind: Kind, entry: Entry, owners: list[Json]) -> None:
        deleted = [owner for owner in owners if owner.get("uid") not in self._live]
        deleting = [owner for owner in owners if self._deletes_in_foreground(owner)]
        remaining = [owner for owner in owners if owner not in deleted and owner not in deleting]
        if remaining:
            if deleted or deleting:
                metadata = {**entry.object["metadata"], "ownerReferences": remaining}
                self._store.put(kind.collection, {**entry.object, "metadata": metadata})
            return
        policy = (
            "Foreground"
            if deleting and self._dependents.get(entry.object["metadata"]["uid"])
            else "Background"
        )
        options = DeleteOptions(uid=entry.object["metadata"]["uid"], policy=policy)
        await self._deletion.delete(kind, *entry.key, options, self._context)

    def _deletes_in_foreground(self, owner: Json) -> bool:
        ref = self._live.get(owner.get("uid", ""))
        entry = self._store.get(ref[0], *ref[1]) if ref else None
        return (
            entry is not None
            and FOREGROUND in (entry.object["metadata"].get("finalizers") or ())
            and bool(entry.object["metadata"].get("deletionTimestamp"))
        )

    async def _finish_deletion(self, kind: Kind, entry: Entry, metadata: Json) -> None:
        finalizers = metadata.get("finalizers") or ()
        refs = list(self._dependents.get(metadata["uid"], ()))
        if ORPHAN in finalizers:
            for collection, key in refs:
                self._remove_owner(collection, key, metadata["uid"])
            self._remove_finalizer(kind, entry, ORPHAN)
        elif FOREGROUND in finalizers:
            for collection, key in refs:
                await self._process(collection, key)
            if not self._has_blocking_dependents(metadata["uid"]):
                self._remove_finalizer(kind, entry, FOREGROUND)
        elif kind.collection == "namespaces":
            await self._delete_namespace_content(kind, entry)
        elif CRD_CLEANUP in finalizers:
            await self._delete_custom_resources(kind, entry)

    def _remove_finalizer(self, kind: Kind, entry: Entry, finalizer: str) -> None:
        current = self._store.get(kind.collection, *entry.key)
        if current is not None and finalizer in (current.object["metadata"].get("finalizers") or ()):
            self._deletion.remove_finalizer(kind, current, finalizer)

    def _has_blocking_dependents(self, uid: str) -> bool:
        for collection, key in self._dependents.get(uid, ()):
            entry = self._store.get(collection, *key)
            owners = entry.object["metadata"].get("ownerReferences") or () if entry else ()
            if any(owner.get("uid") == uid and owner.get("blockOwnerDeletion") for owner in owners):
                return True
        return False

    def _remove_owner(self, collection: str, key: Key, uid: str) -> None:
        entry = self._store.get(collection, *key)
        if entry is None:
            return
        metadata = dict(entry.object["metadata"])
        rest = [owner for owner in metadata.get("ownerReferences") or () if owner.get("uid") != uid]
        if rest:
            metadata["ownerReferences"] = rest
        else:
            metadata.pop("ownerReferences", None)
        self._store.put(collection, {**entry.object, "metadata": metadata})

    async def _delete_namespace_content(self, kind: Kind, namespace_entry: Entry) -> None:
        name, left = namespace_entry.key[1], 0
        for collection, content in self._store.collections():
            member_kind = self._registry.for_collection(collection)
            if member_kind is None or not member_kind.namespaced:
                continue
            for entry in [entry for entry in content.in_order() if entry.key[0] == name]:
                if not entry.object["metadata"].get("deletionTimestamp"):
                    await self._deletion.delete(member_kind, *entry.key, DeleteOptions(), self._context)
                left += entry.key in content.entries
        current = self._store.get("namespaces", "", name)
        if not left and current is not None and not current.object["metadata"].get("finalizers"):
            self._store.remove("namespaces", current)

    async def _delete_custom_resources(self, kind: Kind, definition: Entry) -> None:
        spec = definition.object["spec"]
        collection = f"{spec['group']}/{spec['names']['plural']}"
        content, member_kind = self._store.collection(collection), self._registry.for_collection(collection)
        for entry in list(content.in_order()):
            if member_kind is not None and not entry.object["metadata"].get("deletionTimestamp"):
                await self._deletion.delete(member_kind, *entry.key, DeleteOptions(), self._context)
        if not content.entries:
            self._remove_finalizer(kind, definition, CRD_CLEANUP)

    async def sweep_events(self, now: datetime) -> None:
        """Delete Events older than their time to live."""
        oldest = (now - self._event_ttl).strftime("%Y-%m-%dT%H:%M:%SZ")
        for entry in list(self._store.collection("events").entries.values()):
            if entry.object["metadata"]["creationTimestamp"] < oldest:
                self._store.remove("events", entry)


def _owner_uids(item: Json) -> set[str]:
    return {owner.get("uid", "") for owner in item["metadata"].get("ownerReferences") or ()}
