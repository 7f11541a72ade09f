"""Validate claims with the rules of their CustomResourceDefinition, and refuse changes of their spec.

This serves API servers that are too old to evaluate CEL themselves. Each rule has a Python form beside its
CEL form; a test checks that both give the same result. All broken rules are reported. Newer API servers refuse a
change of the spec by a ValidatingAdmissionPolicy (`configuration.policies`).
"""

from collections.abc import Iterator
from typing import Any

import msgspec

from gpufleet.kubernetes.crds.gpu_claim import ClaimDevices, ClaimSpec, GpuClaim
from gpufleet.webhook.configuration import SPEC_IS_FIXED
from gpufleet.webhook.wire import AdmissionRequest, AdmissionResponse


def validate_claim(request: AdmissionRequest) -> AdmissionResponse:
    """Allow the claim to be stored, or refuse it with every broken rule."""
    claim, before = request.object, request.old_object
    if claim is None:
        return AdmissionResponse()
    if before is not None:
        # A stored claim may break rules that are newer; removing its finalizers must still work.
        changed = before.get("spec") != claim.get("spec")
        return AdmissionResponse(refusal=f"GpuClaim: {SPEC_IS_FIXED}" if changed else "")
    try:
        msgspec.convert(claim, GpuClaim, strict=True)
    except msgspec.ValidationError as error:
        return AdmissionResponse(refusal=f"GpuClaim: {error}")
    problems = list(_broken_rules(claim["spec"]))
    return AdmissionResponse(refusal="GpuClaim: " + "; ".join(problems)) if problems else AdmissionResponse()


def _broken_rules(spec: dict[str, Any]) -> Iterator[str]:
    for path, rules, value in (
        ("spec.devices", ClaimDevices.rules, spec["devices"]),
        ("spec", ClaimSpec.rules, spec),
    ):
        for rule in rules:
            if not rule.holds(value):
                yield f"{path}.{rule.field}: {rule.message}"
