"""Derive fields of built-in objects beyond the constants of `fields.txt`.

Each function returns a completed copy. Nothing is modified in place, because parts may be shared
with the request or the store.
"""

import base64
import itertools
from collections.abc import Callable
from typing import Any

from kubelite.json import Json

_TOLERATION_SECONDS = 300
_AUTO_TOLERATED = ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable")


def add_derived_fields(plural: str, item: Json) -> Json:
    """Return a built-in object with the fields that its kind derives from others."""
    step = _DEFAULTS.get(plural)
    return item if step is None else step(item)


def _complete_container(container: Json) -> Json:
    result = dict(container)
    if "imagePullPolicy" not in result and (image := result.get("image")):
        name = image.rpartition("/")[2]
        tagged = ":" in name or "@" in name
        result["imagePullPolicy"] = "IfNotPresent" if tagged and not name.endswith(":latest") else "Always"
    if result.get("resources"):
        result["resources"] = _with_text_quantities(result["resources"])
    limits = (result.get("resources") or {}).get("limits")
    if limits:
        resources = result["resources"]
        result["resources"] = {**resources, "requests": {**limits, **(resources.get("requests") or {})}}
    return result


def _with_text_quantities(resources: Json) -> Json:
    """Return the resources with plain numbers as text, the form in which an API server stores quantities."""
    return {
        **resources,
        **{
            name: {resource: str(amount) for resource, amount in resources[name].items()}
            for name in ("limits", "requests")
            if isinstance(resources.get(name), dict)
        },
    }


def pod_spec(spec: Json, *, running: bool) -> Json:
    """Return a completed pod spec, of a pod (`running`) or of a template."""
    result = dict(spec)
    for name in ("containers", "initContainers"):
        if result.get(name):
            result[name] = [_complete_container(container) for container in result[name]]
    account = result.get("serviceAccountName") or result.get("serviceAccount")
    if account:
        result["serviceAccountName"] = result["serviceAccount"] = account
    if running:
        result.setdefault("enableServiceLinks", True)
        result["tolerations"] = _with_tolerations(result.get("tolerations") or [])
    return result


def _with_tolerations(tolerations: list[Json]) -> list[Json]:
    def covered(key: str) -> bool:
        return any(
            entry.get("key", key) == key and entry.get("effect", "NoExecute") in ("", "NoExecute")
            for entry in tolerations
        )

    common = {"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": _TOLERATION_SECONDS}
    return tolerations + [{"key": key, **common} for key in _AUTO_TOLERATED if not covered(key)]


def _pod(item: Json) -> Json:
    spec = pod_spec(item.get("spec") or {}, running=True)
    status = {"phase": "Pending", "qosClass": _qos_class(spec), **(item.get("status") or {})}
    return {**item, "spec": spec, "status": status}


def _qos_class(spec: Json) -> str:
    containers = [*spec.get("containers", ()), *spec.get("initContainers", ())]
    seen = False
    guaranteed = True
    for container in containers:
        resources = container.get("resources") or {}
        requests, limits = resources.get("requests") or {}, resources.get("limits") or {}
        for name in ("cpu", "memory"):
            seen = seen or name in requests or name in limits
            guaranteed = guaranteed and name in limits and str(requests.get(name)) == str(limits[name])
    return "BestEffort" if not seen else "Guaranteed" if guaranteed else "Burstable"


def _with_template(item: Json) -> Json:
    spec = item.get("spec") or {}
    template = spec.get("template")
    if not isinstance(template, dict) or not template.get("spec"):
        return item
    result = {**template, "spec": pod_spec(template["spec"], running=False)}
    return {**item, "spec": {**spec, "template": result}}


def _deployment(item: Json) -> Json:
    item = _with_template(item)
    spec = dict(item.get("spec") or {})
    strategy = spec.get("strategy") or {}
    if strategy.get("type", "RollingUpdate") == "RollingUpdate":
        rolling = {"maxUnavailable": "25%", "maxSurge": "25%", **(strategy.get("rollingUpdate") or {})}
        spec["strategy"] = {"type": "RollingUpdate", "rollingUpdate": rolling}
    return {**item, "spec": spec}


def _job(item: Json) -> Json:
    item = _with_template(item)
    spec = dict(item.get("spec") or {})
    if "completions" not in spec and "parallelism" not in spec:
        spec["completions"] = 1
    spec.setdefault("parallelism", 1)
    uid = item["metadata"].get("uid")
    if uid and not spec.get("manualSelector") and not spec.get("selector"):
        labels = {
            "batch.kubernetes.io/controller-uid": uid,
            "batch.kubernetes.io/job-name": item["metadata"].get("name", ""),
            "controller-uid": uid,
            "job-name": item["metadata"].get("name", ""),
        }
        spec["selector"] = {"matchLabels": {"batch.kubernetes.io/controller-uid": uid}}
        template = spec.get("template") or {}
        metadata = template.get("metadata") or {}
        spec["template"] = {
            **template,
            "metadata": {**metadata, "labels": {**(metadata.get("labels") or {}), **labels}},
        }
    return {**item, "spec": spec}


def _cron_job(item: Json) -> Json:
    spec = item.get("spec") or {}
    if not isinstance(spec.get("jobTemplate"), dict):
        return item
    return {**item, "spec": {**spec, "jobTemplate": _with_template(spec["jobTemplate"])}}


def _namespace(item: Json) -> Json:
    metadata = item["metadata"]
    labels = {**(metadata.get("labels") or {}), "kubernetes.io/metadata.name": metadata.get("name", "")}
    spec = item.get("spec") or {}
    return {
        **item,
        "metadata": {**metadata, "labels": labels},
        "spec": {"finalizers": ["kubernetes"], **spec},
        "status": {"phase": "Active", **(item.get("status") or {})},
    }


def _secret(item: Json) -> Json:
    plain = item.get("stringData")
    if not plain:
        return item
    coded = {name: base64.b64encode(str(value).encode()).decode() for name, value in plain.items()}
    result = {name: value for name, value in item.items() if name != "stringData"}
    return {**result, "data": {**(item.get("data") or {}), **coded}}


_service_numbers = itertools.count(1)


def _service(item: Json) -> Json:
    spec = dict(item.get("spec") or {})
    if spec.get("ports"):
        spec["ports"] = [{"targetPort": port.get("port"), **port} for port in spec["ports"]]
    if spec.get("type") == "ExternalName":
        return {**item, "spec": spec}
    if not spec.get("clusterIP"):
        number = next(_service_numbers)
        spec["clusterIP"] = f"10.96.{number // 250 % 250}.{number % 250 + 1}"
    spec.setdefault("clusterIPs", [spec["clusterIP"]])
    spec.setdefault("ipFamilies", ["IPv4"])
    spec.setdefault("ipFamilyPolicy", "SingleStack")
    return {**item, "spec": spec, "status": item.get("status") or {"loadBalancer": {}}}


def _volume_claim(item: Json) -> Json:
    return {**item, "status": {"phase": "Pending", **(item.get("status") or {})}}


def _crd(item: Json) -> Json:
    spec = item.get("spec") or {}
    names = spec.get("names") or {}
    kind = names.get("kind", "")
    result = {
        **names,
        "singular": names.get("singular") or kind.lower(),
        "listKind": names.get("listKind") or f"{kind}List",
    }
    return {**item, "spec": {**spec, "names": result}}


def _binding(item: Json) -> Json:
    role: Json = item.get("roleRef") or {}
    subjects: list[Any] = [
        {"apiGroup": "rbac.authorization.k8s.io", **entry}
        if entry.get("kind") in ("User", "Group")
        else entry
        for entry in item.get("subjects") or []
    ]
    result = {**item, "roleRef": {"apiGroup": "rbac.authorization.k8s.io", **role}}
    return {**result, "subjects": subjects} if subjects else result


_DEFAULTS: dict[str, Callable[[Json], Json]] = {
    "pods": _pod,
    "deployments": _deployment,
    "replicasets": _with_template,
    "statefulsets": _with_template,
    "daemonsets": _with_template,
    "jobs": _job,
    "cronjobs": _cron_job,
    "namespaces": _namespace,
    "secrets": _secret,
    "services": _service,
    "persistentvolumeclaims": _volume_claim,
    "customresourcedefinitions": _crd,
    "rolebindings": _binding,
    "clusterrolebindings": _binding,
}
