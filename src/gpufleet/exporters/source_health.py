"""Track the health of a metric source: what was read when, and what failed."""

from collections.abc import Callable, Collection, Sequence

from gpufleet.model.metric_source import MetricHealth, SourceHealth
from gpufleet.runtime.logs import get_logger

_log = get_logger("metrics")


class SourceHealthTracker:
    """The last success and the current error of everything that is read."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._entries: dict[str, MetricHealth] = {}
        self._last_success: float | None = None
        self._last_error = ""
        self._partial: set[str] = set()

    def succeeded(self, name: str) -> None:
        """Record a successful read."""
        self._last_success = self._clock()
        self._entries[name] = MetricHealth(self._last_success)

    def failed(self, name: str, reason: str) -> None:
        """Record a failed read."""
        before = self._entries.get(name)
        self._entries[name] = MetricHealth(before.last_success if before else None, reason)
        self._last_error = reason

    def partial(self, name: str, warnings: Sequence[str]) -> str:
        """Record whether the responses for `name` were partial. Return a sentence if so, else nothing.

        Only changes are logged.
        """
        if not warnings:
            if name in self._partial:
                self._partial.remove(name)
                _log.info("responses_complete_again", read=name)
            return ""
        if name not in self._partial:
            self._partial.add(name)
            _log.warning("responses_partial", read=name, reason=warnings[0])
        sentence = f"the metric source returned a partial response: {warnings[0]}"
        self.failed("partial", sentence)
        return sentence

    def keep_only(self, names: Collection[str]) -> None:
        """Forget what is no longer read: its error would never clear."""
        self._entries = {name: entry for name, entry in self._entries.items() if name in names}

    def error(self, name: str) -> str:
        """Return why `name` can't be read now; empty if it can."""
        entry = self._entries.get(name)
        return entry.error if entry else ""

    def health(self, exporters: tuple[str, ...]) -> SourceHealth:
        """Return the health of the whole source."""
        healthy = self._last_success is not None and not any(entry.error for entry in self._entries.values())
        return SourceHealth(healthy, self._last_success, self._last_error, dict(self._entries), exporters)
