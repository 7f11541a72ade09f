"""Resolve the environment of a container as a kubelet does.

References lead to fields of the pod (downward API), resources of the container, config maps and secrets. `$(NAME)`
stands for a variable defined earlier, `$$` for a dollar sign. A missing label or annotation is an empty value; a
missing config map is an error that keeps the container from starting.
"""

import base64
import math
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

Fetch = Callable[[str, str], Awaitable[Mapping[str, Any] | None]]
_REFERENCE = re.compile(r"\$\$|\$\(([^()]+)\)")
_SUBSCRIPT = re.compile(r"metadata\.(labels|annotations)\['(.+)'\]")
_QUANTITY = re.compile(r"([0-9.]+)([a-zA-Z]*)")
_SUFFIXES = {"": 1.0, "m": 1e-3, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12, "Ki": 2.0**10, "Mi": 2.0**20}
_SUFFIXES |= {"Gi": 2.0**30, "Ti": 2.0**40}


class Unresolved(Exception):
    """A required reference does not exist."""


async def resolve(pod: Mapping[str, Any], container: Mapping[str, Any], fetch: Fetch) -> dict[str, str]:
    """Return the variables of one container; `fetch(kind, name)` reads a config map or secret of its namespace."""
    values: dict[str, str] = {}
    for source in container.get("envFrom", []):
        values |= await _from_source(source, fetch)
    for entry in container.get("env", []):
        if "valueFrom" in entry:
            value = await _from_reference(pod, container, entry["valueFrom"], fetch)
            if value is not None:
                values[entry["name"]] = value
        else:
            values[entry["name"]] = expand(entry.get("value", ""), values)
    return values


def expand(text: str, values: Mapping[str, str]) -> str:
    """Replace `$(NAME)` if NAME is defined; keep it otherwise."""

    def replace(found: re.Match[str]) -> str:
        return "$" if found[0] == "$$" else values.get(found[1], found[0])

    return _REFERENCE.sub(replace, text)


def field(pod: Mapping[str, Any], path: str) -> str:
    """Return a field of the pod as the downward API does."""
    metadata, spec, status = pod["metadata"], pod["spec"], pod.get("status", {})
    if found := _SUBSCRIPT.fullmatch(path):
        return str(metadata.get(found[1], {}).get(found[2], ""))
    known = {
        "metadata.name": metadata["name"],
        "metadata.namespace": metadata["namespace"],
        "metadata.uid": metadata["uid"],
        "spec.nodeName": spec.get("nodeName", ""),
        "spec.serviceAccountName": spec.get("serviceAccountName", ""),
        "status.hostIP": status.get("hostIP", ""),
        "status.hostIPs": ",".join(each["ip"] for each in status.get("hostIPs", [])),
        "status.podIP": status.get("podIP", ""),
        "status.podIPs": ",".join(each["ip"] for each in status.get("podIPs", [])),
    }
    if path not in known:
        raise Unresolved(f"no field {path} in the downward API")
    return str(known[path])


def resource(container: Mapping[str, Any], reference: Mapping[str, Any]) -> str:
    """Return a limit or request of the container in units of the divisor, rounded up."""
    kind, _, name = reference["resource"].partition(".")
    amount = container.get("resources", {}).get(kind, {}).get(name, "0")
    divisor = str(reference.get("divisor", "1"))
    return str(math.ceil(quantity(amount) / (quantity(divisor) or 1.0)))


def quantity(text: str) -> float:
    """Parse a Kubernetes quantity."""
    found = _QUANTITY.fullmatch(text)
    if not found or found[2] not in _SUFFIXES:
        raise Unresolved(f"{text!r} is not a quantity")
    return float(found[1]) * _SUFFIXES[found[2]]


async def _from_source(source: Mapping[str, Any], fetch: Fetch) -> dict[str, str]:
    prefix = source.get("prefix", "")
    kind, reference = _kind(source, "configMapRef", "secretRef")
    found = await fetch(kind, reference["name"])
    if found is None:
        _require(reference, kind)
        return {}
    return {prefix + key: _decoded(kind, value) for key, value in (found.get("data") or {}).items()}


async def _from_reference(
    pod: Mapping[str, Any], container: Mapping[str, Any], source: Mapping[str, Any], fetch: Fetch
) -> str | None:
    if "fieldRef" in source:
        return field(pod, source["fieldRef"]["fieldPath"])
    if "resourceFieldRef" in source:
        return resource(container, source["resourceFieldRef"])
    kind, reference = _kind(source, "configMapKeyRef", "secretKeyRef")
    found = await fetch(kind, reference["name"])
    value = ((found or {}).get("data") or {}).get(reference["key"])
    if value is None:
        _require(reference, kind)
        return None
    return _decoded(kind, value)


def _kind(source: Mapping[str, Any], config_map: str, secret: str) -> tuple[str, Mapping[str, Any]]:
    if config_map in source:
        return "configmaps", source[config_map]
    if secret in source:
        return "secrets", source[secret]
    raise Unresolved(f"no known source of a value in {sorted(source)}")


def _require(reference: Mapping[str, Any], kind: str) -> None:
    """Raise for a missing reference unless it is optional."""
    if not reference.get("optional"):
        raise Unresolved(f"no {kind} {reference['name']} {reference.get('key', '')}".rstrip())


def _decoded(kind: str, value: str) -> str:
    return base64.b64decode(value).decode() if kind == "secrets" else value
