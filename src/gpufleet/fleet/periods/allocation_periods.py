"""Open and close the periods during which pods hold GPUs.

The fleet passes in what a pod holds whenever that may have changed. Accounting drains what began
and what ended. An open period is drained again when it is closed or corrected, with the same pod
and start, so that storing it is an upsert.

Watches of different kinds race: a pod may be seen moments before its owner. So a change within
`SETTLING` seconds of opening a period corrects the period instead of splitting it.

A pod may disappear and come back: a source missed it once, or its claim was recreated. Its next
period then starts where the closed one ended, so that no second is counted twice.
"""

from collections.abc import Iterable

import msgspec

from gpufleet.model.periods import AllocationPeriod

SETTLING = 30.0
MAX_CLOSED = 100_000
"""Pods whose last closed period is kept in memory."""


class AllocationPeriods:
    """Open periods by pod, and the changes that were not drained yet."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[AllocationPeriod, float]] = {}
        """With the time at which the period was opened here."""
        self._closed: dict[str, AllocationPeriod] = {}
        """The last closed period of each pod, the newest last."""
        self._changed: dict[tuple[str, float], AllocationPeriod] = {}

    def update(
        self, pod_uid: str, now: AllocationPeriod | None, at: float, *, interrupted: bool = False
    ) -> None:
        """Record that the pod holds `now` at `at`, or nothing, perhaps because it was `interrupted`.

        The start of `now` counts only if the pod held nothing before.
        """
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
            self._close(before, at, interrupted=now is None and interrupted)
        elif now is not None and (last := self._closed.get(pod_uid)) is not None:
            now = msgspec.structs.replace(now, start=max(now.start, last.end))
        if now is not None:
            self._begin(now, at)

    def drain(self) -> list[AllocationPeriod]:
        """Return every period that began, ended or was corrected since the last call."""
        changed, self._changed = list(self._changed.values()), {}
        return changed

    def open(self) -> list[AllocationPeriod]:
        """Return the periods that have not ended."""
        return [period for period, _ in self._open.values()]

    def last_closed(self, pod_uid: str) -> AllocationPeriod | None:
        """Return the last period of a pod that ended, if it is still in memory."""
        return self._closed.get(pod_uid)

    def adopt(self, periods: Iterable[AllocationPeriod]) -> None:
        """Continue these periods of an earlier run, for pods that still hold GPUs."""
        for period in periods:
            if period.pod_uid in self._open:
                self._open[period.pod_uid] = (period, self._open[period.pod_uid][1])

    def _close(self, period: AllocationPeriod, at: float, *, interrupted: bool = False) -> None:
        ended = msgspec.structs.replace(period, end=max(at, period.start), interrupted=interrupted)
        self._changed[period.pod_uid, period.start] = ended
        self._closed.pop(period.pod_uid, None)
        self._closed[period.pod_uid] = ended
        if len(self._closed) > MAX_CLOSED:
            del self._closed[next(iter(self._closed))]

    def _shorten(self, pod_uid: str, split: float, at: float) -> None:
        """Close the period before `split` at `at`, if the pod turns out to have ended before the split."""
        last = self._closed.get(pod_uid)
        if last is not None and last.end == split and at < split:
            self._close(last, at)

    def _begin(self, period: AllocationPeriod, opened: float) -> None:
        self._open[period.pod_uid] = (period, opened)
        self._changed[period.pod_uid, period.start] = period
