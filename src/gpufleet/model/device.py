"""A GPU as its own driver describes it: what it is, what it does now, who computes on it.

Drivers fail in parts, so every reading but the identity may be None: "the driver does not say",
never 0. A device that the machine had and the driver has lost stays in the inventory with a
`fault`. Times are Unix seconds, amounts are bytes, watts, joules, megahertz, degrees Celsius.
Nothing here needs more than the standard library, so that a bare machine can record readings.
"""

from dataclasses import dataclass
from enum import StrEnum


class Vendor(StrEnum):
    """Who made the GPU."""

    NVIDIA = "nvidia"
    AMD = "amd"


class LinkKind(StrEnum):
    """The fabric that a link belongs to."""

    NVLINK = "nvlink"
    XGMI = "xgmi"


@dataclass(frozen=True, slots=True)
class Link:
    """One active link from a GPU to another GPU or to a switch."""

    kind: LinkKind
    peer: str | None = None
    """PCI bus id of the GPU at the other end; None where the driver does not say."""
    to_switch: bool = False
    version: int | None = None
    """Generation of NVLink as NVML counts it."""
    bandwidth_gbps: float | None = None
    """GB/s of both directions together, where the driver says; else by generation."""


@dataclass(frozen=True, slots=True)
class MigInstance:
    """A slice of an NVIDIA GPU that programs see as a device of its own."""

    index: int
    uuid: str
    profile: str
    """As NVIDIA writes it: `1g.10gb`."""
    memory_bytes: int | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None


@dataclass(frozen=True, slots=True)
class Partition:
    """How an AMD GPU is split, and which of the parts this device is."""

    compute: str
    """SPX, DPX, TPX, QPX or CPX."""
    memory: str | None = None
    """NPS1, NPS2, NPS4 or NPS8."""
    number: int = 0
    """Most counters of the whole GPU are read on part 0 only."""


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU of this machine."""

    index: int
    uuid: str
    vendor: Vendor
    model: str | None = None
    memory_bytes: int | None = None
    pci_bus_id: str | None = None
    """`domain:bus:device.function` in lower case, as sysfs writes it: `0000:3b:00.0`."""
    numa_node: int | None = None
    minor: int | None = None
    """The N of /dev/nvidiaN, or of /dev/dri/renderDN."""
    mig_enabled: bool | None = None
    mig: tuple[MigInstance, ...] = ()
    partition: Partition | None = None
    links: tuple[Link, ...] = ()
    fault: str | None = None
    """Why the driver can't reach it any more: it is lost, or gone from the list."""


@dataclass(frozen=True, slots=True)
class DeviceReading:
    """What one GPU did at one moment."""

    uuid: str
    index: int
    at: float
    utilization_percent: float | None = None
    memory_utilization_percent: float | None = None
    """Of the time in which memory was read or written, as the vendors' tools have it; not how full it is."""
    memory_used_bytes: int | None = None
    memory_free_bytes: int | None = None
    memory_total_bytes: int | None = None
    temperature_celsius: float | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    energy_joules: float | None = None
    """Since the driver was loaded; it falls back to 0 when the GPU is reset."""
    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    """Since the last reset (NVIDIA: volatile counters; AMD: sum of the RAS blocks)."""
    ecc_uncorrected_blocks: tuple[tuple[str, int], ...] = ()
    """AMD only: every block with uncorrectable errors, by name."""
    remapped_rows_corrected: int | None = None
    remapped_rows_uncorrected: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    recovery_action: str | None = None
    """What the driver asks for: `none`, `reset`, `reboot`, `drain` or `drain-and-reset`."""
    throttle_reasons: tuple[str, ...] | None = None
    fault: str | None = None
    """Set where the whole GPU failed to answer; every other field is None then."""

    @property
    def memory_share_percent(self) -> float | None:
        """How full the memory is."""
        if self.memory_used_bytes is None or not self.memory_total_bytes:
            return None
        return self.memory_used_bytes / self.memory_total_bytes * 100


@dataclass(frozen=True, slots=True)
class DeviceProcess:
    """A program that holds memory of a GPU.

    A pid of another pid namespace keeps `name`, `user`, `command` and the percentages at None.
    """

    uuid: str
    index: int
    pid: int
    gpu_memory_bytes: int | None = None
    mig_uuid: str | None = None
    name: str | None = None
    user: str | None = None
    command: str | None = None
    cpu_percent: float | None = None
    memory_percent: float | None = None


class EventKind(StrEnum):
    """What the driver told."""

    XID = "xid"
    """An NVIDIA error code."""
    CPER = "cper"
    """An AMD error record; `fatal` says how bad."""


@dataclass(frozen=True, slots=True)
class DeviceEvent:
    """An error that the driver or the kernel log told of, once."""

    kind: EventKind
    code: int
    at: float
    uuid: str | None = None
    pci_bus_id: str | None = None
    message: str = ""
    fatal: bool | None = None
