"""Look up the processes behind the pids that a GPU driver reports.

Depending on the version, drivers report pids of the host or of our pid namespace. In a separate pid
namespace the same pid may be another process, so there a pid is trusted only if its process has a GPU
device file open. CPU usage needs two samples, so it is None the first time.
"""

import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from gpufleet.model.device import DeviceProcess

_FIRST_PID_NAMESPACE = "pid:[4026531836]"
"""The inode is fixed in the kernel (PROC_PID_INIT_INO)."""
_GPU_FILES = ("/dev/nvidia", "/dev/kfd", "/dev/dri/")


@dataclass
class _Tracked:
    process: Any
    sampled: bool = False


class ProcessTable:
    """Add names and resource usage to the processes on the GPUs."""

    def __init__(self, gpu_files: tuple[str, ...] = _GPU_FILES, trust_pids: bool | None = None) -> None:
        """`trust_pids` None decides by our own pid namespace."""
        self._gpu_files = gpu_files
        self._trust_pids = _in_first_pid_namespace() if trust_pids is None else trust_pids
        self._tracked: dict[int, _Tracked] = {}

    def describe(self, found: Iterable[DeviceProcess], identify: bool) -> tuple[DeviceProcess, ...]:
        """Return `found` with details, by GPU and pid; user and command only with `identify`."""
        rows = sorted(found, key=lambda row: (row.index, row.pid))
        details = {pid: self._details(pid, identify) for pid in {row.pid for row in rows}}
        self._tracked = {pid: tracked for pid, tracked in self._tracked.items() if details.get(pid)}
        return tuple(replace(row, **details[row.pid]) for row in rows)

    def _details(self, pid: int, identify: bool) -> dict[str, Any]:
        try:
            import psutil
        except ImportError:  # a minimal installation that only records readings
            return {}
        try:
            tracked = self._tracked.get(pid)
            if tracked is None or not tracked.process.is_running():
                if not self._trust_pids and not _holds_gpu(pid, self._gpu_files):
                    return {}
                tracked = self._tracked[pid] = _Tracked(psutil.Process(pid))
            details = _read(psutil, tracked, identify)
        except psutil.Error:  # it ended, or /proc hides it
            return {}
        tracked.sampled = True
        return details


def _read(psutil: Any, tracked: _Tracked, identify: bool) -> dict[str, Any]:
    process = tracked.process
    with process.oneshot():
        getters = {"name": process.name, "memory_percent": process.memory_percent}
        if identify:
            getters |= {"user": process.username, "command": lambda: " ".join(process.cmdline())}
        details: dict[str, Any] = {}
        for field, get in getters.items():
            try:
                details[field] = _valid_text(get())
            except psutil.AccessDenied:
                details[field] = None
        cpu_percent = process.cpu_percent(interval=None)
        details["cpu_percent"] = cpu_percent if tracked.sampled else None
    return details


def _valid_text(value: Any) -> Any:
    """Replace invalid characters: the kernel may cut a process name within a UTF-8 character."""
    return value.encode(errors="replace").decode() if isinstance(value, str) else value


def _in_first_pid_namespace() -> bool:
    try:
        return os.readlink("/proc/self/ns/pid") == _FIRST_PID_NAMESPACE
    except OSError:
        return False


def _holds_gpu(pid: int, gpu_files: tuple[str, ...]) -> bool:
    try:
        with os.scandir(f"/proc/{pid}/fd") as entries:
            return any(_target(entry.path).startswith(gpu_files) for entry in entries)
    except OSError:
        return False


def _target(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
