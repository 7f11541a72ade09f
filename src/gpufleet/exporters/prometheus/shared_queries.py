"""Two ways to share an answer: the newest of a kind, and what was asked for lately.

`SharedQueries` holds one value that all callers share: whoever comes while it is fetched waits for
that fetch, and whoever comes within `lifetime` gets what is there. A fetch that fails leaves
the old value, and nobody waits for a source that is slow or failed: its next fetch goes on by
itself. `Cache` shares for many keys, bounded by the bytes that it keeps.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from gpufleet.errors import MetricsUnavailable

PATIENCE = 2.0
"""Seconds that a caller waits for a fetch."""

T = TypeVar("T")


class SharedQueries(Generic[T]):
    """One value, fetched at most once per `lifetime` for all who ask."""

    def __init__(
        self,
        initial: T,
        fetch: Callable[[], Awaitable[T]],
        lifetime: float,
        clock: Callable[[], float],
        patience: float = PATIENCE,
    ) -> None:
        self.value = initial
        self._fetch, self._lifetime, self._clock, self._patience = fetch, lifetime, clock, patience
        self._tried: float | None = None
        self._flight: asyncio.Task[None] | None = None
        self._trouble = False

    async def get(self) -> T:
        """The newest value; the old one if fetching fails or takes long."""
        now = self._clock()
        due = self._tried is None or not 0 <= now - self._tried < self._lifetime
        if due and self._flight is None:
            self._tried = now
            self._flight = asyncio.create_task(self._take())
        if (flight := self._flight) is not None and not self._trouble:
            done, _ = await asyncio.wait({flight}, timeout=self._patience)
            self._trouble = self._trouble or not done
        return self.value

    async def close(self) -> None:
        """Stop what is still being fetched."""
        if self._flight is not None:
            self._flight.cancel()
            await asyncio.gather(self._flight, return_exceptions=True)

    async def _take(self) -> None:
        trouble = True
        try:
            self.value = await self._fetch()
            trouble = False
        except MetricsUnavailable:
            pass  # the fetcher has told health; the old value says by its age how good it is
        finally:
            self._trouble, self._flight = trouble, None


class Cache(Generic[T]):
    """Answers by what was asked, the least lately used forgotten first."""

    def __init__(self, max_bytes: int, clock: Callable[[], float]) -> None:
        self._max, self._clock = max_bytes, clock
        self._kept: OrderedDict[Hashable, tuple[float, int, T]] = OrderedDict()
        self._flights: dict[Hashable, asyncio.Future[T]] = {}
        self.bytes = 0

    async def get(
        self,
        key: Hashable,
        lifetime: Callable[[T], float],
        fetch: Callable[[], Awaitable[T]],
        size: Callable[[T], int],
    ) -> T:
        """The answer for `key`, from memory if it is there; callers that ask the same wait together."""
        if (kept := self._kept.get(key)) and self._clock() < kept[0]:
            self._kept.move_to_end(key)
            return kept[2]
        if (flight := self._flights.get(key)) is None:
            flight = asyncio.ensure_future(fetch())
            self._flights[key] = flight
            flight.add_done_callback(lambda done: self._land(key, lifetime, done, size))
        # A caller that gives up must not cut off the others.
        return await asyncio.shield(flight)

    def _land(
        self,
        key: Hashable,
        lifetime: Callable[[T], float],
        flight: "asyncio.Future[T]",
        size: Callable[[T], int],
    ) -> None:
        self._flights.pop(key, None)
        if flight.cancelled() or flight.exception() is not None:
            return
        self._forget(key)
        weight = size(flight.result())
        if weight <= self._max:
            self._kept[key] = (self._clock() + lifetime(flight.result()), weight, flight.result())
            self.bytes += weight
        while self.bytes > self._max:
            self._forget(next(iter(self._kept)))

    def _forget(self, key: Hashable) -> None:
        if kept := self._kept.pop(key, None):
            self.bytes -= kept[1]

    async def close(self) -> None:
        """Stop what is still being fetched."""
        for flight in list(self._flights.values()):
            flight.cancel()
        await asyncio.gather(*self._flights.values(), return_exceptions=True)
