"""Limit how much one key, such as a caller or a workload, may send per minute.

This is the generic cell rate algorithm: one number per key, the time at which all that it sent would have
been sent at exactly the allowed rate. A key may be up to a minute ahead, so a minute's worth may come at once.
"""

import time
from collections.abc import Callable

_BURST = 60.0
"""Seconds that a key may be ahead of its rate."""
_MAX_KEYS = 10_000
"""Keys kept before those that are no longer ahead are dropped."""


class RateLimit:
    """Counts what each key sent."""

    def __init__(self, per_minute: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds_each = 60.0 / per_minute
        self._clock = clock
        self._ahead_until: dict[str, float] = {}

    def wait(self, key: str, amount: int) -> float:
        """Return the seconds until `key` may send `amount`; 0 if it may now."""
        return max(0.0, self._after(key, amount) - self._clock() - _BURST)

    def take(self, key: str, amount: int) -> None:
        """Count that `key` sent `amount`."""
        self._ahead_until[key] = self._after(key, amount)
        if len(self._ahead_until) > _MAX_KEYS:
            now = self._clock()
            self._ahead_until = {key: until for key, until in self._ahead_until.items() if until > now}

    def _after(self, key: str, amount: int) -> float:
        now = self._clock()
        return max(now, self._ahead_until.get(key, now)) + amount * self._seconds_each
