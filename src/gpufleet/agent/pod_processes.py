"""Find processes on GPUs whose pod no longer exists.

A pod that is deleted by force disappears at once, but its processes may live on, for example in an
uninterruptible system call. The kernel names the pod in the cgroup of each process.
"""

import re
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path

from gpufleet.gpus.rules import Finding, finding
from gpufleet.model.device import DeviceProcess

_POD = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12})")


def orphans(
    processes: Iterable[DeviceProcess], pods: Collection[str], proc: Path = Path("/proc")
) -> dict[int, frozenset[str]]:
    """Return by GPU the UIDs of pods that are not in `pods` but still have processes on it."""
    found: dict[int, set[str]] = {}
    for process in processes:
        # A process without a name is in another pid namespace: the pid may be that of another process.
        uid = _pod_of(process.pid, proc) if process.name is not None else ""
        if uid and uid not in pods:
            found.setdefault(process.index, set()).add(uid)
    return {gpu: frozenset(uids) for gpu, uids in found.items()}


class OrphanAge:
    """Remember since when processes of deleted pods use each GPU."""

    def __init__(self, after: float = 300.0) -> None:
        """Processes that live on for longer than `after` seconds are a finding."""
        self._after = after
        self._since: dict[tuple[int, str], float] = {}

    def findings(self, orphans: Mapping[int, Collection[str]], now: float) -> dict[int, Finding]:
        """Return a finding for each GPU whose orphans are old."""
        present = {(gpu, uid) for gpu, uids in orphans.items() for uid in uids}
        self._since = {key: self._since.get(key, now) for key in present}
        return {
            gpu: finding("orphan-processes", f"processes of the deleted pod {uid} still use the GPU")
            for (gpu, uid), since in sorted(self._since.items())
            if now - since >= self._after
        }

    def next_due(self, now: float) -> float | None:
        """Return when the next process that is not a finding yet will be one; None if there is none."""
        return min((at for since in self._since.values() if (at := since + self._after) > now), default=None)


def _pod_of(pid: int, proc: Path) -> str:
    try:
        cgroup = (proc / str(pid) / "cgroup").read_text()
    except OSError:
        return ""
    found = _POD.search(cgroup)
    # The systemd driver writes underscores.
    return found[1].replace("_", "-") if found else ""
