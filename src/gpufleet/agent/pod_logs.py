"""Follow the logs of the pods that hold GPUs, and keep the newest training numbers in them.

The kubelet keeps the log of a container in `NAMESPACE_POD_UID/CONTAINER/RESTARTS.log`, in the format of the
container runtime interface: `TIME STREAM TAG TEXT`, where the tag P says that the line goes on. Files are
renamed when they are full and may be cut: a file is followed to its end under the name that it got, and
one that has become shorter is read from its start. Everything is bounded: how much of a file is read at a
time, how far the reader may lag before it jumps ahead, how many files are open, how many numbers are kept.

Numbers are served with the time of their line, so that Prometheus takes each of them once, and not for longer than
it takes samples that are late. Those of a pod that has ended are served as long: a job says the most at its end.
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
from gpufleet.runtime.logs import get_logger
from gpufleet.training.log_patterns import LogPattern
from gpufleet.training.log_reader import LogReader

PIECE = 256 * 1024
"""Bytes of one file that are read in one round."""
LAG = 4 * 1024 * 1024
"""Bytes that a reader may be behind before it jumps ahead."""
MOST_FILES = 128
MOST_ENDED = 64
"""Pods that have ended whose numbers are still served."""
MOST_SERIES = 256
"""Numbers of one pod that are kept: names times ranks."""
SERVED_FOR = 1800.0
"""Seconds after its line for which a number is served. Prometheus refuses what is an hour old, each time aloud."""
_MAX_LINE = 64 * 1024
_STREAMS = (b"stdout", b"stderr")
_log = get_logger("agent")


@dataclass
class Follower:
    """One container's log, read as far as it is written."""

    path: Path
    skip: int = 0
    """Start so many bytes before the end of a file that is longer; 0 reads it from the start."""
    _file: int = -1
    _offset: int = 0
    _rest: bytes = b""

    def lines(self) -> Iterator[bytes]:
        """Whole lines that have come since; at most `PIECE` bytes of them."""
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
        """Let go of the file."""
        if self._file >= 0:
            os.close(self._file)
        self._file, self._offset, self._rest = -1, 0, b""

    def _open(self) -> bool:
        try:
            self._file = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return False
        if self.skip:
            self._jump(os.fstat(self._file).st_size, self.skip)
            self.skip = 0
        return True

    def _read(self) -> bytes:
        size = os.fstat(self._file).st_size
        if size < self._offset:
            self._offset, self._rest = 0, b""
        self._jump(size, LAG)
        try:
            data = os.pread(self._file, PIECE, self._offset)
        except OSError:  # a bad disk costs this log for now, and no other
            return b""
        self._offset += len(data)
        return data

    def _jump(self, size: int, most: int) -> None:
        if size - self._offset > most:
            # The line in which it lands is cut, and nothing is made of half a line.
            self._offset, self._rest = size - most, b""

    def _was_renamed(self) -> bool:
        try:
            there, here = os.stat(self.path), os.fstat(self._file)
        except OSError:
            return False
        return (there.st_ino, there.st_dev) != (here.st_ino, here.st_dev)


@dataclass
class _PodLog:
    """What is known of one pod's log."""

    workload: str
    followers: dict[Path, Follower] = field(default_factory=dict)
    readers: dict[tuple[Path, bytes], LogReader] = field(default_factory=dict)
    newest: dict[tuple[str, int | None], TrainingPoint] = field(default_factory=dict)


class PodLogs:
    """Follows the logs of those pods that hold GPUs."""

    def __init__(
        self,
        root: Path,
        pods: Callable[[], Iterable[Pod]],
        holders: Callable[[], Collection[str]],
        own: Sequence[LogPattern] = (),
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`holders` are the uids of the pods whose logs are of interest, `own` the patterns of users."""
        self._root = root
        self._pods = pods
        self._holders = holders
        self._own = own
        self._clock = clock
        self._logs: dict[str, _PodLog] = {}
        self._began = clock()

    async def run(self, period: float = 5.0) -> None:
        """Read what is new every `period` seconds, in a thread: a disk may be slow."""
        while True:
            await asyncio.to_thread(self.look, list(self._pods()), frozenset(self._holders()))
            await asyncio.sleep(period)

    def look(self, pods: Iterable[Pod], holders: Collection[str]) -> None:
        """Read once what has come since the last time."""
        wanted = {pod.metadata.uid: pod for pod in pods if pod.metadata.uid in holders}
        for uid in self._logs.keys() - wanted.keys():
            self._end(self._logs[uid])
        self._forget([uid for uid in self._logs if uid not in wanted])
        for uid, pod in wanted.items():
            log = self._logs.setdefault(uid, _PodLog(_workload(pod)))
            self._find(pod, log)
            for path, follower in log.followers.items():
                self._take(log, path, follower)

    def _end(self, log: _PodLog) -> None:
        """Read the last words of a pod and let its files go."""
        while log.followers:
            path, follower = log.followers.popitem()
            self._take(log, path, follower)
            follower.close()
        log.readers.clear()

    def _forget(self, ended: Sequence[str]) -> None:
        oldest = self._clock() - SERVED_FOR
        for place, uid in enumerate(reversed(ended)):
            newest = self._logs[uid].newest
            if place >= MOST_ENDED or all(point.time <= oldest for point in newest.values()):
                del self._logs[uid]

    def _find(self, pod: Pod, log: _PodLog) -> None:
        meta = pod.metadata
        folder = self._root / f"{meta.namespace}_{meta.name}_{meta.uid}"
        open_files = sum(len(each.followers) for each in self._logs.values())
        for container in (each.name for each in pod.spec.containers):
            newest = max((folder / container).glob("*.log"), key=_restarts, default=None)
            if newest is None or newest in log.followers or open_files >= MOST_FILES:
                continue
            earlier = [path for path in log.followers if path.parent == newest.parent]
            for path in earlier:  # the container was restarted
                follower = log.followers.pop(path)
                self._take(log, path, follower)
                follower.close()
            # What was written before this process began is of little interest, and may be much.
            old = not earlier and _made(pod) <= self._began
            log.followers[newest] = Follower(newest, skip=PIECE if old else 0)
            open_files += 1 - len(earlier)

    def _take(self, log: _PodLog, path: Path, follower: Follower) -> None:
        for line in follower.lines():
            parts = line.split(b" ", 3)
            moment = _seconds(parts[0]) if len(parts) == 4 and parts[1] in _STREAMS else None
            if moment is None:
                continue
            reader = log.readers.setdefault((path.parent, parts[1]), LogReader(self._own))
            end = b"" if parts[2] == b"P" else b"\n"
            for point in reader.feed((parts[3] + end).decode(errors="replace"), moment):
                key = (point.metric, point.rank)
                if key in log.newest or len(log.newest) < MOST_SERIES:
                    log.newest[key] = point

    def metrics(self) -> Iterator[Metric]:
        """The newest number of each name, rank and pod."""
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
        """Let go of all files."""
        for log in self._logs.values():
            for follower in log.followers.values():
                follower.close()
        self._logs.clear()


def _workload(pod: Pod) -> str:
    owner = pod.metadata.controller
    return owner.uid if owner else pod.metadata.uid


def _made(pod: Pod) -> float:
    made = pod.metadata.creation_timestamp
    return made.timestamp() if made else 0.0


def _restarts(path: Path) -> int:
    return int(path.stem) if path.stem.isdecimal() else -1


def _seconds(stamp: bytes) -> float | None:
    text = stamp.decode("ascii", "replace")
    head, _, rest = text.partition(".")
    # Nine digits of a second are more than datetime takes.
    digits = rest[: len(rest) - len(rest.lstrip("0123456789"))]
    zone = rest[len(digits) :]
    try:
        return datetime.fromisoformat(f"{head}.{digits[:6]:0<6}{zone}" if rest else head).timestamp()
    except ValueError:
        return None
