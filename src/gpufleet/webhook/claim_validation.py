"""Check claims by the rules of their definition, for servers too old to check CEL themselves.

The rules are read from the same types that the CustomResourceDefinition is made of, and evaluated as the
API server does it, so that both say the same. Of a claim that breaks several rules all are told.
"""

from collections.abc import Iterator
from functools import cache
from typing import Any

import cel
import msgspec

from gpufleet.kubernetes.crds.gpu_claim import ClaimDevices, ClaimSpec, GpuClaim
from gpufleet.kubernetes.crds.schema import Rule
from gpufleet.webhook.wire import AdmissionRequest, AdmissionVerdict


def judge_claim(asked: AdmissionRequest) -> AdmissionVerdict:
    """Whether the claim may be stored."""
    claim, before = asked.object, asked.old_object
    if claim is None or (before is not None and before.get("spec") == claim.get("spec")):
        return (
            AdmissionVerdict()
        )  # what is stored stays, however rules have changed: it has to be let go of, too
    try:
        msgspec.convert(claim, GpuClaim, strict=True)
    except msgspec.ValidationError as error:
        return AdmissionVerdict(refusal=f"GpuClaim: {error}")
    problems = list(_broken(claim["spec"]))
    return AdmissionVerdict(refusal="GpuClaim: " + "; ".join(problems)) if problems else AdmissionVerdict()


def _broken(spec: dict[str, Any]) -> Iterator[str]:
    devices = spec["devices"]
    if "share" in devices:  # JSON's 1 is CEL's int, which is not compared with a double
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
