"""Request the extended resource of a pod's claim, so that quotas and autoscalers count the pod."""

from collections.abc import Iterator

from gpufleet.kubernetes.crds.gpu_claim import GpuClaim
from gpufleet.kubernetes.extended_resources import NAMES, claimed
from gpufleet.kubernetes.quantities import parse_count
from gpufleet.webhook.wire import Json

_KINDS = ("containers", "initContainers")


def request_resource(pod: Json, claim: GpuClaim, warnings: list[str]) -> Iterator[Json]:
    """Yield patches after which exactly the first container requests what the claim asks for.

    Users may write the same request themselves, for example in the template of a Job that Kueue admits.
    """
    wanted = claimed(claim.spec.devices)
    spec = pod.get("spec") or {}
    for kind in _KINDS:
        for number, container in enumerate(spec.get(kind) or ()):
            first = kind == "containers" and number == 0
            ours = {wanted.resource: str(wanted.number)} if first else {}
            before = container.get("resources") or {}
            written = {name: parse_count(str(amount)) for name, amount in _ours(before).items()}
            if written and written != ({wanted.resource: wanted.number} if first else {}):
                warnings.append(
                    f"the requests of container {container.get('name', '')} for "
                    f"{', '.join(sorted(written))} were replaced: "
                    f"the claim asks for {wanted.number} of {wanted.resource}"
                )
            after = {**before}
            for part in ("requests", "limits"):
                others = {name: each for name, each in (before.get(part) or {}).items() if name not in NAMES}
                if others or ours or part in before:
                    after[part] = {**others, **ours}
            if after != before:
                yield {"op": "add", "path": f"/spec/{kind}/{number}/resources", "value": after}


def _ours(resources: Json) -> Json:
    """Return the requests for our resources; a limit is also a request."""
    both = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: amount for name, amount in both.items() if name in NAMES}
