"""The table of health rules: signal, severity, scope, action and source.

Every finding about a GPU or a node comes from a rule here. `make docs` writes the table to
docs/health-rules.md. XIDs and SXids are errors that NVIDIA's driver writes to the kernel log; the codes not listed
are warnings.
"""

from dataclasses import dataclass
from enum import IntEnum, StrEnum


class Severity(IntEnum):
    """The severity of a finding."""

    WARNING = 1
    """The GPU stays in use."""
    DEGRADED = 2
    """The GPU stays in use, but is slower than it should be."""
    UNHEALTHY = 3
    """The GPU must not be allocated."""


class Scope(StrEnum):
    """Which GPUs a finding is about."""

    GPU = "GPU"
    ISLAND = "Island"
    """The GPUs of the node that are connected to its NVSwitches."""
    NODE = "Node"


class Remedy(StrEnum):
    """What makes the GPU usable again, in order of effort."""

    NONE = "none"
    RESET = "reset"
    RELOAD = "reload-driver"
    REBOOT = "reboot"
    DRAIN = "drain"
    DRAIN_AND_RESET = "drain-and-reset"
    REPLACE = "replace"


@dataclass(frozen=True, slots=True)
class Rule:
    """One row of the table."""

    signal: str
    meaning: str
    severity: Severity
    scope: Scope
    remedy: Remedy
    source: str
    until: str


@dataclass(frozen=True, slots=True)
class Finding:
    """A problem of a GPU, of its island or of the whole node."""

    key: str
    """The signal of the rule. A finding replaces an earlier one with the same key."""
    severity: Severity
    reason: str
    remedy: Remedy = Remedy.NONE
    scope: Scope = Scope.GPU
    expires: bool = False
    """Whether it is about an event, and is dropped when the event has not repeated for a while."""


_RESET = "it is reset"
_GONE = "it is no longer observed"
_HOUR = "an hour later"
_KERNEL = "NVML events, kernel log"


def _xid(
    code: int,
    meaning: str,
    remedy: Remedy = Remedy.RESET,
    severity: Severity = Severity.UNHEALTHY,
    scope: Scope = Scope.GPU,
) -> Rule:
    until = _RESET if severity is Severity.UNHEALTHY else _HOUR
    return Rule(f"xid-{code}", meaning, severity, scope, remedy, _KERNEL, until)


_TABLE = (
    Rule("fault", "the driver lost the GPU, or lists fewer GPUs than before", Severity.UNHEALTHY, Scope.GPU,
         Remedy.RESET, "NVML, AMD SMI", "it is back"),
    Rule("remap-failed", "row remapping failed", Severity.UNHEALTHY, Scope.GPU, Remedy.REPLACE, "NVML", _GONE),
    Rule("remap-pending", "row remapping is pending, reset required", Severity.UNHEALTHY, Scope.GPU,
         Remedy.RESET, "NVML", _GONE),
    Rule("recovery-action", "the driver requests an action; a reboot is about the whole node", Severity.UNHEALTHY,
         Scope.GPU, Remedy.RESET, "NVML, XID 154", "the driver withdraws the request"),
    Rule("ecc", "uncorrectable ECC errors since reset; AMD: with one in any RAS block it is Unhealthy",
         Severity.WARNING, Scope.GPU, Remedy.RESET, "NVML, AMD SMI", _RESET),
    Rule("ecc-corrected", "AMD: more correctable errors per hour than devices.corrected_per_hour", Severity.WARNING,
         Scope.GPU, Remedy.NONE, "AMD SMI", _HOUR),
    Rule("bad-pages-pending", "AMD: bad memory pages are retired after a reset", Severity.UNHEALTHY, Scope.GPU,
         Remedy.RESET, "AMD SMI", _GONE),
    Rule("bad-pages", "AMD: as many bad memory pages as the GPU may have", Severity.UNHEALTHY, Scope.GPU,
         Remedy.REPLACE, "AMD SMI", _GONE),
    Rule("cper", "AMD: a fatal error record; others are warnings", Severity.UNHEALTHY, Scope.GPU, Remedy.RESET,
         "AMD SMI", _RESET),
    Rule("nvlink-down", "fewer NVLinks are active than before, than on the other GPUs, or than devices.nvlinks",
         Severity.UNHEALTHY, Scope.GPU, Remedy.RESET, "NVML", _GONE),
    Rule("nvlink-errors", "NVLink recovery errors were counted", Severity.WARNING, Scope.GPU, Remedy.NONE, "NVML",
         _HOUR),
    Rule("fabric", "the fabric manager has not connected the GPU to the NVSwitches", Severity.UNHEALTHY,
         Scope.GPU, Remedy.RESET, "NVML", _GONE),
    Rule("fabric-degraded", "the GPU's routes through the NVSwitches are degraded", Severity.DEGRADED, Scope.GPU,
         Remedy.RESET, "NVML", _GONE),
    Rule("sxid", "a fatal error of an NVSwitch; others are warnings", Severity.UNHEALTHY, Scope.ISLAND,
         Remedy.REBOOT, "kernel log", "the node boots, or all GPUs are reset"),
    Rule("pcie-width", "the PCIe link has fewer lanes than GPU and slot can have", Severity.DEGRADED, Scope.GPU,
         Remedy.REBOOT, "NVML, AMD SMI", _GONE),
    Rule("pcie-speed", "the PCIe link is slower under load than GPU and slot can be", Severity.DEGRADED, Scope.GPU,
         Remedy.REBOOT, "NVML", _GONE),
    Rule("thermal", "clocks are reduced because of heat for more than a minute", Severity.DEGRADED, Scope.GPU,
         Remedy.NONE, "NVML", _GONE),
    Rule("power-brake", "clocks are reduced by the power supply for more than a minute", Severity.DEGRADED,
         Scope.GPU, Remedy.NONE, "NVML", _GONE),
    Rule("orphan-processes", "processes of a deleted pod still use the GPU after five minutes", Severity.UNHEALTHY,
         Scope.GPU, Remedy.REBOOT, "driver, cgroups", _GONE),
    Rule("rails", "InfiniBand or RoCE ports that were active are down; Unhealthy below devices.least_rails",
         Severity.DEGRADED, Scope.NODE, Remedy.NONE, "sysfs", "the ports are active"),
    Rule("driver-mismatch", "the driver's library and kernel module have different versions", Severity.UNHEALTHY,
         Scope.NODE, Remedy.RELOAD, "NVML", _GONE),
    Rule("straggler", "utilization, power, clock or training steps are far below those of the other GPUs of the job",
         Severity.DEGRADED, Scope.GPU, Remedy.NONE, "server: readings, training steps", _GONE),
    Rule("hang", "a rank of a job, or all of them, stopped reporting training steps", Severity.DEGRADED, Scope.GPU,
         Remedy.NONE, "server: training steps", "steps are reported"),
    _xid(46, "the GPU stopped processing"),
    _xid(48, "uncorrectable ECC error"),
    _xid(54, "auxiliary power is not connected", Remedy.REPLACE),
    _xid(62, "the power management unit halted"),
    _xid(64, "row remapping failed", Remedy.REPLACE),
    _xid(79, "the GPU fell off the bus", Remedy.REBOOT, scope=Scope.NODE),
    _xid(95, "uncontained memory error"),
    _xid(110, "security fault"),
    _xid(119, "the GPU's system processor timed out"),
    _xid(120, "the GPU's system processor failed"),
    _xid(136, "NVLink training failed"),
    _xid(140, "unrecovered ECC error"),
    _xid(143, "the GPU failed to initialise"),
    _xid(155, "NVLink software error"),
    _xid(156, "resource retirement on NVLink"),
    _xid(158, "fatal timeout in the GPU"),
    *(_xid(code, "NVLink error; a warning unless its text says that it is fatal") for code in (74, *range(144, 151))),
    _xid(63, "a row remapping was recorded", severity=Severity.WARNING),
    _xid(92, "many single-bit ECC errors", severity=Severity.WARNING),
    _xid(94, "contained memory error", severity=Severity.WARNING),
    _xid(109, "context switch timed out", severity=Severity.WARNING),
)  # fmt: skip

RULES: dict[str, Rule] = {rule.signal: rule for rule in _TABLE}
"""Every rule by its signal."""


def finding(
    signal: str,
    reason: str = "",
    *,
    severity: Severity | None = None,
    remedy: Remedy | None = None,
    scope: Scope | None = None,
) -> Finding:
    """Return a finding of a rule; arguments replace what the rule says. Warnings need no action."""
    rule = RULES[signal]
    serious = rule.severity if severity is None else severity
    action = rule.remedy if remedy is None else remedy
    return Finding(
        signal,
        serious,
        reason or rule.meaning,
        Remedy.NONE if serious is Severity.WARNING else action,
        rule.scope if scope is None else scope,
        expires=serious is Severity.WARNING and rule.until in (_HOUR, _RESET) and signal != "ecc",
    )


_ADVICE_BY_ACTION = {
    "none": "No action now. Look at the node if it repeats.",
    "reset": "Drain the GPU, then reset it.",
    "drain-and-reset": "Drain the node, then reset the GPU.",
    "drain": "Drain the GPU.",
    "reload-driver": "Drain the node, then reload the driver.",
    "reboot": "Drain the node, then reboot it.",
    "replace": "Take the node out of service and have the GPU replaced.",
}
_ADVICE_BY_SIGNAL = {
    "ecc": "Reset the GPU when its job ends; have it replaced if errors return.",
    "ecc-corrected": "Watch the count; have the GPU replaced if it keeps growing.",
    "nvlink-errors": "Watch it; reseat or replace the link's hardware if errors continue.",
    "thermal": "Check fans, airflow and inlet temperature of the node.",
    "power-brake": "Check the power supplies and the power limit of the rack.",
    "pcie-width": "Drain the node and reboot it; reseat the GPU if the lanes do not return.",
    "rails": "Check cable, transceiver and switch port of the InfiniBand or RoCE ports.",
    "orphan-processes": "End the remaining processes, or reboot the node.",
    "straggler": "Compare the GPU with its siblings; test it with `gpufleet diag` when the job ends.",
    "hang": "Look at the stack of the suspect rank (py-spy, NCCL flight recorder) before the job is restarted.",
}


def advice(signal: str, action: str) -> str:
    """Return what a human should do about a finding."""
    return _ADVICE_BY_SIGNAL.get(signal) or _ADVICE_BY_ACTION.get(action or "none", "")


def reference() -> str:
    """Return the table as a page of the documentation."""
    head = "| signal | meaning | severity | scope | action | source | until |\n" + "| --- " * 7 + "|\n"
    rows = "".join(
        f"| `{rule.signal}` | {rule.meaning} | {rule.severity.name.capitalize()} | {rule.scope} | {rule.remedy} "
        f"| {rule.source} | {rule.until} |\n"
        for rule in _TABLE
    )
    return _PAGE + head + rows


_PAGE = """# Health rules

Generated by `make docs` from `src/gpufleet/gpus/rules.py`. Unhealthy GPUs are not allocated. Degraded ones are slower than
they should be and stay in use. The action is what `gpufleet repair` does with the policy `repair` ([repair](repair.md)).
XIDs that are not listed are warnings for an hour; 13, 31, 43, 45 and 68 are caused by applications and ignored.
`devices.warn_xids` turns XIDs into warnings.

"""
