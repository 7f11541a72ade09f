"""What an XID (NVIDIA's error code in the kernel log) means for its GPU.

Tables map codes to meaning, severity and remedy. Codes caused by the application are ignored. NVLink codes
74 and 144–150 make a GPU unhealthy only when they are fatal. The text of the log line says so, but an NVML
event has only the number; without the text they are warnings. 154 is not an error but the action that the
driver requests. Unknown codes are warnings.
"""

import re
from dataclasses import dataclass
from enum import IntEnum, StrEnum

from gpufleet.runtime.settings import DevicesSettings

_DEFAULTS = DevicesSettings()


class Severity(IntEnum):
    """The severity of a finding."""

    WARNING = 1
    """The GPU stays in use."""
    UNHEALTHY = 2
    """The GPU must not be allocated."""


class Remedy(StrEnum):
    """What makes the GPU usable again, in order of effort."""

    NONE = "none"
    RESET = "reset"
    REBOOT = "reboot"
    DRAIN = "drain"
    DRAIN_AND_RESET = "drain-and-reset"
    REPLACE = "replace"


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem of a GPU, or of the whole node because of it."""

    key: str
    """A finding replaces an earlier one with the same key."""
    severity: Severity
    reason: str
    remedy: Remedy = Remedy.NONE
    whole_node: bool = False


@dataclass(frozen=True)
class HealthRules:
    """Rules that an operator may change."""

    warn_xids: frozenset[int] = frozenset(map(int, _DEFAULTS.warn_xids))
    """XIDs that are only warnings. Other serious XIDs make the GPU unhealthy."""
    ignored_xids: frozenset[int] = frozenset({13, 31, 43, 45, 68})
    """XIDs that the application causes."""
    ecc_threshold: int = _DEFAULTS.ecc_threshold
    """Uncorrectable errors in one block of an AMD GPU above which it is unhealthy."""
    warn_for: float = 3600.0
    """Seconds until a warning about an event expires."""


_UNHEALTHY: dict[int, tuple[str, Remedy]] = {
    46: ("the GPU stopped processing", Remedy.RESET),
    48: ("uncorrectable ECC error", Remedy.RESET),
    54: ("auxiliary power is not connected", Remedy.REPLACE),
    62: ("the power management unit halted", Remedy.RESET),
    64: ("row remapping failed", Remedy.REPLACE),
    79: ("the GPU fell off the bus", Remedy.REBOOT),
    95: ("uncontained memory error", Remedy.RESET),
    110: ("security fault", Remedy.RESET),
    119: ("the GPU's system processor timed out", Remedy.RESET),
    120: ("the GPU's system processor failed", Remedy.RESET),
    136: ("NVLink training failed", Remedy.RESET),
    140: ("unrecovered ECC error", Remedy.RESET),
    143: ("the GPU failed to initialise", Remedy.RESET),
    155: ("NVLink software error", Remedy.RESET),
    156: ("resource retirement on NVLink", Remedy.RESET),
    158: ("fatal timeout in the GPU", Remedy.RESET),
}
_WARN: dict[int, str] = {
    63: "a row remapping was recorded",
    92: "many single-bit ECC errors",
    94: "contained memory error",
    109: "context switch timed out",
}
_NVLINK = frozenset({74, *range(144, 151)})
_WHOLE_NODE = frozenset({79})
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
    meaning, remedy = _meaning(code)
    reason = f"XID {code}: {meaning}"
    serious = code in _UNHEALTHY or code in _WARN or (code in _NVLINK and bool(_FATAL.search(message)))
    if serious and code not in rules.warn_xids:
        return Finding(f"xid-{code}", Severity.UNHEALTHY, reason, remedy, whole_node=code in _WHOLE_NODE)
    return Finding(f"xid-{code}", Severity.WARNING, reason)


def findings_from_reason(reason: str, rules: HealthRules | None = None) -> list[Finding]:
    """Return the event findings in a published reason; conditions are observed again anyway."""
    found = []
    for part in reason.split("; "):
        if match := _XID_REASON.match(part):
            # It made the GPU unhealthy, so an NVLink error was fatal.
            finding = classify_xid(int(match[1]), "fatal", rules)
            found += [finding] if finding is not None and finding.severity is Severity.UNHEALTHY else []
        elif part.startswith(FATAL_RECORD_PREFIX):
            found.append(Finding("cper", Severity.UNHEALTHY, part, Remedy.RESET))
    return found


def classify_recovery_action(action: str) -> Finding | None:
    """Return the finding for the action that the driver requests; None if it requests none."""
    if action == Remedy.NONE:
        return None
    remedy = Remedy(action)
    reason = f"the driver requests: {action}"
    return Finding("recovery-action", Severity.UNHEALTHY, reason, remedy, whole_node=remedy is Remedy.REBOOT)


def _classify_recovery_text(message: str) -> Finding | None:
    match = _CHANGED_TO.search(message)
    action = _ACTIONS.get(int(match[1], 16)) if match else None
    if action is None:
        return Finding("xid-154", Severity.WARNING, "XID 154: the recovery action changed to an unknown one")
    return classify_recovery_action(action)


def _meaning(code: int) -> tuple[str, Remedy]:
    if code in _UNHEALTHY:
        return _UNHEALTHY[code]
    if code in _NVLINK:
        return "NVLink error", Remedy.RESET
    return _WARN.get(code, "unknown code"), Remedy.RESET
