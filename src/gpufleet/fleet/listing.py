"""Lists of workloads: filtered, ordered, in pages that never repeat or drop a row.

An order over all workloads is kept until the fleet changes, and for `PATIENCE` seconds when it
changes all the time, so that hundreds of requests a second share one sort.
"""

import time
from collections.abc import Callable
from typing import NamedTuple

from gpufleet.fleet.picture import Fleet
from gpufleet.fleet.summary import Workload

PATIENCE = 0.25
KEPT_ANSWERS = 64


class Filter(NamedTuple):
    """What a list is narrowed to; empty means any."""

    name: str = ""
    """A part of the name, in any case."""
    kind: str = ""
    namespace: str = ""
    status: str = ""
    source: str = ""

    def accepts(self, workload: Workload) -> bool:
        """Whether the workload belongs in the list."""
        return (
            (not self.kind or workload.kind == self.kind)
            and (not self.namespace or workload.namespace == self.namespace)
            and (not self.status or workload.status.value == self.status)
            and (not self.source or workload.source == self.source)
            and (not self.name or self.name.casefold() in workload.name.casefold())
        )


class Page(NamedTuple):
    """Some rows, and how many there are in all."""

    rows: list[Workload]
    total: int


class Listing:
    """Answers questions for lists of one fleet's workloads."""

    def __init__(
        self, fleet: Fleet, *, patience: float = PATIENCE, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._fleet = fleet
        self._patience = patience
        self._clock = clock
        self._answers: dict[tuple[str, Filter], tuple[int, float, list[Workload]]] = {}

    def workloads(self, wanted: Filter, order: str, number: int, size: int) -> Page:
        """Page `number` (from 1) of the workloads, living and ended, by `start_at` or `end_at`, newest first."""
        return self._page("end_at" if order == "end_at" else "start_at", wanted, number, size)

    def consumers(self, number: int, size: int) -> Page:
        """Page `number` of the workloads that hold GPUs, most GPUs first, then by name."""
        return self._page("consumers", Filter(), number, size)

    def _page(self, order: str, wanted: Filter, number: int, size: int) -> Page:
        rows = self._ordered(order, wanted)
        return Page(rows[(number - 1) * size : number * size], len(rows))

    def _ordered(self, order: str, wanted: Filter) -> list[Workload]:
        now = self._clock()
        kept = self._answers.get((order, wanted))
        if kept is not None and (kept[0] == self._fleet.version or now - kept[1] < self._patience):
            return kept[2]
        if wanted != Filter():
            rows = [workload for workload in self._ordered(order, Filter()) if wanted.accepts(workload)]
        elif order == "consumers":
            rows = sorted(filter(_holds, self._fleet.workloads().values()), key=_by_gpus)
        else:
            everyone = [record.workload for record in self._fleet.ended().values()]
            everyone += self._fleet.workloads().values()
            rows = sorted(everyone, key=_by_end if order == "end_at" else _by_start)
        if len(self._answers) >= KEPT_ANSWERS:
            del self._answers[next(iter(self._answers))]
        self._answers[order, wanted] = (self._fleet.version, now, rows)
        return rows


def _holds(workload: Workload) -> bool:
    return workload.gpus > 0 and not workload.status.ended


def _by_gpus(workload: Workload) -> tuple[int, str, str, str]:
    return (-workload.gpus, workload.name, workload.namespace, workload.uid)


def _by_start(workload: Workload) -> tuple[float, str]:
    return (-workload.started, workload.uid)


def _by_end(workload: Workload) -> tuple[float, str]:
    return (-workload.ended, workload.uid)
