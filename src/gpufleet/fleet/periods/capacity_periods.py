"""Open and close the periods during which nodes have GPUs.

Works like `allocation_periods`, for nodes instead of pods.
"""

from collections.abc import Iterable

import msgspec

from gpufleet.model.periods import CapacityPeriod


class CapacityPeriods:
    """Open periods by node, and the changes that were not drained yet."""

    def __init__(self) -> None:
        self._open: dict[str, CapacityPeriod] = {}
        self._changed: dict[tuple[str, float], CapacityPeriod] = {}
        self._last_end: dict[str, float] = {}

    def update(self, node: str, now: CapacityPeriod | None, at: float) -> None:
        """Record that the node has `now` GPUs at `at`, or none.

        The start of `now` counts only if the node had no GPUs before.
        """
        before = self._open.get(node)
        if before is not None:
            if now is not None and msgspec.structs.replace(now, start=before.start) == before:
                return
            del self._open[node]
            end = self._last_end[node] = max(at, before.start)
            self._changed[node, before.start] = msgspec.structs.replace(before, end=end)
        if now is not None:
            if node in self._last_end:
                now = msgspec.structs.replace(now, start=max(at, self._last_end[node]))
            self._open[node] = self._changed[node, now.start] = now

    def drain(self) -> list[CapacityPeriod]:
        """Return every period that began or ended since the last call."""
        changed, self._changed = list(self._changed.values()), {}
        return changed

    def open(self) -> list[CapacityPeriod]:
        """Return the periods that have not ended."""
        return list(self._open.values())

    def adopt(self, periods: Iterable[CapacityPeriod]) -> None:
        """Continue these periods of an earlier run, for nodes that still have GPUs."""
        for period in periods:
            if period.node in self._open:
                self._open[period.node] = period
