"""Read XIDs from the kernel log.

NVML events contain only the number of an XID. The log also has the text, which decides how serious NVLink
errors and recovery actions are. A container may open /dev/kmsg only if it is privileged. The system call syslog(2)
reads the same log without the device; it needs CAP_SYSLOG where `kernel.dmesg_restrict` is set, and a seccomp profile
that allows it. Without either, events come only from NVML.

A record of /dev/kmsg is `level,sequence,microseconds since boot,flags;text`, followed by lines that start
with a space. One read returns one record; EPIPE means that unread records were overwritten.
"""

import ctypes
import errno
import os
import re
import time
from collections.abc import Callable
from pathlib import Path

from gpufleet.errors import DevicesUnavailable
from gpufleet.gpus import pci
from gpufleet.model.device import DeviceEvent, EventKind

KMSG = Path("/dev/kmsg")
_MAX_RECORDS = 10_000
"""Records per call, so that a flood of messages cannot block the caller."""
_RECORD_BYTES = 8192

# With MIG the instance follows the address: `(PCI:0000:3b:00 GPU-I:05 GPU-CI:00)`.
_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]+)(?: [^)]*)?\):\s*(\d+)\s*,?\s*(.*)", re.DOTALL)


# `nvidia-nvswitch3: SXid (PCI:0000:c1:00.0): 20034, Fatal, Link 30 LTSSM Fault Up`
_SXID = re.compile(r"SXid \((?:PCI:)?([0-9a-fA-F:.]+)(?: [^)]*)?\):\s*(\d+)\s*,?\s*(.*)", re.DOTALL)


def parse_xid(text: str, at: float) -> DeviceEvent | None:
    """Return the XID of a GPU (`NVRM: Xid (PCI:0000:3b:00): 79, pid=…`) or the SXid of an NVSwitch; None for others."""
    kind, match = EventKind.XID, _XID.search(text)
    if match is None:
        kind, match = EventKind.SXID, _SXID.search(text)
    address = pci.bus_id(match[1]) if match else None
    if match is None or address is None:
        return None
    return DeviceEvent(
        kind=kind, code=int(match[2]), at=at, pci_bus_id=address, message=match[3].strip()[:500]
    )


def parse_record(record: str, boot_time: float) -> DeviceEvent | None:
    """Return the XID in a record of /dev/kmsg; None for others."""
    head, separator, body = record.partition(";")
    fields = head.split(",")
    if not separator or len(fields) < 3 or not fields[2].isdigit():
        return None
    return parse_xid(body.partition("\n")[0], boot_time + int(fields[2]) / 1e6)


class KernelLog:
    """Follow /dev/kmsg without blocking."""

    def __init__(
        self, path: Path = KMSG, from_start: bool = False, boot_time: Callable[[], float] | None = None
    ) -> None:
        """`from_start` includes the records that are already in the log."""
        try:
            self._file = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            raise DevicesUnavailable(
                f"the kernel log {path} can't be read ({error.strerror}); grant CAP_SYSLOG to see the text of XIDs"
            ) from error
        self._boot_time = boot_time or _boot_time
        if not from_start:
            os.lseek(self._file, 0, os.SEEK_END)

    def fileno(self) -> int:
        """Return the file descriptor, for an event loop."""
        return self._file

    def events(self) -> tuple[DeviceEvent, ...]:
        """Return the XIDs since the last call."""
        found = []
        boot = self._boot_time()
        for _ in range(_MAX_RECORDS):
            record = self._read()
            if record is None:
                break
            event = parse_record(record, boot)
            if event is not None:
                found.append(event)
        return tuple(found)

    def close(self) -> None:
        """Close the log."""
        os.close(self._file)

    def _read(self) -> str | None:
        try:
            data = os.read(self._file, _RECORD_BYTES)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno == errno.EPIPE:  # unread records were overwritten
                return ""
            raise DevicesUnavailable(f"the kernel log can no longer be read: {error.strerror}") from error
        return data.decode(errors="replace") if data else None


def boot_time() -> float:
    """Return when this machine was booted."""
    return time.time() - time.clock_gettime(time.CLOCK_MONOTONIC)


_boot_time = boot_time


_READ_ALL, _RING_BYTES = 3, 1 << 17
_LINE = re.compile(r"^<\d+>\[\s*(\d+)\.(\d{6})\] (.*)$", re.MULTILINE)


def read_ring() -> str:
    """Return the end of the kernel's log buffer with syslog(2)."""
    libc = ctypes.CDLL(None, use_errno=True)
    buffer = ctypes.create_string_buffer(_RING_BYTES)
    size = libc.klogctl(_READ_ALL, buffer, _RING_BYTES)
    if size < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    return buffer.raw[:size].decode(errors="replace")


class KernelRing:
    """Read the kernel's log buffer again and again."""

    def __init__(self, read: Callable[[], str] = read_ring) -> None:
        self._read = read
        self._seen = 0.0
        self._boot = boot_time()
        try:
            self.events()  # only what comes later counts
        except OSError as error:
            raise DevicesUnavailable(f"syslog(2): {error.strerror}") from error

    def events(self) -> tuple[DeviceEvent, ...]:
        """Return the XIDs since the last call."""
        found, newest = [], self._seen
        for seconds, micros, text in _LINE.findall(self._read()):
            at = int(seconds) + int(micros) / 1e6
            if at > self._seen and (event := parse_xid(text, self._boot + at)):
                found.append(event)
            newest = max(newest, at)
        self._seen = newest
        return tuple(found)


def open_kernel_log(
    device: Callable[[], KernelLog] = KernelLog, ring: Callable[[], KernelRing] = KernelRing
) -> KernelLog | KernelRing:
    """Open the log in the first way that works; raise DevicesUnavailable with the reasons if none does."""
    try:
        return device()
    except DevicesUnavailable as first:
        try:
            return ring()
        except DevicesUnavailable as second:
            raise DevicesUnavailable(f"{first}; {second}") from second
