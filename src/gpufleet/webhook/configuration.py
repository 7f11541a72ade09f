"""The objects to apply: which requests the API server sends to the webhook, and which changes it refuses by itself.

Objects can't be selected by annotation, so match conditions do that inside the API server. A pod without
our annotations is never sent, so an outage of the webhook does not affect it. For pods with them the
failure policy is Fail: a pod with a claim but without its variables could see GPUs of other pods. Updates
of pods and of their status are sent only if they change what the scheduler wrote, so a kubelet's never are.

Webhook and quotas see a pod when it is created, with its claim of that moment. So ValidatingAdmissionPolicies keep
the claim of a pod, and the spec of a claim. They are not rules of the CustomResourceDefinition, because helm does not
upgrade those, and because pods have none.
"""

from typing import Any

from gpufleet.kubernetes.annotations import ALLOCATED, CLAIM, REQUESTED, VISIBLE
from gpufleet.kubernetes.crds import GROUP, VERSION

NAME = "gpufleet-webhook"
SPEC_IS_FIXED = (
    "the spec of a GpuClaim cannot be changed, because pods were admitted with it: create a claim with another name, "
    "or delete the claim and its pods and create them again"
)


def _has_annotation(*keys: str, state: str = "object") -> str:
    any_of = " || ".join(f"{key!r} in {state}.metadata.annotations" for key in keys)
    return f"has({state}.metadata.annotations) && ({any_of})"


def _value(state: str, key: str) -> str:
    annotations = f"{state}.metadata.annotations"
    return f"(has({annotations}) && {key!r} in {annotations} ? {annotations}[{key!r}] : '')"


CONCERNED = _has_annotation(CLAIM, ALLOCATED, VISIBLE)
"""CEL: a new pod that names a claim or has annotations reserved for the scheduler."""
TAMPERED = " || ".join(
    (
        *(f"{_value('object', key)} != {_value('oldObject', key)}" for key in (ALLOCATED, VISIBLE)),
        f"{_value('oldObject', ALLOCATED)} != '' && {_value('object', CLAIM)} != {_value('oldObject', CLAIM)}",
    )
)
"""CEL: an update of annotations reserved for the scheduler, or of the claim of a pod that has GPUs."""


def configurations(
    client: dict[str, Any], *, name: str = NAME, namespaces: dict[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Return both manifests; `client` is a clientConfig with `url` or `service`, without path and caBundle."""
    pods = {"apiGroups": [""], "apiVersions": ["v1"], "scope": "Namespaced"}
    claims = {"apiGroups": [GROUP], "apiVersions": [VERSION], "scope": "Namespaced"}
    common: dict[str, Any] = {"namespaceSelector": namespaces} if namespaces else {}
    return [
        _configuration(
            "MutatingWebhookConfiguration",
            name,
            _hook(
                "pods",
                _with_path(client, "/mutate"),
                {**pods, "operations": ["CREATE"], "resources": ["pods"]},
                ("concerned", CONCERNED),
                reinvocationPolicy="IfNeeded",
                **common,
            ),
            _hook(
                "bound-pods",
                _with_path(client, "/mutate"),
                {**pods, "operations": ["UPDATE"], "resources": ["pods", "pods/status"]},
                ("tampered", TAMPERED),
                **common,
            ),
            _hook(
                "debugged-pods",
                _with_path(client, "/mutate"),
                {**pods, "operations": ["UPDATE"], "resources": ["pods/ephemeralcontainers"]},
                ("claims", _has_annotation(CLAIM, state="oldObject")),
                **common,
            ),
        ),
        _configuration(
            "ValidatingWebhookConfiguration",
            name,
            _hook(
                "claims",
                _with_path(client, "/validate"),
                {**claims, "operations": ["CREATE", "UPDATE"], "resources": ["gpuclaims"]},
                None,
                failurePolicy="Ignore",  # newer API servers evaluate the same rules themselves
                **common,
            ),
        ),
    ]


def policies(*, name: str = NAME, namespaces: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """Return the policies, each with its binding."""
    claims = {
        "apiGroups": [GROUP],
        "apiVersions": ["*"],
        "operations": ["UPDATE"],
        "resources": ["gpuclaims"],
    }
    pods = {
        "apiGroups": [""],
        "apiVersions": ["v1"],
        "operations": ["UPDATE"],
        "resources": ["pods", "pods/status"],
    }
    return [
        *_policy(
            f"{name}-claim-specs",
            claims,
            namespaces,
            ("object.spec == oldObject.spec", SPEC_IS_FIXED),
        ),
        *_policy(
            f"{name}-pod-claims",
            pods,
            namespaces,
            (
                f"{_value('object', CLAIM)} == {_value('oldObject', CLAIM)}",
                f"annotation {CLAIM} cannot be added, changed or removed after a pod was created: "
                "delete the pod and create it again",
            ),
            (
                f"{_value('object', REQUESTED)} == {_value('oldObject', REQUESTED)}",
                f"annotation {REQUESTED} cannot be changed: it says what the pod requested when it was created",
            ),
        ),
    ]


def _policy(
    name: str, rule: dict[str, Any], namespaces: dict[str, Any] | None, *validations: tuple[str, str]
) -> list[dict[str, Any]]:
    api, labels = "admissionregistration.k8s.io/v1", {"app.kubernetes.io/part-of": "gpufleet"}
    selection = {"namespaceSelector": namespaces} if namespaces else {}
    spec = {
        "failurePolicy": "Fail",
        "matchConstraints": {**selection, "resourceRules": [rule]},
        "validations": [
            {"expression": expression, "message": message, "reason": "Invalid"}
            for expression, message in validations
        ],
    }
    binding = {"policyName": name, "validationActions": ["Deny"]}
    return [
        {"apiVersion": api, "kind": kind, "metadata": {"name": name, "labels": labels}, "spec": each}
        for kind, each in (
            ("ValidatingAdmissionPolicy", spec),
            ("ValidatingAdmissionPolicyBinding", binding),
        )
    ]


def _with_path(client: dict[str, Any], path: str) -> dict[str, Any]:
    if "service" in client:
        return {**client, "service": {**client["service"], "path": path}}
    return {**client, "url": client["url"] + path}


def _hook(
    name: str,
    client: dict[str, Any],
    rule: dict[str, Any],
    condition: tuple[str, str] | None = None,
    **more: Any,
) -> dict[str, Any]:
    conditions = [{"name": condition[0], "expression": condition[1]}] if condition else []
    return {
        "name": f"{name}.webhook.{GROUP}",
        "clientConfig": client,
        "rules": [rule],
        "failurePolicy": "Fail",
        "sideEffects": "None",
        "admissionReviewVersions": ["v1"],
        "timeoutSeconds": 5,
        **({"matchConditions": conditions} if conditions else {}),
        **more,
    }


def _configuration(kind: str, name: str, *hooks: dict[str, Any]) -> dict[str, Any]:
    return {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": name, "labels": {"app.kubernetes.io/part-of": "gpufleet"}},
        "webhooks": list(hooks),
    }
