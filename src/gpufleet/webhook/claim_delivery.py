"""Mutate pods in mode `dra`: a ResourceClaim brings every container the GPUs of the pod's GpuClaim.

kube-controller-manager makes the claim from a template that the scheduler keeps, one for each number of GPUs and
share. A pod that is created before its GpuClaim names a template of that claim, which the scheduler makes when the
claim exists.

The container runtime must not add GPUs because of a variable in the image or the pod: NVIDIA_VISIBLE_DEVICES is `void`,
as NVIDIA's driver sets it in the containers that it prepares.
"""

from collections.abc import Collection, Iterator, Sequence

from gpufleet.kubernetes.annotations import GANG_GATE, POD_GROUP_LABEL
from gpufleet.kubernetes.crds.gpu_claim import GpuClaim
from gpufleet.kubernetes.resource_claims import POD_CLAIM, template_name, template_of_claim
from gpufleet.webhook.wire import Json

_KINDS = ("initContainers", "containers")
_RUNTIME_VARIABLE = "NVIDIA_VISIBLE_DEVICES"
_HIDDEN = {"name": _RUNTIME_VARIABLE, "value": "void"}
_DEFAULT_SCHEDULER = "default-scheduler"


def deliver_by_claim(
    pod: Json, name: str, claim: GpuClaim | None, extender: str, warnings: list[str]
) -> Iterator[Json]:
    """Yield patches that give a pod the ResourceClaim of its GpuClaim; `extender` is the scheduler of the other mode."""
    spec = pod.get("spec") or {}
    if claim is not None:
        template = template_name(claim.spec.devices.count, claim.spec.devices.shared_milli)
    else:
        template = template_of_claim(name)
        warnings.append(
            f"there is no GpuClaim {name} in this namespace yet: the pod waits until there is one"
        )
    entry = {"name": POD_CLAIM, "resourceClaimTemplateName": template}
    before = spec.get("resourceClaims") or []
    if entry not in before:
        others = [each for each in before if each.get("name") != POD_CLAIM]
        yield {"op": "add", "path": "/spec/resourceClaims", "value": [*others, entry]}
    for kind in _KINDS:
        for number, container in enumerate(spec.get(kind) or ()):
            yield from _use_claim(f"/spec/{kind}/{number}/resources", container.get("resources"))
    yield from hide_gpus(pod, _KINDS, warnings)
    if spec.get("schedulerName") == extender:
        yield {"op": "add", "path": "/spec/schedulerName", "value": _DEFAULT_SCHEDULER}
    gates = spec.get("schedulingGates") or []
    if _is_member(pod, claim) and not any(gate.get("name") == GANG_GATE for gate in gates):
        yield {"op": "add", "path": "/spec/schedulingGates", "value": [*gates, {"name": GANG_GATE}]}


def has_resource_claim(pod: Json) -> bool:
    """Return whether a ResourceClaim brings the pod its GPUs."""
    claims = (pod.get("spec") or {}).get("resourceClaims") or ()
    return any(each.get("name") == POD_CLAIM for each in claims)


def hide_gpus(
    pod: Json, kinds: Sequence[str], warnings: list[str], skip: Collection[object] = ()
) -> Iterator[Json]:
    """Yield patches that keep the vendor's runtime from adding GPUs beside those of the claim."""
    spec = pod.get("spec") or {}
    for kind in kinds:
        for number, container in enumerate(spec.get(kind) or ()):
            before = container.get("env") or []
            if container.get("name") in skip or _HIDDEN in before:
                continue
            others = [each for each in before if each.get("name") != _RUNTIME_VARIABLE]
            if len(others) < len(before):
                warnings.append(
                    f"{_RUNTIME_VARIABLE} of container {container.get('name', '')} was replaced: "
                    "the claim decides which GPUs it sees"
                )
            yield {"op": "add", "path": f"/spec/{kind}/{number}/env", "value": [_HIDDEN, *others]}


def _use_claim(path: str, resources: Json | None) -> Iterator[Json]:
    claims = (resources or {}).get("claims") or []
    if any(each.get("name") == POD_CLAIM for each in claims):
        return
    if not resources:
        yield {"op": "add", "path": path, "value": {"claims": [{"name": POD_CLAIM}]}}
    else:
        yield {"op": "add", "path": f"{path}/claims", "value": [*claims, {"name": POD_CLAIM}]}


def _is_member(pod: Json, claim: GpuClaim | None) -> bool:
    """Return whether the pod is a member of a gang, as far as known at its creation.

    kube-scheduler binds a member as soon as its claim is allocated. The gate holds it until all members are.
    """
    labels = (pod.get("metadata") or {}).get("labels") or {}
    group = (pod.get("spec") or {}).get("schedulingGroup")
    return bool((claim is not None and claim.spec.gang_ref) or labels.get(POD_GROUP_LABEL) or group)
