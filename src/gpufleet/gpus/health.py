"""Track whether each GPU of a machine is usable, why not, and since when.

The tracker takes observations (devices, readings, events, an unresponsive driver) and keeps one verdict
per GPU, based on two sorts of findings:

- Conditions, which every observation confirms or clears (`conditions`): the GPU is missing, a row remapping is
  pending, the driver requests a reset, links are down.
- Events, which are reported once and stay. An XID that makes a GPU unhealthy stays until the GPU was
  reset: its energy or error counters restart, it comes back after it was lost, or the driver withdraws
  the action that it requested. A warning expires after a while.

Events outlive the process: `restore` takes the published reason of an earlier tracker. It is dropped if
the GPU has used less energy than it would have since then, because then it was reset in between.

A GPU is Unhealthy if any finding makes it so, else Unknown while the driver does not respond, else
Healthy. A finding about the whole node makes all its GPUs unhealthy, one about the island those on NVSwitches. Time is an argument of every call.
"""

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from gpufleet.gpus.conditions import ReadingHistory, judge
from gpufleet.gpus.nvlinks import ExpectedLinks
from gpufleet.gpus.rules import Finding, Remedy, Scope, Severity, finding
from gpufleet.gpus.xid import (
    FATAL_RECORD_PREFIX,
    RECOVERY_ACTION_XID,
    HealthRules,
    classify_sxid,
    classify_xid,
    findings_from_reason,
)
from gpufleet.model.device import Device, DeviceEvent, DeviceReading, EventKind
from gpufleet.model.node import Health

_MAX_UNMATCHED_EVENTS = 256
_NOT_CHECKED = "not checked yet"
_ACTION_WITHDRAWN = "the driver no longer requests an action"


@dataclass(frozen=True, slots=True)
class HealthVerdict:
    """The health of one GPU."""

    health: Health
    reason: str
    since: float
    """When the health last changed; the reason may be newer."""
    remedy: Remedy = Remedy.NONE
    warnings: tuple[str, ...] = ()
    recovery_reason: str = ""
    """Why the GPU became Healthy again."""


@dataclass(frozen=True, slots=True)
class OpenFinding:
    """A finding with its GPU, None for one about the island or node, and since when it holds."""

    gpu: int | None
    finding: Finding
    since: float
    seen_at: float
    """When an event was last reported."""


@dataclass
class _GpuState:
    """Findings and counters of one GPU."""

    device: Device
    verdict: HealthVerdict
    findings: dict[str, OpenFinding] = field(default_factory=dict)
    history: ReadingHistory = field(default_factory=ReadingHistory)
    reset_at: float = 0.0
    """When the last reset was noticed."""
    energy: float | None = None
    errors: int | None = None
    check_reset_since: float | None = None
    """The time of the newest restored or late finding: the next reading tells whether the GPU was reset since."""
    recovery_reason: str = ""


class HealthTracker:
    """Keep the verdicts of one machine's GPUs."""

    def __init__(self, rules: HealthRules | None = None) -> None:
        self._rules = rules or HealthRules()
        self._gpus: dict[str, _GpuState] = {}
        self._node: dict[str, OpenFinding] = {}
        self.links = ExpectedLinks(self._rules.nvlinks)
        self._unmatched: deque[DeviceEvent] = deque(maxlen=_MAX_UNMATCHED_EVENTS)
        self._unresponsive: str | None = None

    def verdict(self, uuid: str) -> HealthVerdict:
        """Return the health of one GPU; Unknown if it was never observed."""
        gpu = self._gpus.get(uuid)
        return gpu.verdict if gpu else HealthVerdict(Health.UNKNOWN, _NOT_CHECKED, 0.0)

    def verdicts(self) -> dict[str, HealthVerdict]:
        """Return the health of all observed GPUs by uuid."""
        return {uuid: gpu.verdict for uuid, gpu in self._gpus.items()}

    def open_findings(self) -> list[OpenFinding]:
        """Return all findings, those about the node first."""
        return [
            *self._node.values(),
            *(each for gpu in self._gpus.values() for each in gpu.findings.values()),
        ]

    def observe_devices(self, devices: Iterable[Device], at: float) -> None:
        """Add new GPUs, and update lost and returned ones."""
        self._unresponsive = None
        devices = tuple(devices)
        down = self.links.check(devices)
        for device in devices:
            gpu = self._gpus.get(device.uuid)
            if gpu is None:
                unknown = HealthVerdict(Health.UNKNOWN, _NOT_CHECKED, at)
                gpu = self._gpus[device.uuid] = _GpuState(device, unknown)
            elif gpu.device.fault and not device.fault:
                _clear_after_reset(gpu, "it is back", at)
            gpu.device = device
            self._set(gpu, "nvlink-down", down.get(device.uuid), at)
            self._set(gpu, "fault", _fault(device.fault), at)
        for event in [event for event in self._unmatched if self._gpu_of(event)]:
            self._unmatched.remove(event)
            self._add_event(event)
        self._update_verdicts(at)

    def restore(self, uuid: str, reason: str, since: float) -> None:
        """Restore the event findings of an observed GPU from the published reason of an earlier tracker."""
        gpu = self._gpus.get(uuid)
        findings = findings_from_reason(reason, self._rules)
        if gpu is not None and findings:
            for each in findings:
                self._set(gpu, each.key, each, since)
            gpu.check_reset_since = since
            self._update_verdicts(since)

    def observe_readings(self, readings: Iterable[DeviceReading]) -> None:
        """Update findings from the counters and flags of readings."""
        at = 0.0
        for reading in readings:
            at = max(at, reading.at)
            gpu = self._gpus.get(reading.uuid)
            if gpu is not None:
                self._add_reading(gpu, reading)
        if at:
            self._unresponsive = None
            self._update_verdicts(at)

    def observe_events(self, events: Iterable[DeviceEvent]) -> None:
        """Add XIDs and error records; keep those of GPUs that are not known yet."""
        at = 0.0
        for event in events:
            at = max(at, event.at)
            self._add_event(event)
        if at:
            self._update_verdicts(at)

    def mark_unresponsive(self, reason: str, at: float) -> None:
        """Make GPUs without findings Unknown, because the driver does not respond."""
        self._unresponsive = reason
        self._update_verdicts(at)

    def set_node_finding(self, key: str, finding: Finding | None, at: float) -> None:
        """Set a finding about the island or the whole machine (network ports down), or clear it with None."""
        if finding is None:
            self._node.pop(key, None)
        else:
            self._node[key] = _opened(self._node.get(key), None, finding, at)
        self._update_verdicts(at)

    def set_gpu_findings(self, key: str, findings: Mapping[int, Finding], at: float) -> None:
        """Set a finding on the GPUs with these indexes, and clear it on all others."""
        for gpu in self._gpus.values():
            self._set(gpu, key, findings.get(gpu.device.index), at)
        self._update_verdicts(at)

    def _add_reading(self, gpu: _GpuState, reading: DeviceReading) -> None:
        if _was_reset(gpu, reading):
            _clear_after_reset(gpu, "it was reset", reading.at)
            self._clear_switch_errors()
        gpu.check_reset_since = None
        gpu.energy = reading.energy_joules if reading.energy_joules is not None else gpu.energy
        gpu.errors = reading.ecc_uncorrected if reading.ecc_uncorrected is not None else gpu.errors
        self._set(gpu, "fault", _fault(reading.fault or gpu.device.fault), reading.at)
        for key, found in judge(gpu.device, reading, gpu.history, self._rules).items():
            if key == "recovery-action" and found is None and key in gpu.findings:
                _clear_after_reset(gpu, _ACTION_WITHDRAWN, reading.at)
            if found is not None or not (key in gpu.findings and gpu.findings[key].finding.expires):
                self._set(gpu, key, found, reading.at)

    def _clear_switch_errors(self) -> None:
        """Clear the errors of NVSwitches if every GPU was reset since."""
        oldest = min((gpu.reset_at for gpu in self._gpus.values()), default=0.0)
        if "sxid" in self._node and oldest > self._node["sxid"].since:
            del self._node["sxid"]

    def _add_event(self, event: DeviceEvent) -> None:
        if event.kind is EventKind.SXID:
            found = classify_sxid(event.code, event.message)
            self._node[found.key] = _opened(self._node.get(found.key), None, found, event.at)
            return
        gpu = self._gpu_of(event)
        if gpu is None:
            self._unmatched.append(event)
            return
        finding = self._classify_event(event)
        if finding is not None:
            current = gpu.findings.get(finding.key)
            # NVML may report a fatal XID by number after the kernel log reported it with its text.
            if current is None or current.finding.severity <= finding.severity:
                self._set(gpu, finding.key, finding, event.at)
            # The GPU may have been reset since: AMD reports records long after the fact, and repeats them.
            if finding.severity is Severity.UNHEALTHY:
                gpu.check_reset_since = max(event.at, gpu.check_reset_since or 0.0)
        elif event.code == RECOVERY_ACTION_XID:
            _clear_after_reset(gpu, _ACTION_WITHDRAWN, event.at)

    def _classify_event(self, event: DeviceEvent) -> Finding | None:
        if event.kind is EventKind.XID:
            return classify_xid(event.code, event.message, self._rules)
        if event.fatal:
            return finding("cper", FATAL_RECORD_PREFIX + event.message)
        return finding("cper", f"error record: {event.message}", severity=Severity.WARNING)

    def _gpu_of(self, event: DeviceEvent) -> _GpuState | None:
        if event.uuid is not None:
            return self._gpus.get(event.uuid)
        if not event.pci_bus_id:
            return None
        return next((gpu for gpu in self._gpus.values() if gpu.device.pci_bus_id == event.pci_bus_id), None)

    @staticmethod
    def _set(gpu: _GpuState, key: str, finding: Finding | None, at: float) -> None:
        """Set or clear a finding; one that stays keeps its first time."""
        if finding is None:
            gpu.findings.pop(key, None)
        else:
            gpu.findings[key] = _opened(gpu.findings.get(key), gpu.device.index, finding, at)

    def _update_verdicts(self, at: float) -> None:
        """Drop expired warnings and compute all verdicts."""
        self._drop_expired(self._node, at)
        shared = [each.finding for each in self._node.values()]
        for gpu in self._gpus.values():
            self._drop_expired(gpu.findings, at)
            shared += [
                replace(each.finding, reason=f"GPU {gpu.device.index}: {each.finding.reason}")
                for each in gpu.findings.values()
                if each.finding.scope is not Scope.GPU
            ]
        for gpu in self._gpus.values():
            about = [each for each in shared if each.scope is Scope.NODE or _on_switch(gpu.device)]
            gpu.verdict = self._verdict(gpu, about, at)
            gpu.recovery_reason = ""

    def _drop_expired(self, findings: dict[str, OpenFinding], at: float) -> None:
        expired = [
            key
            for key, each in findings.items()
            if each.finding.expires and at - each.seen_at > self._rules.warn_for
        ]
        for key in expired:
            del findings[key]

    def _verdict(self, gpu: _GpuState, shared: list[Finding], at: float) -> HealthVerdict:
        own = [each.finding for each in gpu.findings.values()]
        causes = [finding for finding in own if finding.severity is Severity.UNHEALTHY]
        causes = causes or [finding for finding in shared if finding.severity is Severity.UNHEALTHY]
        health, reason, remedy = Health.HEALTHY, "", Remedy.NONE
        if causes:
            health, remedy = Health.UNHEALTHY, max((cause.remedy for cause in causes), key=_REMEDIES.index)
            reason = "; ".join(dict.fromkeys(cause.reason for cause in causes))
        elif self._unresponsive is not None:
            health, reason = Health.UNKNOWN, self._unresponsive
        warnings = tuple(finding.reason for finding in own if finding.severity < Severity.UNHEALTHY)
        old = gpu.verdict
        same = health is old.health
        recovery_reason = old.recovery_reason if same else _recovery_reason(old, health, gpu.recovery_reason)
        return HealthVerdict(health, reason, old.since if same else at, remedy, warnings, recovery_reason)


_REMEDIES = tuple(Remedy)


def _opened(before: OpenFinding | None, gpu: int | None, finding: Finding, at: float) -> OpenFinding:
    """Return the finding with the time since when it holds."""
    return OpenFinding(gpu, finding, before.since if before else at, at)


def _on_switch(device: Device) -> bool:
    return any(link.to_switch for link in device.links)


def _recovery_reason(old: HealthVerdict, health: Health, reason: str) -> str:
    if health is not Health.HEALTHY or old.reason == _NOT_CHECKED:
        return ""
    return reason or ("the driver answers again" if old.health is Health.UNKNOWN else "the problem is gone")


def _fault(text: str | None) -> Finding | None:
    return finding("fault", text) if text else None


def _was_reset(gpu: _GpuState, reading: DeviceReading) -> bool:
    """Return whether a counter that only grows has restarted."""
    energy, errors = reading.energy_joules, reading.ecc_uncorrected
    return (
        (gpu.energy is not None and energy is not None and energy < gpu.energy)
        or (gpu.errors is not None and errors is not None and errors < gpu.errors)
        or _used_too_little_energy(gpu.check_reset_since, reading)
    )


def _used_too_little_energy(since: float | None, reading: DeviceReading) -> bool:
    """Return whether the energy counter is below half of what the present power would have used since then."""
    if since is None or reading.energy_joules is None or reading.power_watts is None:
        return False
    return reading.energy_joules < reading.power_watts / 2 * (reading.at - since)


def _clear_after_reset(gpu: _GpuState, reason: str, at: float) -> None:
    """Clear all findings that made the GPU unhealthy."""
    gpu.recovery_reason, gpu.reset_at = reason, at
    serious = [key for key, each in gpu.findings.items() if each.finding.severity is Severity.UNHEALTHY]
    for key in serious:
        del gpu.findings[key]
