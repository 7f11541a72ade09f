"""Decide which webhooks a write concerns, and describe the write to them."""

from dataclasses import dataclass

from kubelite.custom_resources.cel_rules import compile_expression, evaluate
from kubelite.json import Json
from kubelite.kinds import Kind
from kubelite.objects.context import WriteContext


class WebhookFailed(Exception):
    """A webhook could not be called, or its answer is unusable."""


@dataclass(frozen=True)
class AdmissionRequest:
    """A write that webhooks decide about."""

    operation: str
    kind: Kind
    item: Json | None
    old: Json | None
    context: WriteContext
    subresource: str

    @property
    def current(self) -> Json:
        """The new object, or the old one of a deletion."""
        found = self.item if self.item is not None else self.old
        assert found is not None
        return found


def rule_matches(rule: Json, request: AdmissionRequest) -> bool:
    """Return whether a rule of a webhook covers a request."""
    kind = request.kind
    return (
        _in(rule.get("operations"), request.operation)
        and _in(rule.get("apiGroups"), kind.group)
        and _in(rule.get("apiVersions"), kind.version)
        and any(
            _resource_matches(one, kind.plural, request.subresource) for one in rule.get("resources") or ()
        )
        and rule.get("scope", "*") in ("*", "Namespaced" if kind.namespaced else "Cluster")
    )


def _in(values: list[str] | None, value: str) -> bool:
    return bool(values) and ("*" in (values or ()) or value in (values or ()))


def _resource_matches(pattern: str, plural: str, subresource: str) -> bool:
    resource, _, pattern_subresource = pattern.partition("/")
    if pattern == "*":
        return not subresource
    return resource in ("*", plural) and pattern_subresource in ("*", subresource)


def conditions_match(hook: Json, request: AdmissionRequest) -> bool:
    """Return whether all CEL match conditions of a webhook hold."""
    conditions = hook.get("matchConditions") or ()
    if not conditions:
        return True
    variables = {"object": request.item, "oldObject": request.old, "request": review_request("", request)}
    failed = ""
    for condition in conditions:
        try:
            if evaluate(compile_expression(condition.get("expression", "")), variables) is not True:
                return False
        except ValueError as error:
            failed = f"matchCondition {condition.get('name')!r}: {error}"
    if failed:
        raise WebhookFailed(failed)
    return True


def review_request(uid: str, request: AdmissionRequest) -> Json:
    """Return the `request` of an AdmissionReview."""
    kind, metadata = request.kind, request.current["metadata"]
    gvk = {"group": kind.group, "version": kind.version, "kind": kind.kind}
    gvr = {"group": kind.group, "version": kind.version, "resource": kind.plural}
    body: Json = {
        "uid": uid,
        "kind": gvk,
        "resource": gvr,
        "requestKind": gvk,
        "requestResource": gvr,
        "name": metadata.get("name", ""),
        "operation": request.operation,
        "userInfo": request.context.user.wire(),
        "object": request.item,
        "oldObject": request.old,
        "dryRun": request.context.dry_run,
        "options": {"kind": f"{request.operation.capitalize()}Options", "apiVersion": "meta.k8s.io/v1"},
    }
    if metadata.get("namespace"):
        body["namespace"] = metadata["namespace"]
    if request.subresource:
        body |= {"subResource": request.subresource, "requestSubResource": request.subresource}
    return body
