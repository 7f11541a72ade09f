"""Judge the health of a GPU without an agent, from the faults that its exporter reports.

Exporters report states and counts that may never clear by themselves, so a fault stands for as
long as it is reported. Where an agent runs on the node, its verdict is used instead.
"""

from collections.abc import Iterable

from gpufleet.gpus.rules import Severity
from gpufleet.gpus.xid import classify_xid
from gpufleet.model.reading import Fault, FaultKind

_REASONS = {
    FaultKind.ROW_REMAP_FAILED: "row remapping failed",
    FaultKind.FATAL_EVENT: "fatal hardware event",
    FaultKind.UNHEALTHY: "its exporter calls it unhealthy",
    FaultKind.RECOVERY_ACTION: "the driver asks for a recovery action",
}


def unusable_reason(faults: Iterable[Fault], vendor: str) -> str:
    """Return why the GPU must not be used, or an empty string."""
    reasons = sorted(filter(None, (_reason(fault, vendor) for fault in faults)))
    return "; ".join(reasons)


def _reason(fault: Fault, vendor: str) -> str:
    if not fault.count:
        return ""
    if fault.kind is FaultKind.XID:
        finding = classify_xid(fault.code)
        return finding.reason if finding is not None and finding.severity is Severity.UNHEALTHY else ""
    if fault.kind is FaultKind.ECC_UNCORRECTED:
        # On NVIDIA the XIDs decide, because the count includes contained errors.
        return f"{fault.count:g} uncorrectable memory errors" if vendor.lower() == "amd" else ""
    if fault.kind is FaultKind.RECOVERY_ACTION and not fault.code:
        return ""
    return _REASONS[fault.kind]
