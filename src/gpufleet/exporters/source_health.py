"""What was read when, and what went wrong: the health of a metric source."""

from collections.abc import Callable, Collection, Sequence

from gpufleet.model.metric_source import MetricHealth, SourceHealth
from gpufleet.runtime.logs import get_logger

log = get_logger("metrics")


class SourceHealthLog:
    """Remembers the last success and the error of each thing that is read."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._entries: dict[str, MetricHealth] = {}
        self._last_success: float | None = None
        self._last_error = ""
        self._not_whole: set[str] = set()

    def succeeded(self, name: str) -> None:
        """Note that something was read."""
        self._last_success = self._clock()
        self._entries[name] = MetricHealth(self._last_success)

    def failed(self, name: str, reason: str) -> None:
        """Note that something could not be read."""
        before = self._entries.get(name)
        self._entries[name] = MetricHealth(before.last_success if before else None, reason)
        self._last_error = reason

    def partial(self, what: str, shortfalls: Sequence[str]) -> str:
        """Note whether all of `what` was answered: a sentence if not, else nothing; logged when that changes."""
        if not shortfalls:
            if what in self._not_whole:
                self._not_whole.remove(what)
                log.info("answers are whole again", what=what)
            return ""
        if what not in self._not_whole:
            self._not_whole.add(what)
            log.warning("answers are not whole", what=what, reason=shortfalls[0])
        sentence = f"an answer of the metric source is not whole: {shortfalls[0]}"
        self.failed("partial", sentence)
        return sentence

    def only(self, names: Collection[str]) -> None:
        """Forget what is no longer read: nothing would ever tell that its error is over."""
        self._entries = {name: entry for name, entry in self._entries.items() if name in names}

    def error(self, name: str) -> str:
        """Why something can't be read right now; empty if it can."""
        entry = self._entries.get(name)
        return entry.error if entry else ""

    def health(self, vocabularies: tuple[str, ...]) -> SourceHealth:
        """All of it."""
        healthy = self._last_success is not None and not any(entry.error for entry in self._entries.values())
        return SourceHealth(healthy, self._last_success, self._last_error, dict(self._entries), vocabularies)
