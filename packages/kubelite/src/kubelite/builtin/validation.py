"""Validate built-in objects on create and update.

Only the rules that users run into are here: required fields, selectors that match their templates,
and immutable fields. Pod specs are the strictest: env cannot change after creation, scheduling
gates can only be removed, and the node is set by binding.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any

import msgspec

from kubelite.errors import Cause
from kubelite.json import Json
from kubelite.selectors import match_label_selector

_REQUIRED = "FieldValueRequired"
_CONFIG_KEY = re.compile("[-._a-zA-Z0-9]+")
_POD_CHANGES = (
    "Forbidden: pod updates may not change fields other than `spec.containers[*].image`,"
    "`spec.initContainers[*].image`,`spec.activeDeadlineSeconds`,`spec.tolerations` (only additions to existing "
    "tolerations),`spec.terminationGracePeriodSeconds` (allow it to be set to 1 if it was previously negative)"
)
_PULL_POLICIES = ("Always", "IfNotPresent", "Never")
_RESTART_POLICIES = ("Always", "OnFailure", "Never")


def object_errors(plural: str, item: Json) -> list[Cause]:
    """Return the errors in an object."""
    rule = _RULES.get(plural)
    return [] if rule is None else rule(item)


def update_errors(plural: str, old: Json, new: Json) -> list[Cause]:
    """Return the errors in an update, such as changes of immutable fields."""
    if plural == "pods":
        return _pod_update(old.get("spec") or {}, new.get("spec") or {})
    errors: list[Cause] = []
    for path in _IMMUTABLE.get(plural, ()):
        before, after = _value_at(old, path), _value_at(new, path)
        if before != after:
            text = msgspec.json.encode(after).decode()
            errors.append(Cause(".".join(path), f"Invalid value: {text}: field is immutable"))
    if plural in ("configmaps", "secrets") and old.get("immutable"):
        errors += [
            Cause(field, "Forbidden: field is immutable when `immutable` is set", "FieldValueForbidden")
            for field in ("data", "binaryData", "immutable")
            if old.get(field) != new.get(field)
        ]
    return errors


_IMMUTABLE: dict[str, tuple[tuple[str, ...], ...]] = {
    "deployments": (("spec", "selector"),),
    "replicasets": (("spec", "selector"),),
    "daemonsets": (("spec", "selector"),),
    "statefulsets": (("spec", "selector"), ("spec", "serviceName"), ("spec", "volumeClaimTemplates")),
    "jobs": (("spec", "selector"), ("spec", "completions"), ("spec", "template")),
    "rolebindings": (("roleRef",),),
    "clusterrolebindings": (("roleRef",),),
    "secrets": (("type",),),
    "priorityclasses": (("value",),),
    "customresourcedefinitions": (("spec", "group"), ("spec", "names", "kind"), ("spec", "scope")),
}


def _value_at(item: Any, path: Iterable[str]) -> Any:
    for step in path:
        item = item.get(step) if isinstance(item, dict) else None
    return item


def _required(field: str, detail: str = "") -> Cause:
    return Cause(field, f"Required value{': ' + detail if detail else ''}", _REQUIRED)


def _unsupported(field: str, value: str, known: Iterable[str]) -> Cause:
    names = ", ".join(f'"{name}"' for name in sorted(known))
    return Cause(field, f'Unsupported value: "{value}": supported values: {names}', "FieldValueNotSupported")


def pod_spec_errors(spec: Json, path: str) -> list[Cause]:
    """Return the errors in a pod spec."""
    if not spec.get("containers"):
        return [_required(f"{path}.containers")]
    errors: list[Cause] = []
    names: set[str] = set()
    for field in ("initContainers", "containers"):
        for at, container in enumerate(spec.get(field) or ()):
            errors += _container_errors(container, f"{path}.{field}[{at}]", names)
    policy = spec.get("restartPolicy", "Always")
    if policy not in _RESTART_POLICIES:
        errors.append(_unsupported(f"{path}.restartPolicy", policy, _RESTART_POLICIES))
    gates = [gate.get("name") for gate in spec.get("schedulingGates") or ()]
    if spec.get("nodeName") and gates:
        errors.append(
            Cause(
                f"{path}.nodeName",
                "Forbidden: cannot be set until all schedulingGates have been cleared",
                "FieldValueForbidden",
            )
        )
    return errors


def _container_errors(container: Json, path: str, names: set[str]) -> list[Cause]:
    errors: list[Cause] = []
    name = container.get("name", "")
    if not name:
        errors.append(_required(f"{path}.name"))
    elif name in names:
        errors.append(Cause(f"{path}.name", f'Duplicate value: "{name}"', "FieldValueDuplicate"))
    names.add(name)
    if not container.get("image"):
        errors.append(_required(f"{path}.image"))
    policy = container.get("imagePullPolicy", "Always")
    if policy not in _PULL_POLICIES:
        errors.append(_unsupported(f"{path}.imagePullPolicy", policy, _PULL_POLICIES))
    for at, variable in enumerate(container.get("env") or ()):
        if not variable.get("name"):
            errors.append(_required(f"{path}.env[{at}].name"))
        if variable.get("value") and variable.get("valueFrom"):
            errors.append(
                Cause(
                    f"{path}.env[{at}].valueFrom",
                    "Invalid value: may not be specified when `value` is not empty",
                )
            )
    return errors + _resource_errors(container.get("resources") or {}, f"{path}.resources")


def _resource_errors(resources: Json, path: str) -> list[Cause]:
    """Check extended resources such as GPUs: they cannot be overcommitted, so request and limit are equal."""
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    errors: list[Cause] = []
    for name in sorted({*limits, *requests}):
        if "/" not in name or name.startswith("kubernetes.io/"):
            continue
        if name not in limits:
            errors.append(_required(f"{path}.limits", "Limit must be set for non overcommitable resources"))
        elif str(requests.get(name)) != str(limits[name]):
            detail = f'Invalid value: "{requests.get(name)}": must be equal to {name} limit of {limits[name]}'
            errors.append(Cause(f"{path}.requests", detail))
    return errors


def _pod(item: Json) -> list[Cause]:
    return pod_spec_errors(item.get("spec") or {}, "spec")


def _with_selector(item: Json) -> list[Cause]:
    spec = item.get("spec") or {}
    template = spec.get("template") or {}
    errors: list[Cause] = []
    selector = spec.get("selector")
    labels = (template.get("metadata") or {}).get("labels") or {}
    if not selector:
        errors.append(_required("spec.selector"))
    elif not match_label_selector(selector, labels):
        text = msgspec.json.encode(labels).decode()
        errors.append(
            Cause(
                "spec.template.metadata.labels",
                f"Invalid value: {text}: `selector` does not match template `labels`",
            )
        )
    return errors + pod_spec_errors(template.get("spec") or {}, "spec.template.spec")


def _controller(item: Json) -> list[Cause]:
    errors = _with_selector(item)
    policy = _value_at(item, ("spec", "template", "spec", "restartPolicy"))
    if not errors and policy not in (None, "Always"):
        errors.append(_unsupported("spec.template.spec.restartPolicy", str(policy), ("Always",)))
    return errors


def _job_spec(spec: Json, path: str) -> list[Cause]:
    template = (spec.get("template") or {}).get("spec") or {}
    errors = pod_spec_errors(template, f"{path}.template.spec")
    if not errors and template.get("restartPolicy") not in ("OnFailure", "Never"):
        errors.append(
            _unsupported(
                f"{path}.template.spec.restartPolicy",
                template.get("restartPolicy", ""),
                ("OnFailure", "Never"),
            )
        )
    return errors


def _job(item: Json) -> list[Cause]:
    return _job_spec(item.get("spec") or {}, "spec")


def _cron_job(item: Json) -> list[Cause]:
    spec = item.get("spec") or {}
    errors = [] if spec.get("schedule") else [_required("spec.schedule")]
    return errors + _job_spec((spec.get("jobTemplate") or {}).get("spec") or {}, "spec.jobTemplate.spec")


def _service(item: Json) -> list[Cause]:
    spec = item.get("spec") or {}
    if not spec.get("ports") and spec.get("clusterIP") != "None" and spec.get("type") != "ExternalName":
        return [_required("spec.ports")]
    return [
        _required(f"spec.ports[{at}].port")
        for at, port in enumerate(spec.get("ports") or ())
        if not port.get("port")
    ]


def _event(item: Json) -> list[Cause]:
    about = (item.get("involvedObject") or item.get("regarding") or {}).get("namespace") or "default"
    namespace = item["metadata"].get("namespace")
    if namespace != about:
        return [
            Cause("involvedObject.namespace", f'Invalid value: "{about}": does not match event.namespace')
        ]
    return []


def _role_binding(item: Json) -> list[Cause]:
    return [] if (item.get("roleRef") or {}).get("name") else [_required("roleRef.name")]


def _lease(item: Json) -> list[Cause]:
    spec = item.get("spec") or {}
    errors: list[Cause] = []
    seconds = spec.get("leaseDurationSeconds")
    if seconds is not None and seconds <= 0:
        errors.append(Cause("spec.leaseDurationSeconds", f"Invalid value: {seconds}: must be greater than 0"))
    transitions = spec.get("leaseTransitions")
    if transitions is not None and transitions < 0:
        errors.append(
            Cause(
                "spec.leaseTransitions", f"Invalid value: {transitions}: must be greater than or equal to 0"
            )
        )
    return errors


def _crd(item: Json) -> list[Cause]:
    spec = item.get("spec") or {}
    names = spec.get("names") or {}
    name, expected = item["metadata"].get("name"), f"{names.get('plural')}.{spec.get('group')}"
    errors: list[Cause] = []
    if name != expected:
        errors.append(
            Cause("metadata.name", f'Invalid value: "{name}": must be spec.names.plural+"."+spec.group')
        )
    if spec.get("scope") not in ("Namespaced", "Cluster"):
        errors.append(_unsupported("spec.scope", str(spec.get("scope") or ""), ("Cluster", "Namespaced")))
    versions = spec.get("versions") or []
    if sum(bool(version.get("storage")) for version in versions) != 1:
        errors.append(
            Cause("spec.versions", "Invalid value: must have exactly one version marked as storage version")
        )
    errors += [
        _required(f"spec.versions[{at}].schema.openAPIV3Schema", "schemas are required")
        for at, version in enumerate(versions)
        if not (version.get("schema") or {}).get("openAPIV3Schema")
    ]
    return errors


def _config_keys(item: Json) -> list[Cause]:
    rule = (
        "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or "
        "'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')"
    )
    return [
        Cause(f"{field}[{key}]", f'Invalid value: "{key}": {rule}')
        for field in ("data", "binaryData")
        for key in item.get(field) or ()
        if not _CONFIG_KEY.fullmatch(key) or len(key) > 253
    ]


_RULES: dict[str, Callable[[Json], list[Cause]]] = {
    "pods": _pod,
    "configmaps": _config_keys,
    "secrets": _config_keys,
    "deployments": _controller,
    "replicasets": _controller,
    "statefulsets": _controller,
    "daemonsets": _controller,
    "jobs": _job,
    "cronjobs": _cron_job,
    "services": _service,
    "events": _event,
    "rolebindings": _role_binding,
    "clusterrolebindings": _role_binding,
    "leases": _lease,
    "customresourcedefinitions": _crd,
}


def _pod_update(old: Json, new: Json) -> list[Cause]:
    gates = {gate.get("name") for gate in old.get("schedulingGates") or ()}
    errors = [
        Cause(
            "spec.schedulingGates",
            f"Forbidden: only deletion is allowed, but found new scheduling gate '{gate.get('name')}'",
            "FieldValueForbidden",
        )
        for gate in new.get("schedulingGates") or ()
        if gate.get("name") not in gates
    ]
    tolerations = new.get("tolerations") or []
    if any(one not in tolerations for one in old.get("tolerations") or ()):
        errors.append(
            Cause(
                "spec.tolerations",
                "Forbidden: existing toleration can not be modified except its tolerationSeconds",
                "FieldValueForbidden",
            )
        )
    if errors:
        return errors
    if _immutable_fields(old, gated=bool(gates)) != _immutable_fields(new, gated=bool(gates)):
        return [Cause("spec", _POD_CHANGES, "FieldValueForbidden")]
    return []


def _immutable_fields(spec: Json, *, gated: bool) -> Json:
    """Return the part of a pod spec that may not change. A gated pod may still change its node selection."""
    open_fields = {"activeDeadlineSeconds", "tolerations", "schedulingGates", "ephemeralContainers"}
    if gated:
        open_fields |= {"nodeSelector", "affinity"}
    fields = {
        name: value for name, value in spec.items() if name not in open_fields and value not in (None, [], {})
    }
    for field in ("containers", "initContainers"):
        if field in fields:
            fields[field] = [
                {name: value for name, value in one.items() if name != "image"} for one in fields[field]
            ]
    return fields
