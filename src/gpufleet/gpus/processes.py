"""Who stands behind a pid that a GPU driver names.

Drivers number processes as the host does, or as our pid namespace does, depending on their
version. In a namespace of our own the same number can be another program, so there a pid is
believed only if that program has a GPU's device file open; else it stays a number. psutil keeps
the CPU time of the last look, so the percentage is None at the first look at a process.
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
class _Seen:
    process: Any
    looks: int = 0


class ProcessTable:
    """Fills in what psutil knows of the processes on the GPUs."""

    def __init__(self, gpu_files: tuple[str, ...] = _GPU_FILES, believe_pids: bool | None = None) -> None:
        """`believe_pids` None decides by our own pid namespace."""
        self._gpu_files = gpu_files
        self._believe = _in_first_pid_namespace() if believe_pids is None else believe_pids
        self._seen: dict[int, _Seen] = {}

    def describe(self, found: Iterable[DeviceProcess], identify: bool) -> tuple[DeviceProcess, ...]:
        """`found` with names and shares, by GPU then pid; user and command only to `identify`."""
        rows = sorted(found, key=lambda row: (row.index, row.pid))
        facts = {pid: self._facts(pid, identify) for pid in {row.pid for row in rows}}
        self._seen = {pid: seen for pid, seen in self._seen.items() if facts.get(pid)}
        return tuple(replace(row, **facts[row.pid]) for row in rows)

    def _facts(self, pid: int, identify: bool) -> dict[str, Any]:
        try:
            import psutil
        except ImportError:  # a bare machine that only records readings
            return {}
        try:
            seen = self._seen.get(pid)
            if seen is None or not seen.process.is_running():
                if not self._believe and not _holds_gpu(pid, self._gpu_files):
                    return {}
                seen = self._seen[pid] = _Seen(psutil.Process(pid))
            facts = _look(psutil, seen, identify)
        except psutil.Error:  # it ended, or /proc hides it from us
            return {}
        seen.looks += 1
        return facts


def _look(psutil: Any, seen: _Seen, identify: bool) -> dict[str, Any]:
    process = seen.process
    with process.oneshot():
        questions = {"name": process.name, "memory_percent": process.memory_percent}
        if identify:
            questions |= {"user": process.username, "command": lambda: " ".join(process.cmdline())}
        facts: dict[str, Any] = {}
        for field, ask in questions.items():
            try:
                facts[field] = _readable(ask())
            except psutil.AccessDenied:
                facts[field] = None
        share = process.cpu_percent(interval=None)
        facts["cpu_percent"] = share if seen.looks else None
    return facts


def _readable(fact: Any) -> Any:
    """Names are bytes, and the kernel cuts them within a character; what is no text can't be sent as one."""
    return fact.encode(errors="replace").decode() if isinstance(fact, str) else fact


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
