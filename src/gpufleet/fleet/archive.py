"""Workloads that are gone from their source: the newest are remembered for lists, all go to the store.

Whoever follows workloads hears of those that come into the archive and of those that it forgets.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from gpufleet.fleet.hierarchy import ObjectTree
from gpufleet.fleet.workload_summary import Workload

KEPT_ENDED = 20_000
"""WorkloadRecord workloads that are remembered for lists; all of them are in the store."""


class WorkloadRecord(NamedTuple):
    """A workload that is gone from its source, as it was last."""

    workload: Workload
    tree: ObjectTree
    models: dict[str, int]


class Archive:
    """WorkloadRecord workloads, the oldest first; `tell` hears the uid of each that comes or goes."""

    def __init__(self, keep: int, tell: Callable[[str], None]) -> None:
        self._keep = keep
        self._tell = tell
        self._records: dict[str, WorkloadRecord] = {}
        self._new: list[WorkloadRecord] = []

    @property
    def records(self) -> Mapping[str, WorkloadRecord]:
        """What is remembered, by uid."""
        return self._records

    def put(self, record: WorkloadRecord) -> None:
        """A workload is gone."""
        uid = record.workload.uid
        self._records.pop(uid, None)
        self._records[uid] = record
        self._new.append(record)
        while len(self._records) > self._keep:
            oldest = next(iter(self._records))
            del self._records[oldest]
            self._tell(oldest)

    def remember(self, ended: Iterable[WorkloadRecord]) -> None:
        """Take ended workloads over from an earlier life, the oldest first."""
        for record in ended:
            self._records.setdefault(record.workload.uid, record)
            self._tell(record.workload.uid)

    def drain(self) -> list[WorkloadRecord]:
        """Those that came since the last call."""
        ended, self._new = self._new, []
        return ended

    def undrain(self, ended: Iterable[WorkloadRecord]) -> None:
        """Give back what was drained and could not be stored."""
        self._new[:0] = ended
