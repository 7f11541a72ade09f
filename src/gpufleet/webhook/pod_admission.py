"""Mutate pods at admission, so that their containers see the GPUs of their claim.

The GPUs of a pod are known when it is bound, but its environment is fixed at creation. So every container
gets its variables as a reference to an annotation that the binding brings. Before that, and on pods that
our scheduler never binds, the reference is empty and CUDA sees no GPU.

The vendor's container runtime reads NVIDIA_VISIBLE_DEVICES (AMD_VISIBLE_DEVICES) and gives the container these
devices and no others; CUDA and HIP read their own variables. docs/delivery.md tells which cluster needs what.

In mode `dra` a ResourceClaim brings the GPUs instead: the pod names the template of its kind of request, and every
container the claim. The scheduler allocates the claim, and the cluster's own kube-scheduler binds the pod.

A user who could write that annotation could take the GPUs of other pods. It is therefore removed from new
pods and protected on existing ones; bindings do not pass through this webhook. Only users that the settings
list as schedulers may write it outside of a binding. The claim of a pod that has GPUs is protected too: the
scheduler finds the pod's leases by it.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Self

import msgspec

from gpufleet.errors import InvalidRequest
from gpufleet.kubernetes.allocation import parse_allocation
from gpufleet.kubernetes.annotations import ALLOCATED, CLAIM, GANG_GATE, VISIBLE
from gpufleet.kubernetes.crds.gpu_claim import GpuClaim
from gpufleet.runtime.settings import WebhookSettings
from gpufleet.webhook.claim_delivery import deliver_by_claim, has_resource_claim, hide_gpus
from gpufleet.webhook.device_requests import refuse_devices, requested_devices, warning_of, without_devices
from gpufleet.webhook.extended_resources import request_resource
from gpufleet.webhook.wire import AdmissionRequest, AdmissionResponse, Json

RENUMBERING_VARIABLE = "ROCR_VISIBLE_DEVICES"
"""Hides and renumbers GPUs before HIP counts them, so its ids and those of HIP_VISIBLE_DEVICES would both apply."""

_DEVICE_ORDER = {"name": "CUDA_DEVICE_ORDER", "value": "PCI_BUS_ID"}
"""Number GPUs as the driver and the agent do; CUDA's default is by speed."""

KEEP_NODE = {
    "cluster-autoscaler.kubernetes.io/safe-to-evict": "false",
    "karpenter.sh/do-not-disrupt": "true",
}
"""Annotations of a pod for which Cluster Autoscaler and Karpenter keep its node."""

_SCHEDULER_ANNOTATIONS = (ALLOCATED, VISIBLE)
_KINDS = ("initContainers", "containers")


class _Named(msgspec.Struct):
    name: str = ""


class _Resources(msgspec.Struct):
    limits: dict[str, str | int | float] | None = None
    requests: dict[str, str | int | float] | None = None


class _Container(_Named):
    env: list[_Named] | None = None
    resources: _Resources | None = None


class _Metadata(msgspec.Struct):
    annotations: dict[str, str] | None = None


_Containers = Annotated[list[_Container], msgspec.Meta(max_length=1000)]
"""Each may need a patch; no node runs a pod with so many."""


class _Spec(msgspec.Struct, rename="camel"):
    containers: _Containers | None = None
    init_containers: _Containers | None = None
    ephemeral_containers: _Containers | None = None
    scheduling_gates: list[_Named] | None = None
    node_name: str | None = None
    scheduler_name: str | None = None


class _Pod(msgspec.Struct):
    """The fields of a pod that a review reads."""

    metadata: _Metadata | None = None
    spec: _Spec | None = None


def check_pod(request: AdmissionRequest) -> None:
    """Raise InvalidRequest if a state of the pod does not have the shape of a pod; reviews rely on it."""
    for name, state in (("object", request.object), ("oldObject", request.old_object)):
        try:
            msgspec.convert(state, _Pod | None)
        except msgspec.ValidationError as error:
            raise InvalidRequest(f"{name} is not a pod: {error}") from error


@dataclass(frozen=True)
class PodRules:
    """The operator's choices for pods."""

    variables: Sequence[str] = WebhookSettings.variables
    schedulers: Collection[str] = ()
    device_requests: str = WebhookSettings.device_requests
    runtime_class: str = ""
    scheduler_name: str = WebhookSettings.scheduler_name
    by_resource_claim: bool = False
    """Mode `dra`."""
    extended_resources: bool = WebhookSettings.extended_resources
    claim_taint: str = WebhookSettings.claim_taint
    keep_nodes: bool = WebhookSettings.keep_nodes

    @classmethod
    def from_settings(cls, settings: WebhookSettings) -> Self:
        """Return the rules that the settings describe."""
        return cls(
            variables=settings.variables,
            schedulers=frozenset(settings.schedulers),
            device_requests=settings.device_requests,
            runtime_class=settings.runtime_class,
            scheduler_name=settings.scheduler_name,
            extended_resources=settings.extended_resources,
            claim_taint=settings.claim_taint,
            keep_nodes=settings.keep_nodes,
        )


def claim_name(request: AdmissionRequest) -> str | None:
    """Return the name of the claim in the pod's annotation, or None."""
    return _annotations(request.object or {}).get(CLAIM)


def admit_create(request: AdmissionRequest, claim: GpuClaim | None, rules: PodRules) -> AdmissionResponse:
    """Review a new pod; `claim` is the claim it names, if that exists."""
    pod = request.object or {}
    name = claim_name(request)
    trusted = request.user_info.username in rules.schedulers
    allocated = _allocated_ids(pod) if trusted else None
    patch: list[Json] = []
    warnings: list[str] = []
    if allocated is None:
        for key in _SCHEDULER_ANNOTATIONS:
            if key in _annotations(pod):
                patch.append({"op": "remove", "path": f"/metadata/annotations/{_escaped(key)}"})
                warnings.append(
                    f"annotation {key} was removed: only the scheduler decides which GPUs a pod gets"
                )
    if name is None and allocated is None:
        return AdmissionResponse(patch, warnings)
    if name == "":
        return AdmissionResponse(
            refusal=f"annotation {CLAIM} is empty: set it to the name of a GpuClaim in this namespace"
        )
    if requested := requested_devices(pod):
        if refusal := refuse_devices(requested, name or "", claim, rules.device_requests):
            return AdmissionResponse(refusal=refusal)
        if rules.device_requests == "replace":
            pod, removed = without_devices(pod, requested)
            patch += removed
        warnings.append(warning_of(requested, name or "", rules.device_requests))
    patch += _keep_node(pod, rules)
    patch += _tolerate(pod, rules)
    if rules.by_resource_claim and allocated is None and not (pod.get("spec") or {}).get("nodeName"):
        patch += deliver_by_claim(pod, name or "", claim, rules.scheduler_name, warnings)
        return AdmissionResponse(patch, warnings)
    patch += _set_variables(pod, _KINDS, rules, allocated, warnings)
    patch += _set_runtime_class(pod, rules, warnings)
    if rules.extended_resources and claim is not None:
        patch += request_resource(pod, claim, warnings)
    if allocated is None:
        patch += _for_scheduler(pod, name or "", claim, rules, warnings)
    return AdmissionResponse(patch, warnings)


def admit_update(request: AdmissionRequest, rules: PodRules) -> AdmissionResponse:
    """Review an update of a pod; its GPUs stay those of the binding."""
    new, old = request.object or {}, request.old_object or {}
    if request.sub_resource == "ephemeralcontainers":
        return _admit_ephemeral(new, old, rules)
    if request.user_info.username in rules.schedulers:
        return AdmissionResponse()
    patch: list[Json] = []
    warnings: list[str] = []
    before, after = _annotations(old), _annotations(new)
    for key in (*_SCHEDULER_ANNOTATIONS, CLAIM) if ALLOCATED in before else _SCHEDULER_ANNOTATIONS:
        if after.get(key) == before.get(key):
            continue
        path = f"/metadata/annotations/{_escaped(key)}"
        if key in before:
            if not after and not patch:
                patch.append({"op": "add", "path": "/metadata/annotations", "value": {}})
            patch.append({"op": "add", "path": path, "value": before[key]})
        else:
            patch.append({"op": "remove", "path": path})
        warnings.append(
            f"annotation {key} was not changed: the pod holds the GPUs of its claim"
            if key == CLAIM
            else f"annotation {key} was not changed: only the scheduler decides which GPUs a pod gets"
        )
    return AdmissionResponse(patch, warnings)


def _admit_ephemeral(new: Json, old: Json, rules: PodRules) -> AdmissionResponse:
    """Let a debug container see the GPUs of its pod and no others.

    The annotations are those of the old state: the API server ignores changes of them in such a request.
    """
    if CLAIM not in _annotations(old):
        return AdmissionResponse()
    existing = {each.get("name") for each in (old.get("spec") or {}).get("ephemeralContainers") or ()}
    warnings: list[str] = []
    if has_resource_claim(old):
        # Kubernetes gives an ephemeral container no claim; it must not take all GPUs instead.
        return AdmissionResponse(list(hide_gpus(new, ("ephemeralContainers",), warnings, existing)), warnings)
    return AdmissionResponse(
        _set_variables(new, ("ephemeralContainers",), rules, None, warnings, existing), warnings
    )


def _for_scheduler(
    pod: Json, name: str, claim: GpuClaim | None, rules: PodRules, warnings: list[str]
) -> Iterator[Json]:
    """Yield patches for what the scheduler needs on the pod."""
    spec = pod.get("spec") or {}
    if spec.get("nodeName"):
        warnings.append("the pod sets nodeName and bypasses the scheduler: it will see no GPU")
        return
    yield from _set_scheduler(spec, (claim and claim.spec.scheduler_name) or rules.scheduler_name, warnings)
    if claim is None:
        warnings.append(
            f"there is no GpuClaim {name} in this namespace yet: the pod waits until there is one"
        )
        return
    if claim.spec.gang_ref:
        gates = spec.get("schedulingGates") or []
        if not any(gate.get("name") == GANG_GATE for gate in gates):
            yield {"op": "add", "path": "/spec/schedulingGates", "value": [*gates, {"name": GANG_GATE}]}


def _set_scheduler(spec: Json, scheduler: str, warnings: list[str]) -> Iterator[Json]:
    """Yield a patch with the scheduler of a pod that names none; the API server has filled in its default by now."""
    own = spec.get("schedulerName")
    if own in (None, "", "default-scheduler"):
        yield {"op": "add", "path": "/spec/schedulerName", "value": scheduler}
    elif own != scheduler:
        warnings.append(
            f"the pod keeps its scheduler {own}: it gets no GPU unless {scheduler} schedules it; "
            "remove schedulerName"
        )


def _keep_node(pod: Json, rules: PodRules) -> Iterator[Json]:
    """Yield annotations that keep autoscalers from removing the pod's node; the user's own values stay."""
    for key, value in KEEP_NODE.items() if rules.keep_nodes else ():
        if key not in _annotations(pod):
            yield {"op": "add", "path": f"/metadata/annotations/{_escaped(key)}", "value": value}


def _tolerate(pod: Json, rules: PodRules) -> Iterator[Json]:
    """Yield a toleration of the taint that keeps pods without a claim off the nodes of claims."""
    tolerations = (pod.get("spec") or {}).get("tolerations") or []
    known = any(each.get("key") == rules.claim_taint and not each.get("effect") for each in tolerations)
    if rules.claim_taint and not known:
        ours = {"key": rules.claim_taint, "operator": "Exists"}
        yield {"op": "add", "path": "/spec/tolerations", "value": [*tolerations, ours]}


def _set_runtime_class(pod: Json, rules: PodRules, warnings: list[str]) -> Iterator[Json]:
    """Yield a patch that runs the pod under the runtime that delivers GPUs."""
    own = (pod.get("spec") or {}).get("runtimeClassName")
    if not rules.runtime_class or own == rules.runtime_class:
        return
    if own:
        warnings.append(
            f"the pod keeps its runtime class {own}: it gets its GPUs only if that runtime delivers them as "
            f"{rules.runtime_class} does"
        )
        return
    yield {"op": "add", "path": "/spec/runtimeClassName", "value": rules.runtime_class}


def _set_variables(
    pod: Json,
    kinds: Sequence[str],
    rules: PodRules,
    value: str | None,
    warnings: list[str],
    skip: Collection[object] = (),
) -> list[Json]:
    """Set the variables in every container: to `value`, or to the annotation that the binding brings."""
    patch = []
    spec = pod.get("spec") or {}
    for kind in kinds:
        for number, container in enumerate(spec.get(kind) or ()):
            if container.get("name") in skip:
                continue
            before = container.get("env") or []
            ours = [*(_variable(name, value) for name in rules.variables), _DEVICE_ORDER]
            env = [*ours, *_other_variables(before, ours, container.get("name", ""), warnings)]
            if env != before:
                patch.append({"op": "add", "path": f"/spec/{kind}/{number}/env", "value": env})
    return patch


def _other_variables(
    env: Sequence[Json], ours: Sequence[Json], container: str, warnings: list[str]
) -> Iterator[Json]:
    """Yield the user's variables, without those that select GPUs."""
    names = {entry["name"] for entry in ours}
    for entry in env:
        name = entry.get("name")
        if name not in names and name != RENUMBERING_VARIABLE:
            yield entry
        elif entry not in ours:
            warnings.append(
                f"{name} of container {container} was replaced: the claim decides which GPUs it sees"
                if name in names
                else f"{name} of container {container} was removed: it would renumber the GPUs of the claim"
            )


def _variable(name: str, value: str | None) -> Json:
    if value is not None:
        return {"name": name, "value": value}
    field = {"apiVersion": "v1", "fieldPath": f"metadata.annotations['{VISIBLE}']"}
    return {"name": name, "valueFrom": {"fieldRef": field}}


def _allocated_ids(pod: Json) -> str | None:
    """Return the GPU ids of a pod that is created with an allocation for its node, or None."""
    annotations = _annotations(pod)
    allocated = parse_allocation(str(annotations.get(ALLOCATED, "")))
    if allocated is None or allocated.node != (pod.get("spec") or {}).get("nodeName"):
        return None
    return str(annotations.get(VISIBLE) or ",".join(map(str, allocated.gpus)))


def _annotations(pod: Json) -> Mapping[str, str]:
    return (pod.get("metadata") or {}).get("annotations") or {}


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
