"""A cache that follows the server: list, watch, and list again where the watch can't go on.

The list comes in pages, each taken up as it arrives. The watch starts at the list's version
and, when it breaks or ends, is taken up at the last version seen, so that nothing is missed
and nothing listed twice. Only when the server has forgotten that version (410) is the list
fetched again; what it no longer shows is deleted. Between any two tries lies a wait that
doubles until a watch has stood for a while, so a server in trouble is never hammered.
"""

import asyncio
import gc
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Generic

from gpufleet.errors import KubernetesUnavailable
from gpufleet.kubernetes.cache import Cache, CacheChange, Key, Listener, key_of
from gpufleet.kubernetes.client.client import ALL, PAGE_SIZE, KubeClient, Selection
from gpufleet.kubernetes.client.errors import Forbidden, Gone, KubernetesRefused
from gpufleet.kubernetes.client.resources import Deleted, Resource, T
from gpufleet.kubernetes.client.timing import Backoff
from gpufleet.kubernetes.client.watch import WatchBatch
from gpufleet.runtime.logs import get_logger

_log = get_logger("kube")


@dataclass(frozen=True)
class Pace:
    """How a reflector spends its time, in seconds."""

    backoff: Backoff = Backoff(first=0.2, most=10.0)  # noqa: RUF009  (frozen)
    watch: float = 300.0
    """Length of a watch; half as much again by chance, so that a fleet of clients doesn't come back at once."""
    idle: float = 120.0
    """Silence after which a watch is given up: servers send bookmarks about every minute."""
    steady: float = 10.0
    """Age at which a watch counts as a success and the next failure as the first."""


@dataclass(frozen=True)
class ReflectorState:
    """How a reflector is doing."""

    synced: bool
    """Whether the cache has once been complete."""
    watching: bool
    """Whether a watch stands now."""
    objects: int
    resource_version: str
    lag: float
    """Seconds of changes that may be missing: 0 while a watch stands and speaks, else the time since its last word."""
    lists: int
    watches: int
    error: str
    """Why there is no watch; empty as soon as one stands."""
    forbidden: bool
    """Whether that is for want of a right."""


class Reflector(Generic[T]):
    """Keeps a `Cache` of the selected objects of one kind; `run` it in a task of its own."""

    def __init__(
        self,
        client: KubeClient,
        resource: Resource[T],
        select: Selection = ALL,
        *,
        page_size: int = PAGE_SIZE,
        pace: Pace = Pace(),  # noqa: B008  (frozen)
        freeze: bool = False,
    ) -> None:
        """`freeze` hides the objects of the first list from the garbage collector, for caches that stay."""
        self.cache: Cache[T] = Cache()
        self.resource = resource
        self._client = client
        self._select = select
        self._page_size = page_size
        self._pace = pace
        self._freeze = freeze
        self._timing = client.timing
        self._version = ""
        self._synced = asyncio.Event()
        self._watching = False
        self._heard_at = self._timing.monotonic()
        self._lists = self._watches = 0
        self._error = ""
        self._forbidden = False

    @property
    def state(self) -> ReflectorState:
        """How it is doing now."""
        silence = self._timing.monotonic() - self._heard_at
        return ReflectorState(
            synced=self._synced.is_set(),
            watching=self._watching,
            objects=len(self.cache),
            resource_version=self._version,
            lag=0.0 if self._watching and silence < self._pace.idle else silence,
            lists=self._lists,
            watches=self._watches,
            error=self._error,
            forbidden=bool(self._error) and self._forbidden,
        )

    def subscribe(self, listener: Listener[T]) -> Callable[[], None]:
        """Tell `listener` of all objects and every change after; call the result to end that."""
        return self.cache.subscribe(listener)

    async def synced(self) -> None:
        """Wait until the cache has been complete for the first time."""
        await self._synced.wait()

    async def run(self) -> None:
        """Follow the server until cancelled."""
        failures = 0
        while True:
            opened_at = self._timing.monotonic()
            try:
                if not self._version:
                    await self._list()
                opened_at = self._timing.monotonic()
                await self._watch()
            except Gone as error:
                self._version = ""
                self._note(error)
            except (KubernetesUnavailable, KubernetesRefused) as error:
                self._note(error)
            finally:
                self._watching = False
            steady = self._timing.monotonic() - opened_at >= self._pace.steady
            failures = 1 if steady else failures + 1
            await self._timing.sleep(self._pace.backoff.delay(failures, self._timing.random()))

    def _note(self, error: Exception) -> None:
        message = str(error)
        if message != self._error:
            _log.warning("watch interrupted", kind=self.resource.kind, error=message)
        self._error = message
        self._forbidden = isinstance(error, Forbidden)

    async def _list(self) -> None:
        self._lists += 1
        try:
            version, seen = await self._take_pages(self._page_size)
        except Gone:
            # The pages went stale under way: the whole in one answer can't.
            version, seen = await self._take_pages(0)
        self.cache.tell(self.cache.remove(self.cache.keys() - seen))
        self._version = version
        self._heard()
        if not self._synced.is_set():
            if self._freeze:
                gc.collect()
                gc.freeze()
            self._synced.set()

    async def _take_pages(self, size: int) -> tuple[str, set[Key]]:
        version, seen = "", set[Key]()
        async with aclosing(self._client.pages(self.resource, self._select, limit=size)) as pages:
            async for page in pages:
                version = version or page.resource_version
                seen.update(key_of(item) for item in page.items)
                self.cache.tell(self.cache.put(page.items))
        return version, seen

    async def _watch(self) -> None:
        self._watches += 1
        seconds = self._pace.watch * (1 + 0.5 * self._timing.random())
        watch = self._client.watch(
            self.resource,
            self._select,
            resource_version=self._version,
            seconds=seconds,
            idle=self._pace.idle,
        )
        async with aclosing(watch) as batches:
            async for batch in batches:
                self._heard()
                self._watching, self._error = True, ""
                self.cache.tell(self._changes(batch))
                self._version = batch.resource_version

    def _heard(self) -> None:
        self._heard_at = self._timing.monotonic()

    def _changes(self, batch: WatchBatch[T]) -> list[CacheChange[T]]:
        changes: list[CacheChange[T]] = []
        for event in batch.changes:
            if isinstance(event, Deleted):
                changes += self.cache.remove((key_of(event.object),))
            else:
                changes += self.cache.put((event.object,))
        return changes
