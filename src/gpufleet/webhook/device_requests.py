"""Decide about a pod with a claim that also requests GPUs from a device plugin: it would hold GPUs twice.

Pods written for other schedulers name both. If they mean the same number of whole GPUs, the claim replaces the request.
The pod's annotation keeps the number: the claim may not exist yet, or be created again with another one, and the
scheduler compares the number with that of the claim.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

import msgspec

from gpufleet.kubernetes.annotations import REQUESTED
from gpufleet.kubernetes.crds.gpu_claim import GpuClaim
from gpufleet.kubernetes.gpu_requests import WHOLE
from gpufleet.kubernetes.objects import Pod
from gpufleet.kubernetes.quantities import pod_request
from gpufleet.webhook.wire import Json

_PLUGIN_RESOURCES = re.compile(r"(nvidia\.com/(gpu|mig-.+)(\.shared)?|amd\.com/gpu.*|gpu\.intel\.com/.+)")
_KINDS = ("initContainers", "containers")
_PARTS = ("limits", "requests")


class Requested(NamedTuple):
    """The device plugin's resources that a pod requests, and how many GPUs that is; None if it is not certain."""

    names: tuple[str, ...]
    gpus: float | None


def requested_devices(pod: Json) -> Requested | None:
    """Return what a pod requests from device plugins, None if nothing."""
    names = tuple(sorted(set(_names(pod))))
    if not names:
        return None
    if len(names) > 1 or names[0] not in WHOLE:
        return Requested(names, None)
    return Requested(names, pod_request(msgspec.convert(pod, Pod), names[0]))


def refuse_devices(requested: Requested, name: str, claim: GpuClaim | None, mode: str) -> str:
    """Return why the pod is refused, or an empty string; the claim may not exist yet."""
    if mode == "refuse" or (mode == "replace" and requested.gpus is None):
        return _twice(requested, name)
    if mode == "replace" and claim is not None and requested.gpus != claim.spec.devices.count:
        return (
            f"the pod requests {requested.gpus:g} of {requested.names[0]} and its claim {name} asks for "
            f"{claim.spec.devices.count} GPUs: request the same number, or remove the request"
        )
    return ""


def warning_of(requested: Requested, name: str, mode: str) -> str:
    """Return the admission warning of a pod that is not refused."""
    if mode == "replace":
        return (
            f"the request for {requested.gpus:g} of {requested.names[0]} was replaced: "
            f"the claim {name} gives the pod its GPUs"
        )
    return _twice(requested, name)


def _twice(requested: Requested, name: str) -> str:
    return (
        f"the pod has the claim {name} and also requests {', '.join(requested.names)}: it would hold GPUs twice; "
        "remove the request or the annotation"
    )


def without_devices(pod: Json, requested: Requested) -> tuple[Json, list[Json]]:
    """Return the pod without these requests, and the patches that remove them."""
    spec, patch = dict(pod.get("spec") or {}), []
    for kind in _KINDS:
        containers = list(spec.get(kind) or ())
        for at, container in enumerate(containers):
            before = container.get("resources") or {}
            after = {
                **before,
                **{part: _others(before[part], requested.names) for part in _PARTS if before.get(part)},
            }
            if after != before:
                containers[at] = {**container, "resources": after}
                patch.append({"op": "replace", "path": f"/spec/{kind}/{at}/resources", "value": after})
        if containers:
            spec[kind] = containers
    path = f"/metadata/annotations/{REQUESTED.replace('/', '~1')}"
    patch.append({"op": "add", "path": path, "value": f"{requested.gpus:.0f}"})
    return {**pod, "spec": spec}, patch


def _others(amounts: Json, names: tuple[str, ...]) -> Json:
    return {name: amount for name, amount in amounts.items() if name not in names}


def _names(pod: Json) -> Iterator[str]:
    spec = pod.get("spec") or {}
    for kind in _KINDS:
        for container in spec.get(kind) or ():
            resources = container.get("resources") or {}
            for part in _PARTS:
                for name, amount in (resources.get(part) or {}).items():
                    if _PLUGIN_RESOURCES.fullmatch(name) and str(amount) not in ("0", ""):
                        yield name
