"""The webhook configurations to apply: what the API server asks the webhook about.

Objects can't be selected by annotation, so match conditions do it, within the API server: a pod without
our annotations is never sent, and an outage of the webhook never holds it up. For pods that have them the
policy is Fail, since a pod with a claim and without its variables would see GPUs of others. Changes of
existing pods are asked about only if they touch what the scheduler wrote.
"""

from typing import Any

from gpufleet.kubernetes.annotations import ALLOCATED, CLAIM, VISIBLE
from gpufleet.kubernetes.crds.generate import GROUP, VERSION

NAME = "gpufleet-webhook"
_NOTES = "has(object.metadata.annotations)"


def _carries(*keys: str) -> str:
    any_of = " || ".join(f"{key!r} in object.metadata.annotations" for key in keys)
    return f"{_NOTES} && ({any_of})"


def _value(state: str, key: str) -> str:
    notes = f"{state}.metadata.annotations"
    return f"(has({notes}) && {key!r} in {notes} ? {notes}[{key!r}] : '')"


CONCERNED = _carries(CLAIM, ALLOCATED, VISIBLE)
"""CEL: a new pod that names a claim or carries what only the scheduler may write."""
TAMPERED = " || ".join(
    f"{_value('object', key)} != {_value('oldObject', key)}" for key in (ALLOCATED, VISIBLE)
)
"""CEL: a change of what the scheduler wrote."""


def configurations(
    client: dict[str, Any], *, name: str = NAME, namespaces: dict[str, Any] | None = None
) -> list[dict[str, Any]]:
    """Both manifests; `client` is a clientConfig with a `url` or a `service`, without path and caBundle."""
    pods = {"apiGroups": [""], "apiVersions": ["v1"], "scope": "Namespaced"}
    claims = {"apiGroups": [GROUP], "apiVersions": [VERSION], "scope": "Namespaced"}
    common: dict[str, Any] = {"namespaceSelector": namespaces} if namespaces else {}
    return [
        _configuration(
            "MutatingWebhookConfiguration",
            name,
            _hook(
                "pods",
                _at(client, "/mutate"),
                {**pods, "operations": ["CREATE"], "resources": ["pods"]},
                ("concerned", CONCERNED),
                reinvocationPolicy="IfNeeded",
                **common,
            ),
            _hook(
                "bound-pods",
                _at(client, "/mutate"),
                {**pods, "operations": ["UPDATE"], "resources": ["pods"]},
                ("tampered", TAMPERED),
                **common,
            ),
            _hook(
                "debugged-pods",
                _at(client, "/mutate"),
                {**pods, "operations": ["UPDATE"], "resources": ["pods/ephemeralcontainers"]},
                ("claims", _carries(CLAIM)),
                **common,
            ),
        ),
        _configuration(
            "ValidatingWebhookConfiguration",
            name,
            _hook(
                "claims",
                _at(client, "/validate"),
                {**claims, "operations": ["CREATE", "UPDATE"], "resources": ["gpuclaims"]},
                None,
                failurePolicy="Ignore",  # newer servers have checked the same rules themselves
                **common,
            ),
        ),
    ]


def _at(client: dict[str, Any], path: str) -> dict[str, Any]:
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
