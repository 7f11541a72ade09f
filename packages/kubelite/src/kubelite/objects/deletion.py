"""Delete objects: preconditions, grace periods, finalizers and propagation policies.

An object is deleted immediately unless it has finalizers or is a pod on a node. Such a pod keeps a
deletion timestamp during its grace period, until a kubelet deletes it again with grace period 0.
Foreground deletion and orphaning are finalizers too, which the garbage collector resolves.
"""

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from kubelite.errors import ApiError, bad_request, conflict, forbidden
from kubelite.json import Json
from kubelite.kinds import Kind
from kubelite.objects.context import WriteContext
from kubelite.objects.metadata import timestamp
from kubelite.objects.objects import Objects
from kubelite.storage.store import Entry

FOREGROUND, ORPHAN = "foregroundDeletion", "orphan"
CRD_CLEANUP = "customresourcecleanup.apiextensions.k8s.io"
_POLICIES = {"Background": None, "Foreground": FOREGROUND, "Orphan": ORPHAN}
_PROTECTED_NAMESPACES = ("default", "kube-system", "kube-public")


@dataclass(frozen=True)
class DeleteOptions:
    """The options of a deletion."""

    grace: int | None = None
    uid: str = ""
    version: str = ""
    policy: str = ""

    @classmethod
    def read(cls, body: Any, query: Any) -> "DeleteOptions":
        """Read the options from the body, or else from the query."""
        given: Json = body if isinstance(body, dict) else {}
        conditions = given.get("preconditions") or {}
        grace = given.get("gracePeriodSeconds", query.get("gracePeriodSeconds"))
        policy = given.get("propagationPolicy") or query.get("propagationPolicy") or ""
        if not policy and given.get("orphanDependents") is not None:
            policy = "Orphan" if given["orphanDependents"] else "Background"
        if policy and policy not in _POLICIES:
            message = f'DeleteOptions is invalid: propagationPolicy: Unsupported value: "{policy}": supported values: "Foreground", "Background", "Orphan"'
            raise ApiError(422, message)
        try:
            seconds = None if grace is None else int(grace)
        except (TypeError, ValueError) as error:
            raise bad_request(f"gracePeriodSeconds takes a whole number, not {grace!r}") from error
        if seconds is not None and seconds < 0:
            seconds = 1
        return cls(seconds, conditions.get("uid") or "", conditions.get("resourceVersion") or "", policy)


class Deletion:
    """Delete objects or mark them for deletion."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._store = objects.store

    async def delete(
        self, kind: Kind, namespace: str, name: str, options: DeleteOptions, context: WriteContext
    ) -> tuple[Entry, bool]:
        """Delete an object or mark it for deletion. Return its last state and whether it is deleted."""
        entry = self._objects.find(kind, namespace, name)
        self._check_preconditions(kind, entry, options)
        await self._objects.admission.validate("DELETE", kind, None, entry.object, context, "")
        entry = self._objects.find(kind, namespace, name)
        self._check_preconditions(kind, entry, options)
        marked = self._mark_deleted(kind, entry, options)
        if context.dry_run:
            return Entry(entry.key, marked or entry.object, entry.version), marked is None
        if marked is None:
            return self._store.remove(kind.collection, entry), True
        if marked is entry.object:
            return entry, False
        return self._store.put(kind.collection, marked), False

    def _check_preconditions(self, kind: Kind, entry: Entry, options: DeleteOptions) -> None:
        metadata = entry.object["metadata"]
        name = metadata["name"]
        if options.uid and options.uid != metadata["uid"]:
            why = f"the UID in the precondition ({options.uid}) does not match the UID in record ({metadata['uid']})"
            raise conflict(
                "", kind.kind, name, f"{why}. The object might have been deleted and then recreated"
            )
        if options.version and options.version != metadata["resourceVersion"]:
            why = (
                f"the ResourceVersion in the precondition ({options.version}) "
                f"does not match the ResourceVersion in record ({metadata['resourceVersion']})"
            )
            raise conflict("", kind.kind, name, f"{why}. The object might have been modified")
        if kind.collection == "namespaces" and name in _PROTECTED_NAMESPACES:
            raise forbidden(kind.group, kind.plural, name, "this namespace may not be deleted")

    def _mark_deleted(self, kind: Kind, entry: Entry, options: DeleteOptions) -> Json | None:
        """Return the object marked for deletion, None if it can be removed now, itself if nothing changes."""
        item = entry.object
        metadata: Json = dict(item["metadata"])
        before = list(metadata.get("finalizers") or ())
        finalizers = _add_policy_finalizer(before, options.policy)
        if (
            kind.collection == "apiextensions.k8s.io/customresourcedefinitions"
            and CRD_CLEANUP not in finalizers
        ):
            finalizers = [*finalizers, CRD_CLEANUP]
        grace = self._grace(kind, item, options)
        is_namespace = kind.collection == "namespaces"
        if not grace and not finalizers and not is_namespace:
            return None
        already = metadata.get("deletionTimestamp")
        left = metadata.get("deletionGracePeriodSeconds") or 0
        if already and finalizers == before and grace >= left:
            return item
        if finalizers:
            metadata["finalizers"] = finalizers
        else:
            metadata.pop("finalizers", None)
        if not already or grace < left:
            metadata["deletionTimestamp"] = timestamp(self._objects.clock() + timedelta(seconds=grace))
            metadata["deletionGracePeriodSeconds"] = grace
        if not already and "generation" in metadata:
            metadata["generation"] += 1
        marked = {**item, "metadata": metadata}
        if is_namespace:
            marked["status"] = {**(item.get("status") or {}), "phase": "Terminating"}
        return marked

    def _grace(self, kind: Kind, item: Json, options: DeleteOptions) -> int:
        if kind.collection != "pods":
            return 0
        spec, phase = item.get("spec") or {}, (item.get("status") or {}).get("phase")
        if not spec.get("nodeName") or phase in ("Succeeded", "Failed"):
            return 0
        seconds = spec.get("terminationGracePeriodSeconds", 30) if options.grace is None else options.grace
        left = item["metadata"].get("deletionGracePeriodSeconds")
        return int(seconds) if left is None else min(int(seconds), int(left))

    def remove_finalizer(self, kind: Kind, entry: Entry, finalizer: str) -> None:
        """Remove a finalizer, and the object if nothing else delays its deletion."""
        metadata = dict(entry.object["metadata"])
        rest = [name for name in metadata.get("finalizers") or () if name != finalizer]
        if rest:
            metadata["finalizers"] = rest
        else:
            metadata.pop("finalizers", None)
        stored = self._store.put(kind.collection, {**entry.object, "metadata": metadata})
        held = rest or metadata.get("deletionGracePeriodSeconds")
        if metadata.get("deletionTimestamp") and not held:
            self._store.remove(kind.collection, stored)


def _add_policy_finalizer(finalizers: list[str], policy: str) -> list[str]:
    if not policy:
        return finalizers
    rest = [name for name in finalizers if name not in (FOREGROUND, ORPHAN)]
    finalizer = _POLICIES[policy]
    return rest if finalizer is None else [*rest, finalizer]
