"""Serve the kinds of CustomResourceDefinitions as definitions are created, changed and deleted."""

from datetime import datetime

from kubelite.clock import Clock
from kubelite.custom_resources.kinds import kinds_from
from kubelite.json import Json
from kubelite.kinds import Registry
from kubelite.objects.metadata import timestamp
from kubelite.storage.store import Change, Store

COLLECTION = "apiextensions.k8s.io/customresourcedefinitions"


class Definitions:
    """Keep the registry and the status of definitions in step with the store."""

    def __init__(self, store: Store, registry: Registry, clock: Clock) -> None:
        self._store = store
        self._registry = registry
        self._clock = clock
        store.on_commit.append(self.on_change)

    def on_change(self, collection: str, change: Change) -> None:
        """Register or remove the kinds of a changed definition."""
        if collection != COLLECTION:
            return
        spec = change.entry.object["spec"]
        group, plural = spec["group"], spec["names"]["plural"]
        if change.kind == "DELETED":
            self._registry.remove(group, plural)
            return
        previous = change.previous.object if change.previous else None
        if previous is None or previous["spec"] != spec:
            self.serve(change.entry.object)
        status = _established(change.entry.object, self._clock())
        if status != change.entry.object.get("status"):
            metadata = dict(change.entry.object["metadata"])
            self._store.put(COLLECTION, {**change.entry.object, "metadata": metadata, "status": status})

    def serve(self, definition: Json) -> None:
        """Serve the kinds of a definition in place of its previous ones."""
        spec = definition["spec"]
        self._registry.remove(spec["group"], spec["names"]["plural"])
        for kind in kinds_from(definition):
            self._registry.add(kind)


def _established(definition: Json, now: datetime) -> Json:
    spec, status = definition["spec"], definition.get("status") or {}
    known = {one["type"]: one for one in status.get("conditions") or ()}
    stamp = timestamp(now)
    conditions = [
        known.get(name)
        or {"type": name, "status": "True", "lastTransitionTime": stamp, "reason": reason, "message": message}
        for name, reason, message in (
            ("NamesAccepted", "NoConflicts", "no conflicts found"),
            ("Established", "InitialNamesAccepted", "the initial names have been accepted"),
        )
    ]
    storage = [version["name"] for version in spec["versions"] if version.get("storage")]
    stored = list(status.get("storedVersions") or ())
    return {
        **status,
        "acceptedNames": spec["names"],
        "conditions": conditions,
        "storedVersions": stored + [name for name in storage if name not in stored],
    }
