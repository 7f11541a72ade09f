"""Share query results between callers: one value that is refreshed, and a cache by key.

Callers of a `SharedQuery` within its lifetime get the same value; callers during a fetch wait for that
fetch. A failed fetch leaves the old value. While the source is slow or failing, callers get the old
value immediately and the next fetch runs in the background. `QueryCache` does this for many keys,
bounded by memory.
"""

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from gpufleet.errors import MetricsUnavailable

MAX_WAIT = 2.0
"""Seconds that a caller waits for a fetch."""

T = TypeVar("T")


class SharedQuery(Generic[T]):
    """One value, fetched at most once per `lifetime` for all callers."""

    def __init__(
        self,
        initial: T,
        fetch: Callable[[], Awaitable[T]],
        lifetime: float,
        clock: Callable[[], float],
        max_wait: float = MAX_WAIT,
    ) -> None:
        self.value = initial
        self._fetch, self._lifetime, self._clock, self._max_wait = fetch, lifetime, clock, max_wait
        self._fetched_at: float | None = None
        self._task: asyncio.Task[None] | None = None
        self._failing = False

    async def get(self) -> T:
        """Return the newest value, or the old one if the fetch fails or takes long."""
        now = self._clock()
        due = self._fetched_at is None or not 0 <= now - self._fetched_at < self._lifetime
        if due and self._task is None:
            self._fetched_at = now
            self._task = asyncio.create_task(self._run())
        if (task := self._task) is not None and not self._failing:
            done, _ = await asyncio.wait({task}, timeout=self._max_wait)
            self._failing = self._failing or not done
        return self.value

    async def close(self) -> None:
        """Cancel a running fetch."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        failing = True
        try:
            self.value = await self._fetch()
            failing = False
        except MetricsUnavailable:
            pass  # the fetch has recorded the error; its timestamps show the age of the old value
        finally:
            self._failing, self._task = failing, None


class QueryCache(Generic[T]):
    """Results by key; the least recently used are evicted first."""

    def __init__(self, max_bytes: int, clock: Callable[[], float]) -> None:
        self._max_bytes, self._clock = max_bytes, clock
        self._entries: OrderedDict[Hashable, tuple[float, int, T]] = OrderedDict()
        """Expiry, size and result by key."""
        self._pending: dict[Hashable, asyncio.Future[T]] = {}
        self.bytes = 0

    @property
    def counts(self) -> dict[str, int]:
        """The number of results, their size in bytes, and the queries in progress."""
        return {"entries": len(self._entries), "bytes": self.bytes, "pending": len(self._pending)}

    async def get(
        self,
        key: Hashable,
        lifetime: Callable[[T], float],
        fetch: Callable[[], Awaitable[T]],
        size: Callable[[T], int],
    ) -> T:
        """Return the cached result for `key`, or fetch it once for all concurrent callers."""
        if (entry := self._entries.get(key)) and self._clock() < entry[0]:
            self._entries.move_to_end(key)
            return entry[2]
        if (future := self._pending.get(key)) is None:
            future = asyncio.ensure_future(fetch())
            self._pending[key] = future
            future.add_done_callback(lambda done: self._store(key, lifetime, done, size))
        # A cancelled caller must not cancel the fetch of the others.
        return await asyncio.shield(future)

    def _store(
        self,
        key: Hashable,
        lifetime: Callable[[T], float],
        future: "asyncio.Future[T]",
        size: Callable[[T], int],
    ) -> None:
        self._pending.pop(key, None)
        if future.cancelled() or future.exception() is not None:
            return
        self._evict(key)
        nbytes = size(future.result())
        if nbytes <= self._max_bytes:
            self._entries[key] = (self._clock() + lifetime(future.result()), nbytes, future.result())
            self.bytes += nbytes
        while self.bytes > self._max_bytes:
            self._evict(next(iter(self._entries)))

    def _evict(self, key: Hashable) -> None:
        if entry := self._entries.pop(key, None):
            self.bytes -= entry[1]

    async def close(self) -> None:
        """Cancel running fetches."""
        for future in list(self._pending.values()):
            future.cancel()
        await asyncio.gather(*self._pending.values(), return_exceptions=True)
