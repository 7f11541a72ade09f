"""The webhook configurations to apply: which requests the API server sends to the webhook.

Objects can't be selected by annotation, so match conditions do that inside the API server. A pod without
our annotations is never sent, so an outage of the webhook does not affect it. For pods with them the
failure policy is Fail: a pod with a claim but without its variables could see GPUs of other pods. Updates
of pods and of their status are sent only if they change what the scheduler wrote, so a kubelet's never are.
"""

from typing import Any

from gpufleet.kubernetes.annotations import ALLOCATED, CLAIM, VISIBLE
from gpufleet.kubernetes.crds import GROUP, VERSION

NAME = "gpufleet-webhook"


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
