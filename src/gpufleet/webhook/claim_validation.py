"""Validate claims with the CEL rules of their CustomResourceDefinition.

This serves API servers that are too old to evaluate CEL themselves. The rules come from the types that the
CustomResourceDefinition is generated from, so both give the same result. All broken rules are reported.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

import cel
import msgspec

from gpufleet.kubernetes.crds.gpu_claim import ClaimDevices, ClaimSpec, GpuClaim
from gpufleet.kubernetes.crds.schema import Rule
from gpufleet.webhook.wire import AdmissionRequest, AdmissionResponse


def validate_claim(request: AdmissionRequest) -> AdmissionResponse:
    """Allow the claim to be stored, or refuse it with every broken rule."""
    claim, before = request.object, request.old_object
    if claim is None or (before is not None and before.get("spec") == claim.get("spec")):
        # A stored claim may break rules that are newer; removing its finalizers must still work.
        return AdmissionResponse()
    try:
        msgspec.convert(claim, GpuClaim, strict=True)
    except msgspec.ValidationError as error:
        return AdmissionResponse(refusal=f"GpuClaim: {error}")
    problems = list(_broken_rules(claim["spec"]))
    return AdmissionResponse(refusal="GpuClaim: " + "; ".join(problems)) if problems else AdmissionResponse()


def _broken_rules(spec: dict[str, Any]) -> Iterator[str]:
    devices = spec["devices"]
    if "share" in devices:  # JSON's 1 becomes a CEL int, which does not compare with a double
        devices = {**devices, "share": float(devices["share"])}
    for path, rules, value in (
        ("spec.devices", ClaimDevices.rules, devices),
        ("spec", ClaimSpec.rules, spec),
    ):
        for rule in rules:
            if not _holds(rule, value):
                yield f"{path}.{rule.field}: {rule.message}"


def _holds(rule: Rule, value: Any) -> bool:
    context = cel.Context(variables={"self": value})
    return _program(rule.rule).execute(context) is True


@cache
def _program(source: str) -> cel.Program:
    return cel.compile(source)
