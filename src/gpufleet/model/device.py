"""A GPU as its driver reports it: identity, readings, processes, events.

Drivers may fail for single values, so every reading may be None, never 0, if the driver does not report
it. A device that the driver has lost stays in the inventory with a `fault`. Times are Unix seconds;
other units are bytes, watts, joules, megahertz and degrees Celsius. Uses only the standard library, so
that readings can be recorded on a bare machine.
"""

from dataclasses import dataclass
from enum import StrEnum


class Vendor(StrEnum):
    """The vendor of a GPU."""

    NVIDIA = "nvidia"
    AMD = "amd"


class LinkKind(StrEnum):
    """The fabric of a link."""

    NVLINK = "nvlink"
    XGMI = "xgmi"


@dataclass(frozen=True, slots=True)
class Link:
    """One active link from a GPU to another GPU or to a switch."""

    kind: LinkKind
    peer: str | None = None
    """PCI bus id of the GPU at the other end; None if unknown."""
    to_switch: bool = False
    version: int | None = None
    """NVLink generation as NVML counts it."""
    bandwidth_gbps: float | None = None
    """GB/s in both directions together, from the driver or else from the generation."""


@dataclass(frozen=True, slots=True)
class MigInstance:
    """A slice of an NVIDIA GPU that processes see as a separate device."""

    index: int
    uuid: str
    profile: str
    """In NVIDIA's notation: `1g.10gb`."""
    memory_bytes: int | None = None
    gpu_instance: int | None = None
    compute_instance: int | None = None


@dataclass(frozen=True, slots=True)
class Partition:
    """How an AMD GPU is partitioned, and which partition this device is."""

    compute: str
    """SPX, DPX, TPX, QPX or CPX."""
    memory: str | None = None
    """NPS1, NPS2, NPS4 or NPS8."""
    number: int = 0
    """Most counters of the whole GPU can be read only on partition 0."""


@dataclass(frozen=True, slots=True)
class Device:
    """One GPU of this machine."""

    index: int
    uuid: str
    vendor: Vendor
    model: str | None = None
    memory_bytes: int | None = None
    pci_bus_id: str | None = None
    """`domain:bus:device.function` in lower case as in sysfs: `0000:3b:00.0`."""
    numa_node: int | None = None
    minor: int | None = None
    """The N of /dev/nvidiaN or /dev/dri/renderDN."""
    mig_enabled: bool | None = None
    mig: tuple[MigInstance, ...] = ()
    partition: Partition | None = None
    links: tuple[Link, ...] = ()
    """The active links."""
    pcie_generation: int | None = None
    pcie_width: int | None = None
    """The most that GPU and slot can do, in lanes."""
    fault: str | None = None
    """Why the driver can't access it: it is lost, or no longer listed."""


@dataclass(frozen=True, slots=True)
class DeviceReading:
    """The readings of one GPU at one moment."""

    uuid: str
    index: int
    at: float
    utilization_percent: float | None = None
    memory_utilization_percent: float | None = None
    """Percent of time in which memory was read or written, not how full it is."""
    memory_used_bytes: int | None = None
    memory_free_bytes: int | None = None
    memory_total_bytes: int | None = None
    temperature_celsius: float | None = None
    power_watts: float | None = None
    power_limit_watts: float | None = None
    energy_joules: float | None = None
    """Since the driver was loaded; 0 again after a reset of the GPU."""
    sm_clock_mhz: float | None = None
    memory_clock_mhz: float | None = None
    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    """Since the last reset (NVIDIA: volatile counters; AMD: sum of the RAS blocks)."""
    ecc_uncorrected_blocks: tuple[tuple[str, int], ...] = ()
    """AMD only: blocks with uncorrectable errors, by name."""
    remapped_rows_corrected: int | None = None
    remapped_rows_uncorrected: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    recovery_action: str | None = None
    """What the driver recommends: `none`, `reset`, `reboot`, `drain` or `drain-and-reset`."""
    throttle_reasons: tuple[str, ...] | None = None
    pcie_generation: int | None = None
    pcie_width: int | None = None
    """The present PCIe link. Idle GPUs lower its generation, not its width."""
    nvlink_recoveries: int | None = None
    """Errors after which a link had to be trained again, of all NVLinks since the last reset."""
    fabric: str | None = None
    """What NVIDIA's fabric manager says of the GPU: `completed`, `in-progress` or `not-started`; None without one."""
    fabric_problem: str | None = None
    """Why the GPU could not join the fabric, or how it is degraded."""
    bad_pages: int | None = None
    bad_pages_pending: int | None = None
    bad_pages_limit: int | None = None
    """AMD only: retired memory pages, those that the next reset retires, and how many the GPU may have."""
    fault: str | None = None
    """Why no value could be read; every other field is None then."""

    @property
    def memory_share_percent(self) -> float | None:
        """Used memory in percent."""
        if self.memory_used_bytes is None or not self.memory_total_bytes:
            return None
        return self.memory_used_bytes / self.memory_total_bytes * 100


@dataclass(frozen=True, slots=True)
class DeviceProcess:
    """A process that uses memory of a GPU.

    Of a process in another pid namespace, `name`, `user`, `command` and the percentages are None.
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
    """The kind of a driver event."""

    XID = "xid"
    """An NVIDIA error code."""
    CPER = "cper"
    """An AMD error record; see `fatal`."""
    SXID = "sxid"
    """An error code of an NVSwitch."""


@dataclass(frozen=True, slots=True)
class DeviceEvent:
    """An error that the driver or the kernel log reported."""

    kind: EventKind
    code: int
    at: float
    uuid: str | None = None
    pci_bus_id: str | None = None
    message: str = ""
    fatal: bool | None = None
