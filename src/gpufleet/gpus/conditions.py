"""Judge the readings of one GPU by the rules; every reading confirms or clears these conditions.

The link of an idle GPU is slower to save power, so its speed is judged only under load, and only if two readings in a
row agree. Reduced clocks are judged when they last: a short peak of power or heat is normal.
"""

from dataclasses import dataclass

from gpufleet.gpus.rules import Finding, Severity, finding
from gpufleet.gpus.xid import HealthRules, classify_recovery_action
from gpufleet.model.device import Device, DeviceReading, Vendor

_BUSY_PERCENT = 50
_THROTTLES = {
    "thermal": ("hardware-thermal", "software-thermal"),
    "power-brake": ("power-brake",),
}


@dataclass
class ReadingHistory:
    """What must be remembered of earlier readings of one GPU."""

    slow_link: bool = False
    recoveries: int | None = None
    corrected: tuple[float, int] | None = None
    """Time and count of correctable errors at the start of the hour."""
    throttled: dict[str, float] | None = None
    """Since when the clocks are reduced, by signal."""


def judge(
    device: Device, reading: DeviceReading, history: ReadingHistory, rules: HealthRules
) -> dict[str, Finding | None]:
    """Return the findings by signal; None clears one. Signals that the driver does not report are left out."""
    found: dict[str, Finding | None] = {}
    for signal, flag in (("remap-failed", reading.remap_failed), ("remap-pending", reading.remap_pending)):
        if flag is not None:
            found[signal] = finding(signal) if flag else None
    if reading.recovery_action is not None:
        found["recovery-action"] = classify_recovery_action(reading.recovery_action)
    if reading.ecc_uncorrected is not None:
        found["ecc"] = _ecc(device.vendor, reading)
    found |= _pcie(device, reading, history)
    found |= _fabric(reading)
    found |= _throttles(reading, history, rules)
    found |= _bad_pages(reading)
    found |= _counters(device.vendor, reading, history, rules)
    return found


def _ecc(vendor: Vendor, reading: DeviceReading) -> Finding | None:
    if vendor is Vendor.AMD:
        blocks = reading.ecc_uncorrected_blocks or (("GPU", reading.ecc_uncorrected or 0),)
        bad = [f"{name} {count}" for name, count in blocks if count]
        reason = f"uncorrectable ECC errors: {', '.join(bad)}"
        return finding("ecc", reason, severity=Severity.UNHEALTHY) if bad else None
    if reading.ecc_uncorrected:
        return finding("ecc", f"uncorrectable ECC errors since reset: {reading.ecc_uncorrected}")
    return None


def _pcie(device: Device, reading: DeviceReading, history: ReadingHistory) -> dict[str, Finding | None]:
    found: dict[str, Finding | None] = {}
    width, most = reading.pcie_width, device.pcie_width
    if width and most:
        reason = f"the PCIe link has {width} of {most} lanes"
        found["pcie-width"] = finding("pcie-width", reason) if width < most else None
    generation, fastest = reading.pcie_generation, device.pcie_generation
    if generation and fastest and (reading.utilization_percent or 0) >= _BUSY_PERCENT:
        slow = generation < fastest
        if not slow:
            found["pcie-speed"] = None
        elif history.slow_link:
            reason = f"the PCIe link runs at generation {generation} of {fastest} under load"
            found["pcie-speed"] = finding("pcie-speed", reason)
        history.slow_link = slow
    return found


def _fabric(reading: DeviceReading) -> dict[str, Finding | None]:
    if reading.fabric is None:
        return {}
    joined = reading.fabric == "completed"
    problem = reading.fabric_problem
    down = (
        None if joined else finding("fabric", f"the NVLink fabric is not ready: {problem or reading.fabric}")
    )
    degraded = f"the NVLink fabric is degraded: {problem}"
    return {
        "fabric": down,
        "fabric-degraded": finding("fabric-degraded", degraded) if joined and problem else None,
    }


def _throttles(
    reading: DeviceReading, history: ReadingHistory, rules: HealthRules
) -> dict[str, Finding | None]:
    if reading.throttle_reasons is None:
        return {}
    since = history.throttled = history.throttled or {}
    found: dict[str, Finding | None] = {}
    for signal, reasons in _THROTTLES.items():
        if not set(reasons) & set(reading.throttle_reasons):
            since.pop(signal, None)
            found[signal] = None
        elif reading.at - since.setdefault(signal, reading.at) >= rules.throttle_for:
            found[signal] = finding(signal)
    return found


def _bad_pages(reading: DeviceReading) -> dict[str, Finding | None]:
    found: dict[str, Finding | None] = {}
    if reading.bad_pages_pending is not None:
        reason = f"{reading.bad_pages_pending} bad memory pages are retired after a reset"
        found["bad-pages-pending"] = (
            finding("bad-pages-pending", reason) if reading.bad_pages_pending else None
        )
    if reading.bad_pages is not None and reading.bad_pages_limit:
        reason = f"{reading.bad_pages} bad memory pages of at most {reading.bad_pages_limit}"
        full = reading.bad_pages >= reading.bad_pages_limit
        found["bad-pages"] = finding("bad-pages", reason) if full else None
    return found


def _counters(
    vendor: Vendor, reading: DeviceReading, history: ReadingHistory, rules: HealthRules
) -> dict[str, Finding | None]:
    """Return warnings about counters that have grown; they expire."""
    found: dict[str, Finding | None] = {}
    if reading.nvlink_recoveries is not None:
        if history.recoveries is not None and reading.nvlink_recoveries > history.recoveries:
            found["nvlink-errors"] = finding("nvlink-errors")
        history.recoveries = reading.nvlink_recoveries
    if vendor is Vendor.AMD and rules.corrected_per_hour and reading.ecc_corrected is not None:
        start, count = history.corrected or (reading.at, reading.ecc_corrected)
        if reading.at - start >= 3600 or reading.ecc_corrected < count:
            start, count = reading.at, reading.ecc_corrected
        history.corrected = (start, count)
        if reading.ecc_corrected - count > rules.corrected_per_hour:
            found["ecc-corrected"] = finding("ecc-corrected")
    return found
