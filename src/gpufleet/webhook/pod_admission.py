"""What becomes of a pod at admission.

The GPUs of a pod are known when it is bound, and its environment can't change any more then. So every
container gets its variables at creation as a reference to an annotation that comes with the binding;
until then, and for ever on a pod that no scheduler of ours has bound, the reference is empty and CUDA
sees no GPU. Whoever could write that annotation could take anybody's GPUs. It is therefore stripped
from new pods and kept as it is on existing ones: bindings don't pass by here, all else does.

Only users that the settings name as schedulers are believed outside of a binding.
"""

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpufleet.kubernetes.allocation import parse_allocation
from gpufleet.kubernetes.annotations import ALLOCATED, CLAIM, GANG_GATE, VISIBLE
from gpufleet.kubernetes.crds.gpu_claim import GpuClaim
from gpufleet.webhook.wire import AdmissionRequest, AdmissionVerdict, Json

VARIABLES = ("CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
"""HIP reads either of the two, so the same value in both is harmless. ROCR_VISIBLE_DEVICES is not:
it hides and renumbers GPUs before HIP counts them, and the same numbers would be applied twice."""
RENUMBERS = "ROCR_VISIBLE_DEVICES"

_SEALED = (ALLOCATED, VISIBLE)
_PLUGIN_RESOURCES = re.compile(r"(nvidia\.com/(gpu|mig-.+)(\.shared)?|amd\.com/gpu.*|gpu\.intel\.com/.+)")
_KINDS = ("initContainers", "containers")


@dataclass(frozen=True)
class PodRules:
    """What an operator decides."""

    variables: Sequence[str] = VARIABLES
    schedulers: Collection[str] = ()
    refuse_device_requests: bool = True


def claim_named(asked: AdmissionRequest) -> str | None:
    """The claim that a new pod names; None if it names none."""
    if asked.object is None:
        return None
    name = _annotations(asked.object).get(CLAIM)
    return None if name is None else str(name)


def admit_new(asked: AdmissionRequest, claim: GpuClaim | None, rules: PodRules) -> AdmissionVerdict:
    """What becomes of a pod that is created; `claim` is the one that it names, if there is one."""
    pod = asked.object or {}
    name = claim_named(asked)
    bound = asked.user_info.username in rules.schedulers and _bound_to(pod) is not None
    patch: list[Json] = []
    warnings: list[str] = []
    if not bound:
        for key in _SEALED:
            if key in _annotations(pod):
                patch.append({"op": "remove", "path": f"/metadata/annotations/{_escaped(key)}"})
                warnings.append(
                    f"annotation {key} was removed: only the scheduler says which GPUs a pod gets"
                )
    if name is None and not bound:
        return AdmissionVerdict(patch, warnings)
    if name == "":
        return AdmissionVerdict(
            refusal=f"annotation {CLAIM} is empty: it takes the name of a GpuClaim in the namespace"
        )
    if requests := sorted(set(_device_requests(pod))):
        sentence = (
            f"the pod has the claim {name} and also requests {', '.join(requests)}: it would hold GPUs twice; "
            "take the request out, or the annotation"
        )
        if rules.refuse_device_requests:
            return AdmissionVerdict(refusal=sentence)
        warnings.append(sentence)
    value = _bound_to(pod) if bound else None
    patch += _inject(pod, _KINDS, rules, value, warnings)
    if not bound:
        patch += _prepare(pod, name or "", claim, warnings)
    return AdmissionVerdict(patch, warnings)


def admit_change(asked: AdmissionRequest, rules: PodRules) -> AdmissionVerdict:
    """What becomes of a change of an existing pod: its GPUs stay what the binding said."""
    new, old = asked.object or {}, asked.old_object or {}
    if asked.sub_resource == "ephemeralcontainers":
        return _admit_ephemeral(new, old, rules)
    if asked.user_info.username in rules.schedulers:
        return AdmissionVerdict()
    patch: list[Json] = []
    warnings: list[str] = []
    kept, wanted = _annotations(old), _annotations(new)
    for key in _SEALED:
        if wanted.get(key) == kept.get(key):
            continue
        path = f"/metadata/annotations/{_escaped(key)}"
        if key in kept:
            if not wanted and not patch:
                patch.append({"op": "add", "path": "/metadata/annotations", "value": {}})
            patch.append({"op": "add", "path": path, "value": kept[key]})
        else:
            patch.append({"op": "remove", "path": path})
        warnings.append(f"annotation {key} was kept as it was: only the scheduler says which GPUs a pod gets")
    return AdmissionVerdict(patch, warnings)


def _admit_ephemeral(new: Json, old: Json, rules: PodRules) -> AdmissionVerdict:
    """A container for debugging sees the GPUs of its pod and no others."""
    if CLAIM not in _annotations(new):
        return AdmissionVerdict()
    there = {each.get("name") for each in (old.get("spec") or {}).get("ephemeralContainers") or ()}
    warnings: list[str] = []
    return AdmissionVerdict(_inject(new, ("ephemeralContainers",), rules, None, warnings, there), warnings)


def _prepare(pod: Json, name: str, claim: GpuClaim | None, warnings: list[str]) -> Iterator[Json]:
    """What the scheduler needs on the pod."""
    spec = pod.get("spec") or {}
    if spec.get("nodeName"):
        warnings.append("the pod names its node and so bypasses the scheduler: it will see no GPU")
        return
    if claim is None:
        warnings.append(
            f"there is no GpuClaim {name} in this namespace yet: the pod waits until there is one"
        )
        return
    if claim.spec.gang_ref:
        gates = spec.get("schedulingGates") or []
        if not any(gate.get("name") == GANG_GATE for gate in gates):
            yield {"op": "add", "path": "/spec/schedulingGates", "value": [*gates, {"name": GANG_GATE}]}
    wanted = claim.spec.scheduler_name
    if wanted and spec.get("schedulerName") in (None, "", "default-scheduler"):
        yield {"op": "add", "path": "/spec/schedulerName", "value": wanted}


def _inject(
    pod: Json,
    kinds: Sequence[str],
    rules: PodRules,
    value: str | None,
    warnings: list[str],
    not_these: Collection[object] = (),
) -> list[Json]:
    """Set the variables in every container: to `value`, or else to what the binding will say."""
    patch = []
    spec = pod.get("spec") or {}
    for kind in kinds:
        for number, container in enumerate(spec.get(kind) or ()):
            if container.get("name") in not_these:
                continue
            before = container.get("env") or []
            ours = [_variable(name, value) for name in rules.variables]
            env = [*ours, *_without(before, rules, ours, container.get("name", ""), warnings)]
            if env != before:
                patch.append({"op": "add", "path": f"/spec/{kind}/{number}/env", "value": env})
    return patch


def _without(
    env: Sequence[Json], rules: PodRules, ours: Sequence[Json], container: str, warnings: list[str]
) -> Iterator[Json]:
    """The user's variables but those that say which GPUs are visible."""
    for entry in env:
        name = entry.get("name")
        if name not in rules.variables and name != RENUMBERS:
            yield entry
        elif entry not in ours:
            warnings.append(
                f"{name} of container {container} was replaced: the claim decides which GPUs it sees"
                if name in rules.variables
                else f"{name} of container {container} was removed: it would renumber the GPUs of the claim"
            )


def _variable(name: str, value: str | None) -> Json:
    if value is not None:
        return {"name": name, "value": value}
    field = {"apiVersion": "v1", "fieldPath": f"metadata.annotations['{VISIBLE}']"}
    return {"name": name, "valueFrom": {"fieldRef": field}}


def _bound_to(pod: Json) -> str | None:
    """What a pod that comes with its allocation will see; None if that doesn't fit its node."""
    notes = _annotations(pod)
    allocated = parse_allocation(str(notes.get(ALLOCATED, "")))
    if allocated is None or allocated.node != (pod.get("spec") or {}).get("nodeName"):
        return None
    return str(notes.get(VISIBLE) or ",".join(map(str, allocated.gpus)))


def _device_requests(pod: Json) -> Iterator[str]:
    spec = pod.get("spec") or {}
    for kind in _KINDS:
        for container in spec.get(kind) or ():
            resources = container.get("resources") or {}
            for amounts in (resources.get("limits") or {}, resources.get("requests") or {}):
                for name, amount in amounts.items():
                    if _PLUGIN_RESOURCES.fullmatch(name) and str(amount) not in ("0", ""):
                        yield name


def _annotations(thing: Json) -> Mapping[str, Any]:
    return (thing.get("metadata") or {}).get("annotations") or {}


def _escaped(key: str) -> str:
    return key.replace("~", "~0").replace("/", "~1")
