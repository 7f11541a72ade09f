"""Clock, sleep and randomness as one value, and what is built on them: backoff and the rate limiter.

Tests pass their own `Timing`, so hours go by in no time and every delay is known.
"""

import asyncio
import random
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime


def _utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True)
class Timing:
    """The time of day, a monotonic clock, a sleep function, and a random number in 0..1."""

    now: Callable[[], datetime] = _utc_now
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    random: Callable[[], float] = random.random


@dataclass(frozen=True)
class Backoff:
    """Exponential backoff from `initial` to `maximum` seconds, of which half is jitter."""

    initial: float = 0.2
    maximum: float = 30.0

    def delay(self, failures: int, jitter: float) -> float:
        """Return the seconds to wait after `failures` consecutive failures; `jitter` is in 0..1."""
        # Capped exponent: 2**1000 s would overflow a float after a long outage.
        full = min(self.maximum, self.initial * 2.0 ** min(failures - 1, 30))
        return full * (0.5 + 0.5 * jitter)


class RateLimiter:
    """A token bucket of `burst` tokens, refilled `per_second`; callers are served in order."""

    def __init__(self, per_second: float, burst: int, timing: Timing) -> None:
        self._per_second = per_second
        self._burst = float(burst)
        self._timing = timing
        self._tokens = float(burst)
        self._filled_at = timing.monotonic()

    async def acquire(self) -> None:
        """Wait until one more request may be sent."""
        now = self._timing.monotonic()
        refilled = self._tokens + (now - self._filled_at) * self._per_second
        self._tokens = min(self._burst, refilled) - 1.0
        self._filled_at = now
        # A negative count is a debt: every caller waits for its own token, so none overtakes.
        if self._tokens < 0:
            await self._timing.sleep(-self._tokens / self._per_second)
