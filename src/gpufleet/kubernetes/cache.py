"""A local cache of the objects of one kind, with listeners for changes.

Caches count the memory of their objects in a `CacheBudget`, which all caches of a client share.

Listeners are plain functions. They get the changes in order, in the batches in which the
reflector received them. They must return quickly; slow consumers put the changes into a queue of
their own. If a listener raises, the error is logged and the other listeners still run.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Generic

import msgspec
from msgspec.structs import force_setattr

from gpufleet.kubernetes.annotations import kept_annotations
from gpufleet.kubernetes.cache_budget import CacheBudget, memory_of
from gpufleet.kubernetes.client.resources import T
from gpufleet.kubernetes.objects import EMPTY
from gpufleet.runtime.logs import get_logger

_log = get_logger("kube")

Key = tuple[str, str]
"""Namespace (empty for cluster-scoped kinds) and name."""


class CacheChange(msgspec.Struct, Generic[T], frozen=True, gc=False):
    """One changed object: added if `before` is None, deleted if `after` is None, else updated."""

    before: T | None
    after: T | None

    @property
    def object(self) -> T:
        """Return the object's latest state."""
        found = self.after if self.after is not None else self.before
        assert found is not None
        return found


Listener = Callable[[Sequence[CacheChange[T]]], None]


def key_of(item: T) -> Key:
    """Return the cache key of an object."""
    return item.metadata.namespace, item.metadata.name


class Cache(Generic[T]):
    """Objects by namespace and name."""

    def __init__(self, budget: CacheBudget, annotations: Collection[str] = ()) -> None:
        """Create the cache; `annotations` are kept of users' objects beside those that gpufleet always reads."""
        self._budget = budget
        self._annotations = annotations
        self.left_out: set[str] = set()
        """Namespaces of which objects are missing or old, because they have too much already."""
        self._items: dict[Key, T] = {}
        self._listeners: list[Listener[T]] = []

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        return iter(self._items.values())

    def get(self, name: str, namespace: str = "") -> T | None:
        """Return an object by name, or None."""
        return self._items.get((namespace, name))

    def keys(self) -> set[Key]:
        """Return the keys of all objects."""
        return set(self._items)

    def subscribe(self, listener: Listener[T]) -> Callable[[], None]:
        """Call `listener` with the current objects and then with every change; return a function that unsubscribes."""
        self._listeners.append(listener)
        if self._items:
            _notify(listener, [CacheChange(None, item) for item in self._items.values()])
        return lambda: self._listeners.remove(listener)

    def put(self, items: Iterable[T]) -> list[CacheChange[T]]:
        """Store objects and return the changes; an object at a known version is no change."""
        changes: list[CacheChange[T]] = []
        for item in items:
            if item.metadata.annotations and not item.all_annotations:
                kept = kept_annotations(item.metadata.annotations, self._annotations)
                force_setattr(item.metadata, "annotations", kept or EMPTY)
            key = key_of(item)
            before = self._items.get(key)
            growth = memory_of(item) - (memory_of(before) if before is not None else 0)
            if growth > 0 and not self._budget.admits(key[0], growth):
                if key[0] not in self.left_out:
                    self.left_out.add(key[0])
                    _log.warning("namespace_left_out", namespace=key[0], kind=type(item).__name__)
                if before is not None and before.metadata.uid != item.metadata.uid:
                    changes += self.remove((key,))
                continue
            if before is None:
                changes.append(CacheChange(None, item))
            elif before.metadata.uid != item.metadata.uid:
                # Deleted and recreated between two lists: listeners that count by UID must see both.
                changes += (CacheChange(before, None), CacheChange(None, item))
            elif before.metadata.resource_version != item.metadata.resource_version:
                changes.append(CacheChange(before, item))
            else:
                continue
            self._budget.add(key[0], growth)
            self._items[key] = item
        return changes

    def remove(self, keys: Iterable[Key]) -> list[CacheChange[T]]:
        """Remove objects and return the changes; unknown keys are ignored."""
        removed = (self._items.pop(key, None) for key in keys)
        changes = [CacheChange(item, None) for item in removed if item is not None]
        for change in changes:
            self._budget.add(change.object.metadata.namespace, -memory_of(change.object))
        return changes

    def undo(self, changes: Sequence[CacheChange[T]]) -> None:
        """Restore the objects as they were before `changes`, of which the listeners do not know yet."""
        for change in reversed(changes):
            if change.after is not None:
                self._budget.add(change.after.metadata.namespace, -memory_of(change.after))
                del self._items[key_of(change.after)]
            if change.before is not None:
                self._budget.add(change.before.metadata.namespace, memory_of(change.before))
                self._items[key_of(change.before)] = change.before

    def notify(self, changes: Sequence[CacheChange[T]]) -> None:
        """Call the listeners."""
        if changes:
            for listener in tuple(self._listeners):
                _notify(listener, changes)


def _notify(listener: Listener[T], changes: Sequence[CacheChange[T]]) -> None:
    try:
        listener(changes)
    except Exception:  # noqa: BLE001  a failing listener must not stop the cache for the others
        _log.exception("listener_failed", listener=getattr(listener, "__qualname__", repr(listener)))
