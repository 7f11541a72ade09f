"""Clock, sleep and chance, and what is made of them: backoff and the request rate.

They come in as one value, so that a test runs hours in no time and knows every delay.
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
    """The time of day, a clock that never goes back, a sleep, and a random number in 0..1."""

    now: Callable[[], datetime] = _utc_now
    monotonic: Callable[[], float] = time.monotonic
    sleep: Callable[[float], Awaitable[None]] = asyncio.sleep
    random: Callable[[], float] = random.random


@dataclass(frozen=True)
class Backoff:
    """How long to wait before try number n: doubling from `first` to `most` seconds, half of it by chance."""

    first: float = 0.2
    most: float = 30.0

    def delay(self, failures: int, chance: float) -> float:
        """Seconds to wait after `failures` failures in a row; `chance` in 0..1 spreads clients apart."""
        # Capped exponent: 2**1000 s would overflow a float after a long outage.
        full = min(self.most, self.first * 2.0 ** min(failures - 1, 30))
        return full * (0.5 + 0.5 * chance)


class RequestRate:
    """A token bucket: `per_second` in the long run, `burst` at once; callers wait in the order they came."""

    def __init__(self, per_second: float, burst: int, timing: Timing) -> None:
        self._per_second = per_second
        self._burst = float(burst)
        self._timing = timing
        self._tokens = float(burst)
        self._filled_at = timing.monotonic()

    async def acquire(self) -> None:
        """Wait until one more request may go out."""
        now = self._timing.monotonic()
        grown = self._tokens + (now - self._filled_at) * self._per_second
        self._tokens = min(self._burst, grown) - 1.0
        self._filled_at = now
        # A negative count is a debt: each waiter has its own place in time, so none overtakes.
        if self._tokens < 0:
            await self._timing.sleep(-self._tokens / self._per_second)
