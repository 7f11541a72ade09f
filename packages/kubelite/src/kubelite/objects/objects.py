"""Create, update, patch and apply: the life of objects up to their deletion.

Every write takes the same way: read the request by the schema, let mutating webhooks change
it, fill in what the kind derives, check, ask validating webhooks, note who owns which field,
store. Webhooks take time, so that the object may change meanwhile; then the write starts again
from the new state, unless the client had named the version that it meant.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Protocol

from kubelite.clock import Clock, utc_now
from kubelite.errors import STALE, Cause, already_exists, bad_request, conflict, forbidden, invalid, not_found
from kubelite.json import Json
from kubelite.kinds import Kind, Registry
from kubelite.objects.context import Asking
from kubelite.objects.metadata import generated_name, start_metadata, timestamp
from kubelite.objects.validation import check, conform, finish, same_content
from kubelite.objects.versions import in_version
from kubelite.patch.managed_fields import Writer, apply, track
from kubelite.storage.store import Entry, Store

_ATTEMPTS = 20
# The real server drops the status of a new object of these; a node's is kept.
_STATUS_AT_BIRTH = {"nodes"}
_KEPT_FROM_OLD = (
    "uid",
    "creationTimestamp",
    "deletionTimestamp",
    "deletionGracePeriodSeconds",
    "name",
    "namespace",
    "generateName",
    "selfLink",
    "generation",
)


class Admission(Protocol):
    """What webhooks do to a write; the door through which `admission` comes in."""

    async def mutate(
        self, operation: str, kind: Kind, item: Json, old: Json | None, asking: Asking, subresource: str
    ) -> Json:
        """The object as mutating webhooks leave it."""

    async def validate(
        self,
        operation: str,
        kind: Kind,
        item: Json | None,
        old: Json | None,
        asking: Asking,
        subresource: str,
    ) -> None:
        """403 (or the webhook's own code) if a validating webhook refuses."""


class Objects:
    """Writes to the store, with all that a server does on the way."""

    def __init__(
        self, store: Store, registry: Registry, admission: Admission, clock: Clock = utc_now
    ) -> None:
        self.store = store
        self.registry = registry
        self.admission = admission
        self.clock = clock
        self.on_finalized: Callable[[Kind, Entry], Entry] = lambda kind, entry: store.remove(
            kind.shelf, entry
        )

    def find(self, kind: Kind, namespace: str, name: str) -> Entry:
        """The entry; 404 if there is none."""
        entry = self.store.get(kind.shelf, namespace, name)
        if entry is None:
            raise not_found(kind.group, kind.plural, name)
        return entry

    async def create(
        self, kind: Kind, namespace: str, body: object, asking: Asking, *, applied: Json | None = None
    ) -> Entry:
        """Store a new object. `applied` carries the ownership of a create through apply."""
        item = conform(kind, body, asking)
        item = self._place(kind, namespace, item)
        mutated = await self.admission.mutate("CREATE", kind, item, None, asking, "")
        if mutated is not item:
            item = self._place(
                kind, namespace, conform(kind, mutated, replace(asking, field_validation="Ignore"))
            )
        now = self.clock()
        item["metadata"] = self._named(kind, item["metadata"], now)
        if kind.status and kind.plural not in _STATUS_AT_BIRTH:
            item.pop("status", None)
        item = self._with_priority(kind, finish(kind, item))
        check(kind, item, None)
        await self.admission.validate("CREATE", kind, item, None, asking, "")
        metadata = item["metadata"]
        self._require_space(kind, metadata)  # webhooks take their time, in which the namespace may have gone
        if self.store.get(kind.shelf, metadata.get("namespace", ""), metadata["name"]) is not None:
            raise already_exists(kind.group, kind.plural, metadata["name"])
        if applied is not None:
            metadata["managedFields"] = applied["metadata"]["managedFields"]
        elif owned := track(kind, None, item, Writer(asking.manager, timestamp(now))):
            metadata["managedFields"] = owned
        if asking.dry_run:
            return Entry((metadata.get("namespace", ""), metadata["name"]), item, 0)
        return self.store.put(kind.shelf, item)

    def _place(self, kind: Kind, namespace: str, item: Json) -> Json:
        """The object in the namespace of the request, which must be there and not be going."""
        metadata = item["metadata"]
        if not kind.namespaced:
            metadata.pop("namespace", None)
            return item
        given = metadata.get("namespace")
        if given and given != namespace:
            raise bad_request(
                "the namespace of the provided object does not match the namespace sent on the request"
            )
        metadata["namespace"] = namespace
        self._require_space(kind, metadata)
        return item

    def _require_space(self, kind: Kind, metadata: Json) -> None:
        if not kind.namespaced:
            return
        namespace = metadata["namespace"]
        space = self.store.get("namespaces", "", namespace)
        if space is None:
            raise not_found("", "namespaces", namespace)
        if space.object["metadata"].get("deletionTimestamp"):
            why = f"unable to create new content in namespace {namespace} because it is being terminated"
            raise forbidden(kind.group, kind.plural, metadata.get("name", ""), why)

    def _named(self, kind: Kind, metadata: Json, now: datetime) -> Json:
        if metadata.get("resourceVersion"):
            raise bad_request("resourceVersion should not be set on objects to be created")
        made = start_metadata(kind, metadata, now)
        if not made.get("name") and made.get("generateName"):
            made["name"] = generated_name(made["generateName"])
        return made

    def _with_priority(self, kind: Kind, item: Json) -> Json:
        """A pod's priority from its class."""
        if kind.plural != "pods" or kind.custom:
            return item
        spec = item["spec"]
        name = spec.get("priorityClassName")
        if not name:
            return {**item, "spec": {"priority": 0, "preemptionPolicy": "PreemptLowerPriority", **spec}}
        found = self.store.get("scheduling.k8s.io/priorityclasses", "", name)
        if found is None:
            raise forbidden(
                "", "pods", item["metadata"].get("name", ""), f"no PriorityClass with name {name} was found"
            )
        of_class = {
            "priority": found.object.get("value", 0),
            "preemptionPolicy": found.object.get("preemptionPolicy", "PreemptLowerPriority"),
        }
        return {**item, "spec": {**spec, **of_class}}

    async def update(
        self, kind: Kind, namespace: str, name: str, body: object, asking: Asking, subresource: str = ""
    ) -> Entry:
        """Replace an object (or its status) by what the client sent."""
        if not isinstance(body, dict):
            raise bad_request(f"a {kind.kind} is a JSON object")
        sent = (body.get("metadata") or {}).get("resourceVersion")
        if not sent and not kind.unconditional_update:
            self.find(kind, namespace, name)
            cause = Cause("metadata.resourceVersion", "Invalid value: 0: must be specified for an update")
            raise invalid(kind.group, kind.kind, name, [cause])
        return await self.change(kind, namespace, name, lambda _old: body, asking, subresource)

    async def change(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        change: Callable[[Json], Json],
        asking: Asking,
        subresource: str = "",
        *,
        tracked: bool = True,
    ) -> Entry:
        """Store what `change` makes of an object. Untracked: the change brings its managedFields along."""
        for _ in range(_ATTEMPTS):
            entry = self.find(kind, namespace, name)
            old = in_version(kind, entry.object)
            proposed = change(old)
            if proposed is old:
                return entry
            new = self._settle(kind, old, conform(kind, proposed, asking), subresource)
            mutated = await self.admission.mutate("UPDATE", kind, new, old, asking, subresource)
            if mutated is not new:
                new = self._settle(
                    kind, old, conform(kind, mutated, replace(asking, field_validation="Ignore")), subresource
                )
            if not subresource:
                new = finish(kind, new)
            new = self._with_generation(kind, old, new)
            check(kind, new, old, subresource)
            await self.admission.validate("UPDATE", kind, new, old, asking, subresource)
            if self.store.get(kind.shelf, namespace, name) is entry:
                return self._commit(kind, entry, old, new, asking, subresource, tracked=tracked)
        raise conflict(kind.group, kind.plural, name, STALE)

    def _commit(
        self,
        kind: Kind,
        entry: Entry,
        old: Json,
        new: Json,
        asking: Asking,
        subresource: str,
        *,
        tracked: bool,
    ) -> Entry:
        metadata = new["metadata"]
        if tracked:
            writer = Writer(asking.manager, timestamp(self.clock()), subresource)
            metadata["managedFields"] = track(kind, old, new, writer)
        if not metadata.get("managedFields"):
            metadata.pop("managedFields", None)
        if same_content(old, new):
            return entry
        if asking.dry_run:
            return Entry(entry.key, new, entry.version)
        if finished(metadata) and not finished(old["metadata"]):
            stored = self.store.put(kind.shelf, new)
            return self.on_finalized(kind, stored)
        return self.store.put(kind.shelf, new)

    def _settle(self, kind: Kind, old: Json, new: Json, subresource: str) -> Json:
        """The new state with what a client can't change taken from the old one."""
        before, metadata = old["metadata"], new["metadata"]
        name = before["name"]
        if metadata.get("name", name) != name:
            raise bad_request(
                f"the name of the object ({metadata.get('name')}) does not match the name on the URL ({name})"
            )
        if kind.namespaced and metadata.get("namespace", before.get("namespace")) != before.get("namespace"):
            raise bad_request(
                "the namespace of the provided object does not match the namespace sent on the request"
            )
        uid = metadata.get("uid")
        if uid and uid != before["uid"]:
            why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {before['uid']}"
            raise conflict(kind.group, kind.plural, name, why)
        version = metadata.get("resourceVersion")
        if version and version != "0" and version != before["resourceVersion"]:
            raise conflict(kind.group, kind.plural, name, STALE)
        kept = {field: value for field, value in metadata.items() if field not in _KEPT_FROM_OLD}
        kept |= {field: before[field] for field in _KEPT_FROM_OLD if field in before}
        if before.get("deletionTimestamp"):
            _refuse_new_finalizers(kind, name, before, kept)
        if subresource == "status":
            if kind.custom:
                kept = {
                    **before,
                    **({"managedFields": metadata["managedFields"]} if "managedFields" in metadata else {}),
                }
            state = {**old, "metadata": kept}
            if "status" in new:
                state["status"] = new["status"]
            else:
                state.pop("status", None)
            return state
        state = {**new, "metadata": kept}
        if kind.status:
            state.pop("status", None)
            if "status" in old:
                state["status"] = old["status"]
        if kind.plural == "services" and not kind.custom:
            allocated = ("clusterIP", "clusterIPs", "ipFamilies", "ipFamilyPolicy")
            spec = {field: old["spec"][field] for field in allocated if field in old.get("spec", {})}
            state["spec"] = {**spec, **(state.get("spec") or {})}
        return state

    def _with_generation(self, kind: Kind, old: Json, new: Json) -> Json:
        if not (kind.generation or kind.custom):
            return new
        ignored = {"metadata", "status"} if kind.status or not kind.custom else {"metadata"}
        changed = any(old.get(name) != new.get(name) for name in {*old, *new} - ignored)
        if changed:
            new["metadata"]["generation"] = old["metadata"].get("generation", 0) + 1
        return new

    async def apply(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        wanted: Json,
        asking: Asking,
        subresource: str = "",
        *,
        force: bool,
    ) -> tuple[Entry, bool]:
        """Server-side apply; the answer says whether the object is new."""
        stated = self._stated(kind, namespace, name, wanted, asking)
        writer = Writer(asking.manager, timestamp(self.clock()), subresource, "Apply")
        if self.store.get(kind.shelf, namespace, name) is None:
            if subresource:
                raise not_found(kind.group, kind.plural, name)
            if stated["metadata"].get("uid"):
                why = f"Precondition failed: UID in precondition: {stated['metadata']['uid']}, UID in object meta: "
                raise conflict(kind.group, kind.plural, name, why)
            made = apply(kind, None, stated, writer, force=force)
            return await self.create(kind, namespace, stated, asking, applied=made), True
        quiet = replace(asking, field_validation="Ignore")

        def merged(old: Json) -> Json:
            return apply(kind, old, stated, writer, force=force)

        return await self.change(kind, namespace, name, merged, quiet, subresource, tracked=False), False

    def _stated(self, kind: Kind, namespace: str, name: str, wanted: Json, asking: Asking) -> Json:
        """What an apply states: pruned, but without defaults, which its manager must not own."""
        if (wanted.get("metadata") or {}).get("managedFields"):
            raise bad_request("metadata.managedFields must be nil")
        if not wanted.get("apiVersion") or not wanted.get("kind"):
            raise bad_request("an apply needs apiVersion and kind")
        full = conform(kind, wanted, asking)
        given = full["metadata"].get("name")
        if given and given != name:
            raise bad_request(f"the name of the object ({given}) does not match the name on the URL ({name})")
        bare = _restrict(wanted, full)
        assert isinstance(bare, dict)
        metadata = {**bare["metadata"], "name": name} if "metadata" in bare else {"name": name}
        if kind.namespaced:
            if metadata.get("namespace", namespace) != namespace:
                raise bad_request(
                    "the namespace of the provided object does not match the namespace sent on the request"
                )
            metadata["namespace"] = namespace
        return {**bare, "metadata": metadata}


def _restrict(sent: object, conformed: object) -> object:
    """The conformed value without what defaulting added to it."""
    if isinstance(sent, dict) and isinstance(conformed, dict):
        return {name: _restrict(sent[name], value) for name, value in conformed.items() if name in sent}
    if isinstance(sent, list) and isinstance(conformed, list) and len(sent) == len(conformed):
        return [_restrict(a, b) for a, b in zip(sent, conformed, strict=True)]
    return conformed


def _refuse_new_finalizers(kind: Kind, name: str, before: Json, after: Json) -> None:
    had = set(before.get("finalizers") or ())
    new = sorted(set(after.get("finalizers") or ()) - had)
    if new:
        text = f"Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers {new}"
        raise invalid(
            kind.group, kind.kind, name, [Cause("metadata.finalizers", text, "FieldValueForbidden")]
        )


def finished(metadata: Json) -> bool:
    """Whether an object that is being deleted has nothing left to wait for."""
    return (
        bool(metadata.get("deletionTimestamp"))
        and not metadata.get("finalizers")
        and not metadata.get("deletionGracePeriodSeconds")
    )
