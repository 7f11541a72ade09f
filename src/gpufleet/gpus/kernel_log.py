"""Read XIDs from the kernel log.

NVML events contain only the number of an XID. The log also has the text, which decides how serious NVLink
errors and recovery actions are. Reading /dev/kmsg needs CAP_SYSLOG where `kernel.dmesg_restrict` is set;
without it, events come only from NVML.

A record of /dev/kmsg is `level,sequence,microseconds since boot,flags;text`, followed by lines that start
with a space. One read returns one record; EPIPE means that unread records were overwritten.
"""

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


def parse_xid(text: str, at: float) -> DeviceEvent | None:
    """Return the XID in a kernel message (`NVRM: Xid (PCI:0000:3b:00): 79, pid=…`); None for others."""
    match = _XID.search(text)
    address = pci.bus_id(match[1]) if match else None
    if match is None or address is None:
        return None
    return DeviceEvent(
        kind=EventKind.XID, code=int(match[2]), at=at, pci_bus_id=address, message=match[3].strip()[:500]
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


def _boot_time() -> float:
    return time.time() - time.clock_gettime(time.CLOCK_MONOTONIC)
