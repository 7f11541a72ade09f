"""The objects of one kind as the server last showed them, and who wants to hear of changes.

Listeners are called in the order of the changes, with all that one step of the reflector
brought at once. They are plain functions and must be quick: a slow consumer puts what it
gets into a queue of its own. One that raises is logged and does not keep others from theirs.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Generic

import msgspec

from gpufleet.kubernetes.client.resources import T
from gpufleet.runtime.logs import get_logger

_log = get_logger("kube")

Key = tuple[str, str]
"""Namespace (empty for kinds without) and name."""


class CacheChange(msgspec.Struct, Generic[T], frozen=True, gc=False):
    """What became of one object: added without `before`, deleted without `after`, else updated."""

    before: T | None
    after: T | None

    @property
    def object(self) -> T:
        """The object as it is now, or as it was last."""
        found = self.after if self.after is not None else self.before
        assert found is not None
        return found


Listener = Callable[[Sequence[CacheChange[T]]], None]


def key_of(item: T) -> Key:
    """Under which key the cache holds the object."""
    return item.metadata.namespace, item.metadata.name


class Cache(Generic[T]):
    """Objects by namespace and name."""

    def __init__(self) -> None:
        self._items: dict[Key, T] = {}
        self._listeners: list[Listener[T]] = []

    def __len__(self) -> int:
        return len(self._items)

    def __iter__(self) -> Iterator[T]:
        return iter(self._items.values())

    def get(self, name: str, namespace: str = "") -> T | None:
        """The object of that name, if there is one."""
        return self._items.get((namespace, name))

    def keys(self) -> set[Key]:
        """The keys of all objects."""
        return set(self._items)

    def subscribe(self, listener: Listener[T]) -> Callable[[], None]:
        """Tell `listener` of what is there now and of every change after; call the result to end that."""
        self._listeners.append(listener)
        if self._items:
            _tell(listener, [CacheChange(None, item) for item in self._items.values()])
        return lambda: self._listeners.remove(listener)

    def put(self, items: Iterable[T]) -> list[CacheChange[T]]:
        """Take up new and changed objects; those already known at that version are no change."""
        changes: list[CacheChange[T]] = []
        for item in items:
            key = key_of(item)
            before = self._items.get(key)
            if before is None:
                changes.append(CacheChange(None, item))
            elif before.metadata.uid != item.metadata.uid:
                # Deleted and made anew while nobody watched: whoever counts by uid must see both.
                changes += (CacheChange(before, None), CacheChange(None, item))
            elif before.metadata.resource_version != item.metadata.resource_version:
                changes.append(CacheChange(before, item))
            else:
                continue
            self._items[key] = item
        return changes

    def remove(self, keys: Iterable[Key]) -> list[CacheChange[T]]:
        """Drop objects; keys that are not there are no change."""
        gone = (self._items.pop(key, None) for key in keys)
        return [CacheChange(item, None) for item in gone if item is not None]

    def tell(self, changes: Sequence[CacheChange[T]]) -> None:
        """Call the listeners."""
        if changes:
            for listener in tuple(self._listeners):
                _tell(listener, changes)


def _tell(listener: Listener[T], changes: Sequence[CacheChange[T]]) -> None:
    try:
        listener(changes)
    except Exception:  # noqa: BLE001  one listener's fault must not stop the cache for all others
        _log.exception("listener failed", listener=getattr(listener, "__qualname__", repr(listener)))
