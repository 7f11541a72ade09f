"""Opens and closes the periods during which nodes have GPUs, as `ledger` does for those who hold them."""

from collections.abc import Iterable

import msgspec

from gpufleet.model.periods import CapacityPeriod


class CapacityPeriods:
    """Open periods by node, and what was not drained yet."""

    def __init__(self) -> None:
        self._open: dict[str, CapacityPeriod] = {}
        self._news: dict[tuple[str, float], CapacityPeriod] = {}
        self._ended: dict[str, float] = {}
        """When the last closed period of a node ended."""

    def note(self, node: str, now: CapacityPeriod | None, at: float) -> None:
        """At `at` the node has `now` (whose start counts only if it had no GPUs before), or none."""
        before = self._open.get(node)
        if before is not None:
            if now is not None and msgspec.structs.replace(now, start=before.start) == before:
                return
            del self._open[node]
            end = self._ended[node] = max(at, before.start)
            self._news[node, before.start] = msgspec.structs.replace(before, end=end)
        if now is not None:
            if node in self._ended:
                now = msgspec.structs.replace(now, start=max(at, self._ended[node]))
            self._open[node] = self._news[node, now.start] = now

    def drain(self) -> list[CapacityPeriod]:
        """Every period that began or ended since the last call."""
        news, self._news = list(self._news.values()), {}
        return news

    def open(self) -> list[CapacityPeriod]:
        """The periods that last."""
        return list(self._open.values())

    def adopt(self, periods: Iterable[CapacityPeriod]) -> None:
        """Go on with these periods, which an earlier life began, where the nodes still have GPUs."""
        for period in periods:
            if period.node in self._open:
                self._open[period.node] = period
