"""Workloads that were deleted at their source.

The newest are kept for lists; all of them are drained into the store. Watchers of workloads are
notified of those that enter the archive and of those that drop out of it.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from gpufleet.fleet.workloads.hierarchy import ObjectTree, uids_below
from gpufleet.fleet.workloads.summary import Workload

MAX_ARCHIVED = 20_000
"""Ended workloads kept in memory for lists; the store has all of them."""


class WorkloadRecord(NamedTuple):
    """A workload, the objects below it, and its GPUs by model."""

    workload: Workload
    tree: ObjectTree
    models: dict[str, int]


class Archive:
    """Ended workloads, the oldest first. `notify` is called with the uid of each that changes."""

    def __init__(self, size: int, notify: Callable[[str], None]) -> None:
        self._size = size
        self._notify = notify
        self._records: dict[str, WorkloadRecord] = {}
        self._new: list[WorkloadRecord] = []
        self._roots: dict[str, str] = {}
        """The uid of the archived workload by the uid of each object below it."""

    @property
    def records(self) -> Mapping[str, WorkloadRecord]:
        """The archived workloads by uid."""
        return self._records

    def put(self, record: WorkloadRecord) -> None:
        """Add a workload that ended, and drop the oldest if the archive is full."""
        uid = record.workload.uid
        self._remove(uid)
        self._add(record)
        self._new.append(record)
        while len(self._records) > self._size:
            oldest = next(iter(self._records))
            self._remove(oldest)
            self._notify(oldest)

    def restore(self, ended: Iterable[WorkloadRecord]) -> None:
        """Add workloads of an earlier run, the oldest first."""
        for record in ended:
            if record.workload.uid not in self._records:
                self._add(record)
            self._notify(record.workload.uid)

    def record_with(self, uid: str) -> WorkloadRecord | None:
        """Return the archived workload that has an object of that uid below it."""
        root = self._roots.get(uid)
        return self._records.get(root) if root is not None else None

    def drain(self) -> list[WorkloadRecord]:
        """Return the workloads that were put since the last call."""
        ended, self._new = self._new, []
        return ended

    def requeue(self, ended: Iterable[WorkloadRecord]) -> None:
        """Put back drained workloads that could not be stored."""
        self._new[:0] = ended

    def _add(self, record: WorkloadRecord) -> None:
        self._records[record.workload.uid] = record
        self._roots.update(dict.fromkeys(uids_below(record.tree), record.workload.uid))

    def _remove(self, uid: str) -> None:
        record = self._records.pop(uid, None)
        if record is not None:
            for below in uids_below(record.tree):
                self._roots.pop(below, None)
