"""Group the processes on the GPUs of this machine into workloads.

A training run is a launcher with one process per GPU, all in the session of the launcher. So a session of
one user is one workload of kind Process. Sessions on the same GPU share it in equal parts, so that the
total is the number of GPUs in use.

A process inside a container or Slurm job of the fleet is not a workload of its own; it tells which GPU the
container or job uses. Display servers are ignored.
"""

import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import NamedTuple

import psutil

from gpufleet.model.device import DeviceProcess
from gpufleet.model.workload import FleetPod, Status

_DISPLAY = {"Xorg", "Xwayland", "gnome-shell", "kwin_x11", "kwin_wayland", "plasmashell", "gnome-remote-de"}
_CONTAINER = re.compile(r"\b([0-9a-f]{64})\b")
_SLURM_JOB = re.compile(r"/job_(\d+)(?:/|$)", re.M)


class Session(NamedTuple):
    """The session of a process."""

    id: int
    user: str
    name: str
    started: float
    """When its leader started, or the process if the leader has ended."""
    group: str
    """The id of its container or Slurm job; empty for none."""


def session_of(pid: int) -> Session | None:
    """Return the session of a process; None if it has ended or is not visible."""
    try:
        process = psutil.Process(pid)
        session = os.getsid(pid)
        with process.oneshot():
            user, name, started = process.username(), process.name(), process.create_time()
        try:
            leader = psutil.Process(session)
            started, name = leader.create_time(), name if session != pid else leader.name()
        except psutil.NoSuchProcess:
            pass
        return Session(session, user, name, started, _group(pid))
    except (psutil.Error, OSError):
        return None


class Sessions:
    """Make workloads of kind Process; a session keeps the uid of its first observation."""

    def __init__(self, node: str, find_session: Callable[[int], Session | None] = session_of) -> None:
        self._node = node
        self._find_session = find_session
        self._uids: dict[tuple[int, str], tuple[str, str, float]] = {}

    def observe(
        self, processes: Iterable[DeviceProcess], pod_uid: Callable[[str], str | None]
    ) -> tuple[tuple[FleetPod, ...], Mapping[int, tuple[str, ...]]]:
        """Return the workloads of these processes, and the uids of other pods on each GPU.

        `pod_uid` returns the uid of the pod for the id of a container or Slurm job.
        """
        held: dict[tuple[int, str], set[int]] = {}
        others: dict[int, set[str]] = {}
        for process in processes:
            session = self._find_session(process.pid) if process.name is not None else None
            if session is None or process.name in _DISPLAY:
                continue
            if session.group and (uid := pod_uid(session.group)):
                others.setdefault(process.index, set()).add(uid)
                continue
            key = (session.id, session.user)
            if key not in self._uids:
                uid = f"process-{session.id}-{session.started:.0f}"
                self._uids[key] = (uid, f"{session.name}-{session.id}", session.started)
            held.setdefault(key, set()).add(process.index)
        self._uids = {key: names for key, names in self._uids.items() if key in held}
        pods = tuple(self._pod(key, sorted(gpus), held) for key, gpus in sorted(held.items()))
        return pods, {index: tuple(sorted(uids)) for index, uids in others.items()}

    def _pod(
        self, key: tuple[int, str], gpus: list[int], held: Mapping[tuple[int, str], set[int]]
    ) -> FleetPod:
        uid, name, started = self._uids[key]
        parts = [1 / sum(index in indices for indices in held.values()) for index in gpus]
        return FleetPod(
            uid=uid,
            name=name,
            namespace=key[1],
            kind="Process",
            api_version="local",
            source="local",
            node=self._node,
            phase=Status.RUNNING,
            labels={"local/user": key[1]},
            annotations={"local/session": str(key[0])},
            gpus=len(gpus),
            share=round(sum(parts) / len(parts), 6),
            held=tuple(gpus),
            created=started,
            bound=started,
            started=started,
        )


def _group(pid: int) -> str:
    try:
        cgroup = Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return ""
    found = _SLURM_JOB.search(cgroup) or _CONTAINER.search(cgroup)
    return found[1] if found else ""
