"""The time that planning may take at once, so that requests are answered in between."""

from gpufleet.kubernetes import Timing


class TimeLimit:
    """A time limit that begins again with every slice of planning."""

    def __init__(self, timing: Timing) -> None:
        self._timing = timing
        self._until = 0.0

    def start(self, seconds: float) -> None:
        """Begin a slice."""
        self._until = self._timing.monotonic() + seconds

    def passed(self) -> bool:
        """Return whether the slice has lasted too long."""
        return self._timing.monotonic() > self._until
