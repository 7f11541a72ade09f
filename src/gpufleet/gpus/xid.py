"""What an XID (NVIDIA's error code in the kernel log) means for the GPU that raised it.

One table: code, meaning, how bad, what helps. Codes that are the program's own fault say nothing
about the GPU. NVLink codes 74 and 144–150 are bad only when fatal, which the text of the log line
says and the bare number of an NVML event does not: without the text they warn. 154 carries no error
of its own but the action that the driver asks for. A code that nobody listed warns.
"""

import re
from dataclasses import dataclass, field
from enum import IntEnum, StrEnum


class Severity(IntEnum):
    """How much a finding weighs."""

    WARN = 1
    """Worth telling; the GPU stays in use."""
    OUT = 2
    """The GPU must not be handed out."""


class XidRemedy(StrEnum):
    """What brings the GPU back."""

    NONE = "none"
    RESET = "reset"
    REBOOT = "reboot"
    DRAIN = "drain"
    DRAIN_AND_RESET = "drain-and-reset"
    REPLACE = "replace"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong with a GPU, or with the whole node because of it."""

    key: str
    """The same key replaces the same finding."""
    severity: Severity
    reason: str
    remedy: XidRemedy = XidRemedy.NONE
    whole_node: bool = False


@dataclass(frozen=True)
class HealthRules:
    """What an operator may decide differently."""

    warn_xids: frozenset[int] = frozenset({63, 92, 94, 109})
    """XIDs that only warn. One taken from the list puts its GPU out; one added to it no longer does."""
    ignored_xids: frozenset[int] = frozenset({13, 31, 43, 45, 68})
    """XIDs that are the program's own fault."""
    ecc_threshold: int = 0
    """Uncorrectable errors in one block of an AMD GPU above which it is out."""
    warn_for: float = field(default=3600.0)
    """Seconds until a warning about an event is forgotten."""


_OUT: dict[int, tuple[str, XidRemedy]] = {
    46: ("the GPU stopped processing", XidRemedy.RESET),
    48: ("uncorrectable ECC error", XidRemedy.RESET),
    54: ("auxiliary power is not connected", XidRemedy.REPLACE),
    62: ("the power management unit halted", XidRemedy.RESET),
    64: ("row remapping failed", XidRemedy.REPLACE),
    79: ("the GPU fell off the bus", XidRemedy.REBOOT),
    95: ("uncontained memory error", XidRemedy.RESET),
    110: ("security fault", XidRemedy.RESET),
    119: ("the GPU's system processor timed out", XidRemedy.RESET),
    120: ("the GPU's system processor failed", XidRemedy.RESET),
    136: ("NVLink training failed", XidRemedy.RESET),
    140: ("unrecovered ECC error", XidRemedy.RESET),
    143: ("the GPU failed to initialise", XidRemedy.RESET),
    155: ("NVLink software error", XidRemedy.RESET),
    156: ("resource retirement on NVLink", XidRemedy.RESET),
    158: ("fatal timeout in the GPU", XidRemedy.RESET),
}
_WARN: dict[int, str] = {
    63: "a row remapping was recorded",
    92: "many single-bit ECC errors",
    94: "contained memory error",
    109: "context switch timed out",
}
_NVLINK = frozenset({74, *range(144, 151)})
_WHOLE_NODE = frozenset({79})
_RECOVERY = 154

_ACTIONS: dict[int, XidRemedy] = {
    0: XidRemedy.NONE,
    1: XidRemedy.RESET,
    2: XidRemedy.REBOOT,
    3: XidRemedy.DRAIN,
    4: XidRemedy.DRAIN_AND_RESET,
    6: XidRemedy.RESET,
    7: XidRemedy.REBOOT,
}
FATAL_RECORD = "fatal error record: "
"""How the reason begins that an AMD GPU's error record gives."""
_TOLD = re.compile(r"XID (\d{1,4}): ")
_CHANGED_TO = re.compile(r"\bto\s+0x([0-9a-f]+)", re.IGNORECASE)
_FATAL = re.compile(r"(?<!non[- ])\bfatal\b", re.IGNORECASE)


def judge_xid(code: int, message: str = "", rules: HealthRules | None = None) -> Finding | None:
    """What the XID says of its GPU; None if nothing."""
    rules = rules or HealthRules()
    if code in rules.ignored_xids:
        return None
    if code == _RECOVERY:
        return _judge_recovery_text(message)
    meaning, remedy = _meaning(code)
    reason = f"XID {code}: {meaning}"
    out = code in _OUT or code in _WARN or (code in _NVLINK and bool(_FATAL.search(message)))
    if out and code not in rules.warn_xids:
        return Finding(f"xid-{code}", Severity.OUT, reason, remedy, whole_node=code in _WHOLE_NODE)
    return Finding(f"xid-{code}", Severity.WARN, reason)


def recalled(reason: str, rules: HealthRules | None = None) -> list[Finding]:
    """The findings behind a reason that was published, as far as only an event tells them: nobody says them again."""
    found = []
    for part in reason.split("; "):
        if match := _TOLD.match(part):
            # It was published as a reason, so it was fatal where that decides.
            finding = judge_xid(int(match[1]), "fatal", rules)
            found += [finding] if finding is not None and finding.severity is Severity.OUT else []
        elif part.startswith(FATAL_RECORD):
            found.append(Finding("cper", Severity.OUT, part, XidRemedy.RESET))
    return found


def judge_recovery(action: str) -> Finding | None:
    """What follows from the action that the driver asks for; None if it asks for none."""
    if action == XidRemedy.NONE:
        return None
    remedy = XidRemedy(action)
    reason = f"the driver asks for: {action}"
    return Finding("recovery-action", Severity.OUT, reason, remedy, whole_node=remedy is XidRemedy.REBOOT)


def _judge_recovery_text(message: str) -> Finding | None:
    match = _CHANGED_TO.search(message)
    action = _ACTIONS.get(int(match[1], 16)) if match else None
    if action is None:
        return Finding("xid-154", Severity.WARN, "XID 154: the recovery action changed, to what is not said")
    return judge_recovery(action)


def _meaning(code: int) -> tuple[str, XidRemedy]:
    if code in _OUT:
        return _OUT[code]
    if code in _NVLINK:
        return "NVLink error", XidRemedy.RESET
    return _WARN.get(code, "not a code that gpufleet knows"), XidRemedy.RESET
