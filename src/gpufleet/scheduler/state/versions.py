"""Tell old states of objects from new ones: watch events and responses may arrive late or twice."""

from gpufleet.kubernetes.objects import KubeObject

_MAX_TOMBSTONES = 65536
"""Number of deleted objects remembered: a response about one may arrive after its deletion."""


class Tombstones:
    """The names and UIDs of objects that were deleted last."""

    def __init__(self) -> None:
        self._uids: dict[str, str] = {}

    def add(self, name: str, uid: str) -> None:
        """Remember that the object with this UID was deleted."""
        self._uids[name] = uid
        if len(self._uids) > _MAX_TOMBSTONES:
            self._uids.pop(next(iter(self._uids)))

    def has(self, name: str, uid: str) -> bool:
        """Return whether the object with this UID was deleted."""
        return self._uids.get(name) == uid

    def clear(self) -> None:
        """Forget all deleted objects."""
        self._uids.clear()


def is_stale(item: KubeObject, known: KubeObject) -> bool:
    """Return whether `item` is `known` or an earlier state of it; versions of one object only grow."""
    new, old = item.metadata, known.metadata
    if new.uid != old.uid or not (new.resource_version.isdigit() and old.resource_version.isdigit()):
        return False
    return int(new.resource_version) <= int(old.resource_version)
