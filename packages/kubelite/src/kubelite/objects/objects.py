"""Create, update, patch and apply objects.

Every write takes the same steps: normalize by the schema, call mutating webhooks, add derived
fields, validate, call validating webhooks, update managed fields, store. The object may change
while webhooks run. The write then starts again from the new state, unless the client sent a
resource version.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import Protocol

from kubelite.clock import Clock, utc_now
from kubelite.errors import STALE, Cause, already_exists, bad_request, conflict, forbidden, invalid, not_found
from kubelite.json import Json
from kubelite.kinds import Kind, Registry
from kubelite.objects.context import WriteContext
from kubelite.objects.metadata import generate_name, new_metadata, timestamp
from kubelite.objects.validation import add_derived, normalize, same_content, validate
from kubelite.objects.versions import convert
from kubelite.patch.managed_fields import Writer, apply, update_managed_fields
from kubelite.storage.store import Entry, Store

_MAX_ATTEMPTS = 20
# kube-apiserver drops the status of new objects, except for these kinds.
_STATUS_KEPT_ON_CREATE = {"nodes"}
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
    """The webhooks of a server, implemented by `kubelite.admission`."""

    async def mutate(
        self,
        operation: str,
        kind: Kind,
        item: Json,
        old: Json | None,
        context: WriteContext,
        subresource: str,
    ) -> Json:
        """Return the object after all mutating webhooks."""

    async def validate(
        self,
        operation: str,
        kind: Kind,
        item: Json | None,
        old: Json | None,
        context: WriteContext,
        subresource: str,
    ) -> None:
        """Raise ApiError if a validating webhook denies the write."""


class Objects:
    """Validated writes to the store."""

    def __init__(
        self, store: Store, registry: Registry, admission: Admission, clock: Clock = utc_now
    ) -> None:
        self.store = store
        self.registry = registry
        self.admission = admission
        self.clock = clock

    def find(self, kind: Kind, namespace: str, name: str) -> Entry:
        """Return an entry. Raise 404 if it does not exist."""
        entry = self.store.get(kind.collection, namespace, name)
        if entry is None:
            raise not_found(kind.group, kind.plural, name)
        return entry

    async def create(
        self, kind: Kind, namespace: str, body: object, context: WriteContext, *, applied: Json | None = None
    ) -> Entry:
        """Create an object. `applied` carries the managed fields of a create by apply."""
        item = normalize(kind, body, context)
        item = self._set_namespace(kind, namespace, item)
        mutated = await self.admission.mutate("CREATE", kind, item, None, context, "")
        if mutated is not item:
            item = self._set_namespace(
                kind, namespace, normalize(kind, mutated, replace(context, field_validation="Ignore"))
            )
        now = self.clock()
        item["metadata"] = self._complete_metadata(kind, item["metadata"], now)
        if kind.status and kind.plural not in _STATUS_KEPT_ON_CREATE:
            item.pop("status", None)
        item = self._with_priority(kind, add_derived(kind, item))
        validate(kind, item, None)
        await self.admission.validate("CREATE", kind, item, None, context, "")
        metadata = item["metadata"]
        self._require_namespace(kind, metadata)  # it may have been deleted while webhooks ran
        if self.store.get(kind.collection, metadata.get("namespace", ""), metadata["name"]) is not None:
            raise already_exists(kind.group, kind.plural, metadata["name"])
        if applied is not None:
            metadata["managedFields"] = applied["metadata"]["managedFields"]
        elif owned := update_managed_fields(kind, None, item, Writer(context.manager, timestamp(now))):
            metadata["managedFields"] = owned
        if context.dry_run:
            return Entry((metadata.get("namespace", ""), metadata["name"]), item, 0)
        return self.store.put(kind.collection, item)

    def _set_namespace(self, kind: Kind, namespace: str, item: Json) -> Json:
        """Put the object into the namespace of the request, which must exist and not be terminating."""
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
        self._require_namespace(kind, metadata)
        return item

    def _require_namespace(self, kind: Kind, metadata: Json) -> None:
        if not kind.namespaced:
            return
        namespace = metadata["namespace"]
        found = self.store.get("namespaces", "", namespace)
        if found is None:
            raise not_found("", "namespaces", namespace)
        if found.object["metadata"].get("deletionTimestamp"):
            why = f"unable to create new content in namespace {namespace} because it is being terminated"
            raise forbidden(kind.group, kind.plural, metadata.get("name", ""), why)

    def _complete_metadata(self, kind: Kind, metadata: Json, now: datetime) -> Json:
        if metadata.get("resourceVersion"):
            raise bad_request("resourceVersion should not be set on objects to be created")
        result = new_metadata(kind, metadata, now)
        if not result.get("name") and result.get("generateName"):
            result["name"] = generate_name(result["generateName"])
        return result

    def _with_priority(self, kind: Kind, item: Json) -> Json:
        """Set the priority of a pod from its PriorityClass."""
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
        self,
        kind: Kind,
        namespace: str,
        name: str,
        body: object,
        context: WriteContext,
        subresource: str = "",
    ) -> Entry:
        """Replace an object, or its subresource, by the body that the client sent."""
        if not isinstance(body, dict):
            raise bad_request(f"a {kind.kind} is a JSON object")
        sent = (body.get("metadata") or {}).get("resourceVersion")
        if not sent and not kind.unconditional_update:
            self.find(kind, namespace, name)
            cause = Cause("metadata.resourceVersion", "Invalid value: 0: must be specified for an update")
            raise invalid(kind.group, kind.kind, name, [cause])
        return await self.change(kind, namespace, name, lambda _old: body, context, subresource)

    async def change(
        self,
        kind: Kind,
        namespace: str,
        name: str,
        change: Callable[[Json], Json],
        context: WriteContext,
        subresource: str = "",
        *,
        track_fields: bool = True,
    ) -> Entry:
        """Store the result of `change`. With `track_fields=False` the result carries its own managedFields."""
        for _ in range(_MAX_ATTEMPTS):
            entry = self.find(kind, namespace, name)
            old = convert(kind, entry.object)
            proposed = change(old)
            if proposed is old:
                return entry
            new = self._keep_server_fields(kind, old, normalize(kind, proposed, context), subresource)
            mutated = await self.admission.mutate("UPDATE", kind, new, old, context, subresource)
            if mutated is not new:
                new = self._keep_server_fields(
                    kind,
                    old,
                    normalize(kind, mutated, replace(context, field_validation="Ignore")),
                    subresource,
                )
            if not subresource:
                new = add_derived(kind, new)
            new = self._with_generation(kind, old, new)
            validate(kind, new, old, subresource)
            await self.admission.validate("UPDATE", kind, new, old, context, subresource)
            if self.store.get(kind.collection, namespace, name) is entry:
                return self._commit(kind, entry, old, new, context, subresource, track_fields=track_fields)
        raise conflict(kind.group, kind.plural, name, STALE)

    def _commit(
        self,
        kind: Kind,
        entry: Entry,
        old: Json,
        new: Json,
        context: WriteContext,
        subresource: str,
        *,
        track_fields: bool,
    ) -> Entry:
        metadata = new["metadata"]
        if track_fields:
            writer = Writer(context.manager, timestamp(self.clock()), subresource)
            metadata["managedFields"] = update_managed_fields(kind, old, new, writer)
        if not metadata.get("managedFields"):
            metadata.pop("managedFields", None)
        if same_content(old, new):
            return entry
        if context.dry_run:
            return Entry(entry.key, new, entry.version)
        if deletion_complete(metadata) and not deletion_complete(old["metadata"]):
            stored = self.store.put(kind.collection, new)
            return self.store.remove(kind.collection, stored)
        return self.store.put(kind.collection, new)

    def _keep_server_fields(self, kind: Kind, old: Json, new: Json, subresource: str) -> Json:
        """Return the new state with the fields that a client cannot change taken from the old one."""
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
        intent: Json,
        context: WriteContext,
        subresource: str = "",
        *,
        force: bool,
    ) -> tuple[Entry, bool]:
        """Apply an object on the server side. Return the entry and whether it was created."""
        intent = self._read_intent(kind, namespace, name, intent, context)
        writer = Writer(context.manager, timestamp(self.clock()), subresource, "Apply")
        if self.store.get(kind.collection, namespace, name) is None:
            if subresource:
                raise not_found(kind.group, kind.plural, name)
            if intent["metadata"].get("uid"):
                why = f"Precondition failed: UID in precondition: {intent['metadata']['uid']}, UID in object meta: "
                raise conflict(kind.group, kind.plural, name, why)
            result = apply(kind, None, intent, writer, force=force)
            return await self.create(kind, namespace, intent, context, applied=result), True
        without_validation = replace(context, field_validation="Ignore")

        def merged(old: Json) -> Json:
            return apply(kind, old, intent, writer, force=force)

        return await self.change(
            kind, namespace, name, merged, without_validation, subresource, track_fields=False
        ), False

    def _read_intent(
        self, kind: Kind, namespace: str, name: str, intent: Json, context: WriteContext
    ) -> Json:
        """Return the applied fields, pruned but without defaults, which the manager must not own."""
        if (intent.get("metadata") or {}).get("managedFields"):
            raise bad_request("metadata.managedFields must be nil")
        if not intent.get("apiVersion") or not intent.get("kind"):
            raise bad_request("apiVersion and kind are required for apply")
        normalized = normalize(kind, intent, context)
        given = normalized["metadata"].get("name")
        if given and given != name:
            raise bad_request(f"the name of the object ({given}) does not match the name on the URL ({name})")
        bare = _without_defaults(intent, normalized)
        assert isinstance(bare, dict)
        metadata = {**bare["metadata"], "name": name} if "metadata" in bare else {"name": name}
        if kind.namespaced:
            if metadata.get("namespace", namespace) != namespace:
                raise bad_request(
                    "the namespace of the provided object does not match the namespace sent on the request"
                )
            metadata["namespace"] = namespace
        return {**bare, "metadata": metadata}


def _without_defaults(sent: object, normalized: object) -> object:
    """Return the normalized value without the defaults added to it."""
    if isinstance(sent, dict) and isinstance(normalized, dict):
        return {
            name: _without_defaults(sent[name], value) for name, value in normalized.items() if name in sent
        }
    if isinstance(sent, list) and isinstance(normalized, list) and len(sent) == len(normalized):
        return [_without_defaults(a, b) for a, b in zip(sent, normalized, strict=True)]
    return normalized


def _refuse_new_finalizers(kind: Kind, name: str, before: Json, after: Json) -> None:
    had = set(before.get("finalizers") or ())
    new = sorted(set(after.get("finalizers") or ()) - had)
    if new:
        text = f"Forbidden: no new finalizers can be added if the object is being deleted, found new finalizers {new}"
        raise invalid(
            kind.group, kind.kind, name, [Cause("metadata.finalizers", text, "FieldValueForbidden")]
        )


def deletion_complete(metadata: Json) -> bool:
    """Return whether an object being deleted has no finalizer and no grace period left."""
    return (
        bool(metadata.get("deletionTimestamp"))
        and not metadata.get("finalizers")
        and not metadata.get("deletionGracePeriodSeconds")
    )
