"""Follow the logs of the pods that hold GPUs, and keep the newest training numbers in them.

The kubelet keeps the log of a container in `NAMESPACE_POD_UID/CONTAINER/RESTARTS.log`, in the CRI format
`TIME STREAM TAG TEXT`, where tag P marks a partial line. The kubelet rotates files by renaming them, and may
truncate them: a renamed file is read to its end, and a file that became shorter is read from its start. Everything
is bounded: the bytes read at a time, the lag after which the reader skips ahead, the open files, the numbers kept.

Numbers are served with the time of their line, so that Prometheus stores each once, and only for as long as it
accepts late samples. Numbers of a pod that has ended are served as long: a job reports most at its end.
"""

import asyncio
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric

from gpufleet.kubernetes.objects import Pod
from gpufleet.model.training_point import TrainingPoint
from gpufleet.model.workload import unread_owner
from gpufleet.runtime.logs import get_logger
from gpufleet.training.log_patterns import LogPattern
from gpufleet.training.log_reader import LogReader

CHUNK = 256 * 1024
"""Bytes read from one file in one round."""
MAX_LAG = 4 * 1024 * 1024
"""Unread bytes after which the reader skips ahead."""
MAX_FILES = 128
MAX_ENDED_PODS = 64
"""Ended pods whose numbers are still served."""
MAX_SERIES = 256
"""Numbers kept per pod: names times ranks."""
SERVED_FOR = 1800.0
"""Seconds for which a number is served. Prometheus rejects samples older than an hour, and logs each."""
_MAX_LINE = 64 * 1024
_STREAMS = (b"stdout", b"stderr")
_log = get_logger("agent")


@dataclass
class Follower:
    """Reads one container's log as it grows."""

    path: Path
    tail: int = 0
    """If set, start at most this many bytes before the end."""
    _file: int = -1
    _offset: int = 0
    _rest: bytes = b""

    def lines(self) -> Iterator[bytes]:
        """Yield complete new lines, at most `CHUNK` bytes of them."""
        if self._file < 0 and not self._open():
            return
        data = self._read()
        if not data and self._was_renamed():
            self.close()
            if self._open():
                data = self._read()
        *whole, rest = (self._rest + data).split(b"\n")
        self._rest = rest if len(rest) <= _MAX_LINE else b""
        yield from whole

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
        self._file, self._offset, self._rest = -1, 0, b""

    def _open(self) -> bool:
        try:
            self._file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return False
        if self.tail:
            self._skip_to(os.fstat(self._file).st_size, self.tail)
            self.tail = 0
        return True

    def _read(self) -> bytes:
        size = os.fstat(self._file).st_size
        if size < self._offset:
            self._offset, self._rest = 0, b""
        self._skip_to(size, MAX_LAG)
        try:
            data = os.pread(self._file, CHUNK, self._offset)
        except OSError:  # a bad disk affects this log only
            return b""
        self._offset += len(data)
        return data

    def _skip_to(self, size: int, most: int) -> None:
        if size - self._offset > most:
            # The first line is cut then; the log reader ignores it.
            self._offset, self._rest = size - most, b""

    def _was_renamed(self) -> bool:
        try:
            there, here = os.stat(self.path), os.fstat(self._file)
        except OSError:
            return False
        return (there.st_ino, there.st_dev) != (here.st_ino, here.st_dev)


@dataclass
class _PodLog:
    """The logs and newest numbers of one pod."""

    workload: str
    followers: dict[Path, Follower] = field(default_factory=dict)
    readers: dict[tuple[Path, bytes], LogReader] = field(default_factory=dict)
    newest: dict[tuple[str, int | None], TrainingPoint] = field(default_factory=dict)


class PodLogs:
    """Follows the logs of pods that hold GPUs."""

    def __init__(
        self,
        root: Path,
        pods: Callable[[], Iterable[Pod]],
        holders: Callable[[], Collection[str]],
        patterns: Sequence[LogPattern] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`holders` returns the uids of pods that hold GPUs; `patterns` are the users' own."""
        self._root = root
        self._pods = pods
        self._holders = holders
        self._patterns = patterns
        self._clock = clock
        self._logs: dict[str, _PodLog] = {}
        self._started = clock()

    async def run(self, period: float = 5.0) -> None:
        """Read new lines every `period` seconds, in a thread because disks may be slow."""
        while True:
            await asyncio.to_thread(self.read, list(self._pods()), frozenset(self._holders()))
            await asyncio.sleep(period)

    def read(self, pods: Iterable[Pod], holders: Collection[str]) -> None:
        """Read what was written since the last call."""
        followed = {pod.metadata.uid: pod for pod in pods if pod.metadata.uid in holders}
        for uid in self._logs.keys() - followed.keys():
            self._end(self._logs[uid])
        self._forget([uid for uid in self._logs if uid not in followed])
        for uid, pod in followed.items():
            log = self._logs.setdefault(uid, _PodLog(_workload(pod)))
            self._open_logs(pod, log)
            for path, follower in log.followers.items():
                self._read_lines(log, path, follower)

    def _end(self, log: _PodLog) -> None:
        """Read the rest of a pod's logs and close them."""
        while log.followers:
            path, follower = log.followers.popitem()
            self._read_lines(log, path, follower)
            follower.close()
        log.readers.clear()

    def _forget(self, ended: Sequence[str]) -> None:
        oldest = self._clock() - SERVED_FOR
        for age, uid in enumerate(reversed(ended)):
            newest = self._logs[uid].newest
            if age >= MAX_ENDED_PODS or all(point.time <= oldest for point in newest.values()):
                del self._logs[uid]

    def _open_logs(self, pod: Pod, log: _PodLog) -> None:
        meta = pod.metadata
        folder = self._root / f"{meta.namespace}_{meta.name}_{meta.uid}"
        open_files = sum(len(each.followers) for each in self._logs.values())
        for container in (each.name for each in pod.spec.containers):
            newest = max((folder / container).glob("*.log"), key=_restarts, default=None)
            if newest is None or newest in log.followers or open_files >= MAX_FILES:
                continue
            earlier = [path for path in log.followers if path.parent == newest.parent]
            for path in earlier:  # the container was restarted
                follower = log.followers.pop(path)
                self._read_lines(log, path, follower)
                follower.close()
            # Only the tail of what was written before this process started: the rest may be large.
            old = not earlier and _created(pod) <= self._started
            log.followers[newest] = Follower(newest, tail=CHUNK if old else 0)
            open_files += 1 - len(earlier)

    def _read_lines(self, log: _PodLog, path: Path, follower: Follower) -> None:
        for line in follower.lines():
            parts = line.split(b" ", 3)
            moment = _seconds(parts[0]) if len(parts) == 4 and parts[1] in _STREAMS else None
            if moment is None:
                continue
            reader = log.readers.setdefault((path.parent, parts[1]), LogReader(self._patterns))
            end = b"" if parts[2] == b"P" else b"\n"
            for point in reader.feed((parts[3] + end).decode(errors="replace"), moment):
                key = (point.metric, point.rank)
                if key in log.newest or len(log.newest) < MAX_SERIES:
                    log.newest[key] = point

    def metrics(self) -> Iterator[Metric]:
        """Yield the newest number of each name, rank and pod."""
        family = GaugeMetricFamily(
            "gpufleet_training",
            "Numbers that a training job writes into its log.",
            labels=("workload_uid", "pod_uid", "metric", "rank"),
        )
        oldest = self._clock() - SERVED_FOR
        for uid, log in list(self._logs.items()):
            for point in [each for each in list(log.newest.values()) if each.time > oldest]:
                rank = "" if point.rank is None else str(point.rank)
                family.add_metric((log.workload, uid, point.metric, rank), point.value, point.time)
        yield family

    def close(self) -> None:
        """Close all files."""
        for log in self._logs.values():
            for follower in log.followers.values():
                follower.close()
        self._logs.clear()


def _workload(pod: Pod) -> str:
    """Return the pod's controller with the pod's namespace: only the server knows whether it is its controller."""
    owner = pod.metadata.controller
    return unread_owner(owner.uid, pod.metadata.namespace) if owner else pod.metadata.uid


def _created(pod: Pod) -> float:
    created = pod.metadata.creation_timestamp
    return created.timestamp() if created else 0.0


def _restarts(path: Path) -> int:
    return int(path.stem) if path.stem.isdecimal() else -1


def _seconds(stamp: bytes) -> float | None:
    text = stamp.decode("ascii", "replace")
    head, _, rest = text.partition(".")
    # datetime takes microseconds, not nanoseconds.
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    zone = rest[len(digits) :]
    try:
        return datetime.fromisoformat(f"{head}.{digits[:6]:0<6}{zone}" if rest else head).timestamp()
    except ValueError:
        return None
