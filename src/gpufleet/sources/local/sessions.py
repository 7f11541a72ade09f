"""Processes on the GPUs of this machine, put together into what people started.

A training run is a launcher with a process for each GPU; all of them are in the session that the
launcher belongs to, so a session of one user is one workload of kind Process. A GPU that several
sessions are on is shared between them in equal parts: what is counted adds up to the GPUs in use.

A process inside a container or a Slurm job that the fleet knows is that one's own: it makes no
workload, it tells which GPU the container or the job is on. Display servers make none either.
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
    """What a process belongs to."""

    id: int
    user: str
    name: str
    began: float
    """When its leader started, or the process itself where the leader is gone."""
    group: str
    """The id of its container or Slurm job; empty if it is in none."""


def session_of(pid: int) -> Session | None:
    """The session of a process of this machine; None if it has ended or is hidden from us."""
    try:
        process = psutil.Process(pid)
        session = os.getsid(pid)
        with process.oneshot():
            user, name, began = process.username(), process.name(), process.create_time()
        try:
            leader = psutil.Process(session)
            began, name = leader.create_time(), name if session != pid else leader.name()
        except psutil.NoSuchProcess:
            pass
        return Session(session, user, name, began, _group(pid))
    except (psutil.Error, OSError):
        return None


class Sessions:
    """Workloads of kind Process, with the uid that each session got when it was first seen."""

    def __init__(self, node: str, look_up: Callable[[int], Session | None] = session_of) -> None:
        self._node = node
        self._look_up = look_up
        self._uids: dict[tuple[int, str], tuple[str, str, float]] = {}

    def see(
        self, processes: Iterable[DeviceProcess], known_group: Callable[[str], str | None]
    ) -> tuple[tuple[FleetPod, ...], Mapping[int, tuple[str, ...]]]:
        """The workloads of these processes, and the uids of other pods that are on each GPU.

        `known_group` gives the uid of the pod that a container's or Slurm job's id belongs to.
        """
        held: dict[tuple[int, str], set[int]] = {}
        others: dict[int, set[str]] = {}
        for process in processes:
            session = self._look_up(process.pid) if process.name is not None else None
            if session is None or process.name in _DISPLAY:
                continue
            if session.group and (uid := known_group(session.group)):
                others.setdefault(process.index, set()).add(uid)
                continue
            key = (session.id, session.user)
            if key not in self._uids:
                uid = f"process-{session.id}-{session.began:.0f}"
                self._uids[key] = (uid, f"{session.name}-{session.id}", session.began)
            held.setdefault(key, set()).add(process.index)
        self._uids = {key: names for key, names in self._uids.items() if key in held}
        pods = tuple(self._pod(key, sorted(gpus), held) for key, gpus in sorted(held.items()))
        return pods, {index: tuple(sorted(uids)) for index, uids in others.items()}

    def _pod(
        self, key: tuple[int, str], gpus: list[int], held: Mapping[tuple[int, str], set[int]]
    ) -> FleetPod:
        uid, name, began = self._uids[key]
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
            created=began,
            bound=began,
            started=began,
        )


def _group(pid: int) -> str:
    try:
        said = Path(f"/proc/{pid}/cgroup").read_text()
    except OSError:
        return ""
    found = _SLURM_JOB.search(said) or _CONTAINER.search(said)
    return found[1] if found else ""
