"""What an XID (NVIDIA's error code in the kernel log) means for its GPU.

The table is in `rules`. Codes caused by the application are ignored. NVLink codes
74 and 144–150 make a GPU unhealthy only when they are fatal. The text of the log line says so, but an NVML
event has only the number; without the text they are warnings. 154 is not an error but the action that the
driver requests. Unknown codes are warnings.
"""

import re
from dataclasses import dataclass

from gpufleet.gpus.rules import RULES, Finding, Remedy, Scope, Severity, finding
from gpufleet.runtime.settings import DevicesSettings

_DEFAULTS = DevicesSettings()


@dataclass(frozen=True)
class HealthRules:
    """Rules that an operator may change."""

    warn_xids: frozenset[int] = frozenset(map(int, _DEFAULTS.warn_xids))
    """XIDs that are only warnings. Other serious XIDs make the GPU unhealthy."""
    ignored_xids: frozenset[int] = frozenset({13, 31, 43, 45, 68})
    """XIDs that the application causes."""
    corrected_per_hour: int = _DEFAULTS.corrected_per_hour
    """Correctable errors per hour of an AMD GPU above which there is a warning; 0 is no limit."""
    nvlinks: int = _DEFAULTS.nvlinks
    """NVLinks that each GPU must have; 0 compares with before and with the other GPUs."""
    least_rails: float = _DEFAULTS.least_rails
    """Percentage of network ports that must be active, below which the node is unhealthy."""
    throttle_for: float = 60.0
    """Seconds of reduced clocks after which they are a finding."""
    warn_for: float = 3600.0
    """Seconds until a warning about an event expires."""


_NVLINK = frozenset({74, *range(144, 151)})
RECOVERY_ACTION_XID = 154

_ACTIONS: dict[int, Remedy] = {
    0: Remedy.NONE,
    1: Remedy.RESET,
    2: Remedy.REBOOT,
    3: Remedy.DRAIN,
    4: Remedy.DRAIN_AND_RESET,
    6: Remedy.RESET,
    7: Remedy.REBOOT,
}
FATAL_RECORD_PREFIX = "fatal error record: "
"""Prefix of the reason for a fatal error record of an AMD GPU."""
_XID_REASON = re.compile(r"XID (\d{1,4}): ")
_CHANGED_TO = re.compile(r"\bto\s+0x([0-9a-f]+)", re.IGNORECASE)
_FATAL = re.compile(r"(?<!non[- ])\bfatal\b", re.IGNORECASE)


def classify_xid(code: int, message: str = "", rules: HealthRules | None = None) -> Finding | None:
    """Return the finding for an XID; None if it says nothing about the GPU."""
    rules = rules or HealthRules()
    if code in rules.ignored_xids:
        return None
    if code == RECOVERY_ACTION_XID:
        return _classify_recovery_text(message)
    rule = RULES.get(f"xid-{code}")
    if rule is None:
        return Finding(f"xid-{code}", Severity.WARNING, f"XID {code}: unknown code", expires=True)
    meaning = "NVLink error" if code in _NVLINK else rule.meaning
    serious = code not in rules.warn_xids and (code not in _NVLINK or bool(_FATAL.search(message)))
    severity = Severity.UNHEALTHY if serious else Severity.WARNING
    return finding(rule.signal, f"XID {code}: {meaning}", severity=severity)


def classify_sxid(code: int, message: str) -> Finding:
    """Return the finding for an error of an NVSwitch."""
    fatal = bool(_FATAL.search(message))
    reason = f"SXid {code}: {message[:200] or 'error of an NVSwitch'}"
    if fatal:
        return finding("sxid", reason)
    return Finding("sxid-warning", Severity.WARNING, reason, scope=Scope.ISLAND, expires=True)


def findings_from_reason(reason: str, rules: HealthRules | None = None) -> list[Finding]:
    """Return the event findings in a published reason; conditions are observed again anyway."""
    found = []
    for part in reason.split("; "):
        if match := _XID_REASON.match(part):
            # It made the GPU unhealthy, so an NVLink error was fatal.
            event = classify_xid(int(match[1]), "fatal", rules)
            found += [event] if event is not None and event.severity is Severity.UNHEALTHY else []
        elif part.startswith(FATAL_RECORD_PREFIX):
            found.append(finding("cper", part))
    return found


def classify_recovery_action(action: str) -> Finding | None:
    """Return the finding for the action that the driver requests; None if it requests none."""
    if action == Remedy.NONE:
        return None
    remedy = Remedy(action)
    reason = f"the driver requests: {action}"
    scope = Scope.NODE if remedy is Remedy.REBOOT else Scope.GPU
    return finding("recovery-action", reason, remedy=remedy, scope=scope)


def _classify_recovery_text(message: str) -> Finding | None:
    match = _CHANGED_TO.search(message)
    action = _ACTIONS.get(int(match[1], 16)) if match else None
    if action is None:
        reason = "XID 154: the recovery action changed to an unknown one"
        return Finding("xid-154", Severity.WARNING, reason, expires=True)
    return classify_recovery_action(action)
