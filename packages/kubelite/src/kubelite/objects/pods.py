"""Pod subresources: binding and eviction."""

from typing import Any

from kubelite.errors import ApiError, Cause, bad_request, conflict, invalid
from kubelite.json import Json
from kubelite.kinds import Kind
from kubelite.objects.context import WriteContext
from kubelite.objects.deletion import DeleteOptions, Deletion
from kubelite.objects.metadata import timestamp
from kubelite.objects.objects import Objects
from kubelite.selectors import match_label_selector

_BUDGETS = "policy/poddisruptionbudgets"


async def bind(
    objects: Objects, kind: Kind, namespace: str, name: str, body: Any, context: WriteContext
) -> Json:
    """Bind a pod to a node: set `nodeName` and PodScheduled, merge annotations and labels. Raise 409 if bound."""
    if not isinstance(body, dict):
        raise bad_request("a Binding is a JSON object")
    target, metadata = body.get("target") or {}, body.get("metadata") or {}
    node = target.get("name")
    if not node:
        raise invalid("", "Binding", name, [Cause("target.name", "Required value", "FieldValueRequired")])
    if target.get("kind", "Node") not in ("", "Node"):
        message = f'Unsupported value: "{target["kind"]}": supported values: "Node", "<empty>"'
        raise invalid("", "Binding", name, [Cause("target.kind", message, "FieldValueNotSupported")])
    if metadata.get("name", name) != name:
        raise bad_request(
            f"the name of the object ({metadata['name']}) does not match the name on the URL ({name})"
        )
    entry = objects.find(kind, namespace, name)
    pod = entry.object
    _check_binding(name, pod, metadata.get("uid") or "", metadata.get("resourceVersion") or "")
    before = pod["metadata"]
    after = dict(before)
    for field in ("annotations", "labels"):
        if metadata.get(field):
            after[field] = {**(before.get(field) or {}), **metadata[field]}
    bound = {
        **pod,
        "metadata": after,
        "spec": {**pod["spec"], "nodeName": node},
        "status": _with_condition(objects, pod, {"type": "PodScheduled"}),
    }
    if not context.dry_run:
        objects.store.put(kind.collection, bound)
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}


def _check_binding(name: str, pod: Json, uid: str, version: str) -> None:
    metadata, spec = pod["metadata"], pod["spec"]
    if uid and uid != metadata["uid"]:
        why = f"Precondition failed: UID in precondition: {uid}, UID in object meta: {metadata['uid']}"
        raise conflict("", "pods/binding", name, why)
    if version and version != metadata["resourceVersion"]:
        why = f"Precondition failed: ResourceVersion in precondition: {version}, ResourceVersion in object meta: {metadata['resourceVersion']}"
        raise conflict("", "pods/binding", name, why)
    if metadata.get("deletionTimestamp"):
        raise conflict("", "pods/binding", name, f"pod {name} is being deleted, cannot be assigned to a host")
    if spec.get("nodeName"):
        raise conflict(
            "", "pods/binding", name, f'pod {name} is already assigned to node "{spec["nodeName"]}"'
        )
    if spec.get("schedulingGates"):
        raise conflict("", "pods/binding", name, f"pod {name} has non-empty .spec.schedulingGates")


def _with_condition(objects: Objects, pod: Json, condition: Json) -> Json:
    """Return the status of a pod with a condition that is true from now on."""
    status = pod.get("status") or {}
    others = [one for one in status.get("conditions") or () if one.get("type") != condition["type"]]
    times = {"lastProbeTime": None, "lastTransitionTime": timestamp(objects.clock())}
    return {**status, "conditions": [*others, {**condition, "status": "True", **times}]}


async def evict(
    objects: Objects,
    deletion: Deletion,
    kind: Kind,
    namespace: str,
    name: str,
    body: Any,
    context: WriteContext,
) -> Json:
    """Delete a pod, with the condition DisruptionTarget, if its disruption budgets allow it. Raise 429 otherwise."""
    given: Json = body if isinstance(body, dict) else {}
    pod = objects.find(kind, namespace, name).object
    labels = pod["metadata"].get("labels") or {}
    budgets = []
    for entry in list(objects.store.collection(_BUDGETS).entries.values()):
        budget = entry.object
        selector = (budget.get("spec") or {}).get("selector")
        if entry.key[0] != namespace or selector is None or not match_label_selector(selector, labels):
            continue
        if (budget.get("status") or {}).get("disruptionsAllowed", 0) <= 0:
            cause = {
                "reason": "DisruptionBudget",
                "message": f"The disruption budget {entry.key[1]} does not allow another disruption",
            }
            raise ApiError(
                429,
                "Cannot evict pod as it would violate the pod's disruption budget.",
                details={"causes": [cause]},
            )
        budgets.append(entry)
    if not context.dry_run:
        reason = {"reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting"}
        status = _with_condition(objects, pod, {"type": "DisruptionTarget", **reason})
        objects.store.put(kind.collection, {**pod, "metadata": dict(pod["metadata"]), "status": status})
    options = DeleteOptions.read(given.get("deleteOptions"), {})
    await deletion.delete(kind, namespace, name, options, context)
    if not context.dry_run:
        for entry in budgets:
            status = entry.object["status"]
            remaining = {**status, "disruptionsAllowed": status["disruptionsAllowed"] - 1}
            objects.store.put(
                _BUDGETS, {**entry.object, "metadata": dict(entry.object["metadata"]), "status": remaining}
            )
    return {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": 201}
