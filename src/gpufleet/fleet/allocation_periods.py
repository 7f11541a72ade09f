"""Opens and closes the periods during which pods hold GPUs.

The fleet tells the ledger what each pod holds whenever that may have changed; the ledger
compares and writes down what began and what ended. Accounting drains it. A period that was
drained open comes again when it is closed or corrected, with the same pod and start, so that
storing is an upsert.

Watches of different kinds race: a pod may be seen moments before its owner. So what is learned
of a period within `SETTLING` seconds of opening it corrects the period instead of splitting it.

A pod that is gone and comes back (a source that missed it once, a claim that was made anew) goes on behind
the period that was closed: nothing is told twice.
"""

from collections.abc import Iterable

import msgspec

from gpufleet.model.periods import AllocationPeriod

SETTLING = 30.0
KEPT_CLOSED = 100_000
"""Pods whose last closed period is remembered."""


class AllocationPeriods:
    """Open periods by pod, and what was not drained yet."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[AllocationPeriod, float]] = {}
        self._closed: dict[str, AllocationPeriod] = {}
        """The last closed period of a pod, the newest pods last."""
        self._news: dict[tuple[str, float], AllocationPeriod] = {}

    def note(self, pod_uid: str, now: AllocationPeriod | None, at: float) -> None:
        """At `at` the pod holds `now` (whose start counts only if a stretch begins), or nothing."""
        before, opened = self._open.get(pod_uid, (None, at))
        if before is not None and now is not None:
            same = msgspec.structs.replace(now, start=before.start)
            if same == before:
                return
            if at - opened < SETTLING and now.gpus == before.gpus and now.share == before.share:
                self._begin(same, opened)
                return
            now = msgspec.structs.replace(now, start=max(at, before.start))
        if before is not None:
            del self._open[pod_uid]
            if now is None:
                self._shorten(pod_uid, before.start, at)
            self._close(before, at)
        elif now is not None and (last := self._closed.get(pod_uid)) is not None:
            now = msgspec.structs.replace(now, start=max(now.start, last.end))
        if now is not None:
            self._begin(now, at)

    def drain(self) -> list[AllocationPeriod]:
        """Every period that began, ended or was corrected since the last call."""
        news, self._news = list(self._news.values()), {}
        return news

    def open(self) -> list[AllocationPeriod]:
        """The periods that last."""
        return [period for period, _ in self._open.values()]

    def adopt(self, periods: Iterable[AllocationPeriod]) -> None:
        """Go on with these periods, which an earlier life began, where the pods still hold something."""
        for period in periods:
            if period.pod_uid in self._open:
                self._open[period.pod_uid] = (period, self._open[period.pod_uid][1])

    def _close(self, period: AllocationPeriod, at: float) -> None:
        ended = msgspec.structs.replace(period, end=max(at, period.start))
        self._news[period.pod_uid, period.start] = ended
        self._closed.pop(period.pod_uid, None)
        self._closed[period.pod_uid] = ended
        if len(self._closed) > KEPT_CLOSED:
            del self._closed[next(iter(self._closed))]

    def _shorten(self, pod_uid: str, split: float, at: float) -> None:
        """A pod that was over at `at`, before its period was split, had nothing from then on."""
        last = self._closed.get(pod_uid)
        if last is not None and last.end == split and at < split:
            self._close(last, at)

    def _begin(self, period: AllocationPeriod, opened: float) -> None:
        self._open[period.pod_uid] = (period, opened)
        self._news[period.pod_uid, period.start] = period
