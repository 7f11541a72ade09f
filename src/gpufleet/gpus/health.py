"""Whether each GPU of a machine can be used, why not, and since when.

The ledger takes observations (devices, readings, events, a driver that is silent) and keeps one
verdict for each GPU. Two sorts of findings stand behind it:

- conditions, which every look confirms or clears: the GPU is gone, a remapping is pending, the driver
  asks for a reset, too many uncorrectable errors;
- events, which are told once and stay: an XID that puts a GPU out stays until the GPU was reset (its
  energy counter or its error counters start again, it comes back after it was lost, or the driver
  takes back the action that it asked for); a warning is forgotten after a while.

An event outlives the process that heard it: `recall` takes what an earlier ledger published, and lets it go if
the GPU has used less energy than it would have since then, so that a reset that nobody saw counts too.

A GPU is Unhealthy if any finding puts it out, else Unknown while nobody can look, else Healthy.
A finding about the whole node puts every GPU of it out. The ledger is pure: time comes with each call.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from gpufleet.gpus.xid import (
    FATAL_RECORD,
    Finding,
    HealthRules,
    Severity,
    XidRemedy,
    judge_recovery,
    judge_xid,
    recalled,
)
from gpufleet.model.device import Device, DeviceEvent, DeviceReading, EventKind, Vendor
from gpufleet.model.node import Health

__all__ = ["Finding", "HealthRules", "HealthTracker", "HealthVerdict", "Severity", "XidRemedy"]

_KEPT_CHANGES = 32
_KEPT_EVENTS = 256
_NOT_SEEN = "nobody has looked at this GPU yet"


@dataclass(frozen=True, slots=True)
class HealthVerdict:
    """The health of one GPU."""

    health: Health
    reason: str
    since: float
    """When the health last changed; the reason may be newer."""
    remedy: XidRemedy = XidRemedy.NONE
    warnings: tuple[str, ...] = ()
    mended: str = ""
    """What made a GPU Healthy that was not."""


@dataclass
class _Case:
    """What is known of one GPU."""

    device: Device
    verdict: HealthVerdict
    findings: dict[str, tuple[Finding, float]] = field(default_factory=dict)
    energy: float | None = None
    errors: int | None = None
    recalled_from: float | None = None
    """Since when findings hold that an earlier ledger or an event told, until the next reading."""
    mended: str = ""
    changes: deque[HealthVerdict] = field(default_factory=lambda: deque(maxlen=_KEPT_CHANGES))


class HealthTracker:
    """Keeps the verdicts of one machine's GPUs."""

    def __init__(self, rules: HealthRules | None = None) -> None:
        self._rules = rules or HealthRules()
        self._cases: dict[str, _Case] = {}
        self._node: dict[str, Finding] = {}
        self._unclaimed: deque[DeviceEvent] = deque(maxlen=_KEPT_EVENTS)
        self._silent: str | None = None

    def verdict(self, uuid: str) -> HealthVerdict:
        """The health of one GPU; Unknown for one never seen."""
        case = self._cases.get(uuid)
        return case.verdict if case else HealthVerdict(Health.UNKNOWN, _NOT_SEEN, 0.0)

    def verdicts(self) -> dict[str, HealthVerdict]:
        """The health of every GPU seen so far, by uuid."""
        return {uuid: case.verdict for uuid, case in self._cases.items()}

    def changes(self, uuid: str) -> tuple[HealthVerdict, ...]:
        """The last verdicts of one GPU, oldest first; the last one is the present."""
        case = self._cases.get(uuid)
        return tuple(case.changes) if case else ()

    def see_devices(self, devices: Iterable[Device], at: float) -> None:
        """Take the inventory in: new GPUs, lost ones, ones that are back."""
        self._silent = None
        for device in devices:
            case = self._cases.get(device.uuid)
            if case is None:
                case = self._cases[device.uuid] = _Case(device, HealthVerdict(Health.UNKNOWN, _NOT_SEEN, at))
            elif case.device.fault and not device.fault:
                _forget_until_reset(case, "it is back")
            case.device = device
            self._hold(case, "fault", _fault(device.fault), at)
        for event in [event for event in self._unclaimed if self._case_of(event)]:
            self._unclaimed.remove(event)
            self._take(event)
        self._settle(at)

    def recall(self, uuid: str, reason: str, since: float) -> None:
        """Hold what an earlier ledger said of a GPU that was seen, as far as nobody will tell it again."""
        case = self._cases.get(uuid)
        findings = recalled(reason, self._rules)
        if case is not None and findings:
            for finding in findings:
                self._hold(case, finding.key, finding, since)
            case.recalled_from = since
            self._settle(since)

    def see_readings(self, readings: Iterable[DeviceReading]) -> None:
        """Take the counters and flags of each reading in."""
        at = 0.0
        for reading in readings:
            at = max(at, reading.at)
            case = self._cases.get(reading.uuid)
            if case is not None:
                self._judge(case, reading)
        if at:
            self._silent = None
            self._settle(at)

    def see_events(self, events: Iterable[DeviceEvent]) -> None:
        """Take XIDs and error records in; those of a GPU not yet seen wait for it."""
        at = 0.0
        for event in events:
            at = max(at, event.at)
            self._take(event)
        if at:
            self._settle(at)

    def see_silence(self, reason: str, at: float) -> None:
        """The driver does not answer: what nobody can look at is Unknown."""
        self._silent = reason
        self._settle(at)

    def see_node(self, key: str, finding: Finding | None, at: float) -> None:
        """Hold a finding about the machine itself (InfiniBand down), or let it go with None."""
        if finding is None:
            self._node.pop(key, None)
        else:
            self._node[key] = replace(finding, whole_node=True)
        self._settle(at)

    def forgive(self, uuid: str, at: float) -> None:
        """Drop what is held against the GPU, on an operator's word; conditions come back if they are true."""
        case = self._cases.get(uuid)
        if case is not None:
            case.findings.clear()
            self._settle(at)

    def _judge(self, case: _Case, reading: DeviceReading) -> None:
        if _was_reset(case, reading):
            _forget_until_reset(case, "it was reset")
        case.recalled_from = None
        case.energy = reading.energy_joules if reading.energy_joules is not None else case.energy
        case.errors = reading.ecc_uncorrected if reading.ecc_uncorrected is not None else case.errors
        self._hold(case, "fault", _fault(reading.fault or case.device.fault), reading.at)
        if reading.remap_failed is not None:
            failed = Finding("remap-failed", Severity.OUT, "row remapping failed", XidRemedy.REPLACE)
            self._hold(case, "remap-failed", failed if reading.remap_failed else None, reading.at)
        if reading.remap_pending is not None:
            pending = Finding(
                "remap-pending", Severity.OUT, "row remapping waits for a reset", XidRemedy.RESET
            )
            self._hold(case, "remap-pending", pending if reading.remap_pending else None, reading.at)
        if reading.recovery_action is not None:
            finding = judge_recovery(reading.recovery_action)
            if finding is None and "recovery-action" in case.findings:
                _forget_until_reset(case, "the driver asks for nothing any more")
            self._hold(case, "recovery-action", finding, reading.at)
        if reading.ecc_uncorrected is not None:
            self._hold(case, "ecc", self._judge_errors(case.device.vendor, reading), reading.at)

    def _judge_errors(self, vendor: Vendor, reading: DeviceReading) -> Finding | None:
        if vendor is Vendor.AMD:
            blocks = reading.ecc_uncorrected_blocks or (("GPU", reading.ecc_uncorrected or 0),)
            bad = [f"{name} {count}" for name, count in blocks if count > self._rules.ecc_threshold]
            reason = f"uncorrectable ECC errors: {', '.join(bad)}"
            return Finding("ecc", Severity.OUT, reason, XidRemedy.RESET) if bad else None
        if reading.ecc_uncorrected:
            return Finding(
                "ecc", Severity.WARN, f"uncorrectable ECC errors since reset: {reading.ecc_uncorrected}"
            )
        return None

    def _take(self, event: DeviceEvent) -> None:
        case = self._case_of(event)
        if case is None:
            self._unclaimed.append(event)
            return
        finding = self._judge_event(event)
        if finding is not None:
            held = case.findings.get(finding.key)
            if (
                held is None or held[0].severity <= finding.severity
            ):  # the bare number of a fatal XID may follow its text
                self._hold(case, finding.key, finding, event.at)
            if (
                finding.severity is Severity.OUT
            ):  # it may be over: AMD's records are told long after, and anew
                case.recalled_from = max(event.at, case.recalled_from or 0.0)
        elif event.code == 154:
            _forget_until_reset(case, "the driver asks for nothing any more")

    def _judge_event(self, event: DeviceEvent) -> Finding | None:
        if event.kind is EventKind.XID:
            return judge_xid(event.code, event.message, self._rules)
        if event.fatal:
            return Finding("cper", Severity.OUT, FATAL_RECORD + event.message, XidRemedy.RESET)
        return Finding("cper", Severity.WARN, f"error record: {event.message}")

    def _case_of(self, event: DeviceEvent) -> _Case | None:
        if event.uuid is not None:
            return self._cases.get(event.uuid)
        cases = (
            c for c in self._cases.values() if event.pci_bus_id and c.device.pci_bus_id == event.pci_bus_id
        )
        return next(cases, None)

    @staticmethod
    def _hold(case: _Case, key: str, finding: Finding | None, at: float) -> None:
        if finding is None:
            case.findings.pop(key, None)
        else:
            since = case.findings[key][1] if key in case.findings else at
            fresh = finding.severity is Severity.WARN and key != "ecc"
            case.findings[key] = (finding, at if fresh else since)

    def _settle(self, at: float) -> None:
        """Let old warnings go and say each verdict anew."""
        whole_node = [*self._node.values()]
        for case in self._cases.values():
            stale = [
                key
                for key, (finding, since) in case.findings.items()
                if finding.severity is Severity.WARN and key != "ecc" and at - since > self._rules.warn_for
            ]
            for key in stale:
                del case.findings[key]
            whole_node += [
                replace(finding, reason=f"GPU {case.device.index}: {finding.reason}")
                for finding, _ in case.findings.values()
                if finding.whole_node
            ]
        for case in self._cases.values():
            self._say(case, whole_node, at)

    def _say(self, case: _Case, whole_node: list[Finding], at: float) -> None:
        own = [finding for finding, _ in case.findings.values()]
        out = [f for f in own if f.severity is Severity.OUT]
        out += [f for f in whole_node if f.severity is Severity.OUT] if not out else []
        health, reason, remedy = Health.HEALTHY, "", XidRemedy.NONE
        if out:
            health, remedy = Health.UNHEALTHY, max(out, key=lambda f: _WEIGHT[f.remedy]).remedy
            reason = "; ".join(dict.fromkeys(f.reason for f in out))
        elif self._silent is not None:
            health, reason = Health.UNKNOWN, self._silent
        warnings = tuple(f.reason for f in own if f.severity is Severity.WARN)
        old = case.verdict
        same = health is old.health
        mended = old.mended if same else _mended(old, health, case.mended)
        case.mended = ""
        verdict = HealthVerdict(health, reason, old.since if same else at, remedy, warnings, mended)
        if verdict != old or not case.changes:
            case.verdict = verdict
            case.changes.append(verdict)


_WEIGHT = {remedy: weight for weight, remedy in enumerate(XidRemedy)}


def _mended(old: HealthVerdict, health: Health, why: str) -> str:
    if health is not Health.HEALTHY or old.reason == _NOT_SEEN:
        return ""
    return why or ("it can be read again" if old.health is Health.UNKNOWN else "what was wrong is gone")


def _fault(text: str | None) -> Finding | None:
    return Finding("fault", Severity.OUT, text, XidRemedy.RESET) if text else None


def _was_reset(case: _Case, reading: DeviceReading) -> bool:
    """Counters that only grow have started again."""
    energy = (
        case.energy is not None and reading.energy_joules is not None and reading.energy_joules < case.energy
    )
    errors = (
        case.errors is not None
        and reading.ecc_uncorrected is not None
        and reading.ecc_uncorrected < case.errors
    )
    return energy or errors or _began_anew(case.recalled_from, reading)


def _began_anew(since: float | None, reading: DeviceReading) -> bool:
    """Whether the GPU has used less than half of what it would have since then, as idle as it is now."""
    if since is None or reading.energy_joules is None or reading.power_watts is None:
        return False
    return reading.energy_joules < reading.power_watts / 2 * (reading.at - since)


def _forget_until_reset(case: _Case, why: str) -> None:
    """The GPU was reset: what events told of it before is over."""
    case.mended = why
    for key in [k for k, (f, _) in case.findings.items() if f.severity is Severity.OUT]:
        del case.findings[key]
