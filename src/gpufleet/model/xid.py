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


class Remedy(StrEnum):
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
    remedy: Remedy = Remedy.NONE
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


_OUT: dict[int, tuple[str, Remedy]] = {
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
_RECOVERY = 154

_ACTIONS: dict[int, Remedy] = {
    0: Remedy.NONE,
    1: Remedy.RESET,
    2: Remedy.REBOOT,
    3: Remedy.DRAIN,
    4: Remedy.DRAIN_AND_RESET,
    6: Remedy.RESET,
    7: Remedy.REBOOT,
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
            found.append(Finding("cper", Severity.OUT, part, Remedy.RESET))
    return found


def judge_recovery(action: str) -> Finding | None:
    """What follows from the action that the driver asks for; None if it asks for none."""
    if action == Remedy.NONE:
        return None
    remedy = Remedy(action)
    reason = f"the driver asks for: {action}"
    return Finding("recovery-action", Severity.OUT, reason, remedy, whole_node=remedy is Remedy.REBOOT)


def _judge_recovery_text(message: str) -> Finding | None:
    match = _CHANGED_TO.search(message)
    action = _ACTIONS.get(int(match[1], 16)) if match else None
    if action is None:
        return Finding("xid-154", Severity.WARN, "XID 154: the recovery action changed, to what is not said")
    return judge_recovery(action)


def _meaning(code: int) -> tuple[str, Remedy]:
    if code in _OUT:
        return _OUT[code]
    if code in _NVLINK:
        return "NVLink error", Remedy.RESET
    return _WARN.get(code, "not a code that gpufleet knows"), Remedy.RESET
