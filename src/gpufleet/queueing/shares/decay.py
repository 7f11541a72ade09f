"""Decayed use: GPU time that counts half after every half-life.

Use is GPU-seconds. The server's sums come from the integers that are billed; spans are allocations that this process
has seen itself, for the time since the server's last finished hour.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Span:
    """GPUs that a pod had from `start` until `end` (None: it still has them), in thousandths, at times in seconds."""

    namespace: str
    model: str
    milli: int
    start: float
    end: float | None = None

    def seconds(self, since: float, now: float) -> float:
        """Return the GPU-seconds after `since`."""
        return self.milli / 1000 * max(self._end(now) - max(self.start, since), 0.0)

    def decayed(self, since: float, now: float, half_life: float) -> float:
        """Return the decayed GPU-seconds after `since`: the integral of the decay over the span."""
        start, end = max(self.start, since), self._end(now)
        if end <= start:
            return 0.0
        scale = half_life / math.log(2)
        return self.milli / 1000 * scale * (decay(now - end, half_life) - decay(now - start, half_life))

    def _end(self, now: float) -> float:
        return now if self.end is None else min(self.end, now)


def decay(age: float, half_life: float) -> float:
    """Return how much use of this age counts, from 1 (now) down to 0."""
    return math.exp2(-max(age, 0.0) / half_life)


def decayed_use(read: float, read_until: float, spans: Iterable[Span], now: float, half_life: float) -> float:
    """Return the decayed use now, from what was read, decayed at `read_until`, and the spans since then."""
    since = sum(span.decayed(read_until, now, half_life) for span in spans)
    return read * decay(now - read_until, half_life) + since
