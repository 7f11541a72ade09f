"""Keep a local cache in step with the server: list, watch, and list again when the watch can't resume.

The list is fetched in pages, each stored as it arrives. The watch starts at the list's version
and, when it ends or breaks, resumes at the last version seen, so no change is missed. Only when
the server no longer has that version (410 Gone) is the list fetched again; objects that are no
longer in it are removed. More objects than `MAX_OBJECTS`, or than fit into the memory of
`kubernetes.max_cache_bytes`, are an error: the objects known before stay, and what the list or watch added or
made larger is not kept. Between attempts the reflector backs off until a watch has been open for a while.

A kind may be optional: a cluster without it is no fault. It is then looked for again once in a while, in
each of its versions.
"""

import asyncio
import gc
from collections.abc import Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Generic

from gpufleet.errors import KubernetesUnavailable
from gpufleet.kubernetes.cache import Cache, CacheChange, Key, Listener, key_of
from gpufleet.kubernetes.client.client import ALL, PAGE_SIZE, KubeClient, Selection
from gpufleet.kubernetes.client.errors import Forbidden, Gone, KubernetesRefused, ObjectNotFound, TooLarge
from gpufleet.kubernetes.client.resources import Deleted, Resource, T
from gpufleet.kubernetes.client.timing import Backoff
from gpufleet.kubernetes.client.watch import WatchBatch
from gpufleet.runtime.logs import get_logger

_log = get_logger("kube")


@dataclass(frozen=True)
class WatchTimings:
    """Durations of a reflector's watches, in seconds."""

    backoff: Backoff = Backoff(initial=0.2, maximum=10.0)  # noqa: RUF009  (frozen)
    duration: float = 300.0
    """Length of a watch; up to half as much is added at random, so that clients don't reconnect together."""
    idle_timeout: float = 120.0
    """Close a watch that has been silent for so long: servers send bookmarks about every minute."""
    healthy_after: float = 10.0
    """Reset the backoff once a watch has been open for so long."""
    absent: float = 60.0
    """Look again after so long for an optional kind that the server does not have."""


@dataclass(frozen=True)
class ReflectorState:
    """The state of a reflector, for probes and metrics."""

    synced: bool
    """Whether the first list is complete."""
    watching: bool
    """Whether a watch is open."""
    objects: int
    resource_version: str
    lag: float
    """Seconds since the cache was known to be current; 0 while the watch is open and active."""
    lists: int
    watches: int
    error: str
    """Why no watch is open; empty while one is."""
    forbidden: bool
    """Whether the reason is a missing permission."""
    absent: bool = False
    """Whether the reason is that the server does not have this optional kind."""
    failures: int = 0
    """Lists and watches that failed since the start."""


class Reflector(Generic[T]):
    """Keeps a `Cache` of the selected objects of one kind; `run` it in its own task."""

    def __init__(
        self,
        client: KubeClient,
        resource: Resource[T],
        select: Selection = ALL,
        *,
        page_size: int = PAGE_SIZE,
        timings: WatchTimings = WatchTimings(),  # noqa: B008  (frozen)
        freeze: bool = False,
        optional: bool = False,
        older: Sequence[Resource[T]] = (),
    ) -> None:
        """Create the reflector; `freeze` hides the objects of the first list from the garbage collector.

        The server may lack an `optional` kind, or serve it only in an `older` version.
        """
        self.cache: Cache[T] = Cache(client.cache_budget, client.annotations)
        self.resource = resource
        self._versions = (resource, *older)
        self._optional = optional
        self._client = client
        self._select = select
        self._page_size = page_size
        self._timings = timings
        self._freeze = freeze
        self._timing = client.timing
        self._version = ""
        self._synced = asyncio.Event()
        self._watching = False
        self._updated_at = self._timing.monotonic()
        self._lists = self._watches = 0
        self._error = ""
        self._failures = 0
        self._forbidden = self._absent = False

    @property
    def state(self) -> ReflectorState:
        """Return the current state."""
        silence = self._timing.monotonic() - self._updated_at
        return ReflectorState(
            synced=self._synced.is_set(),
            watching=self._watching,
            objects=len(self.cache),
            resource_version=self._version,
            lag=0.0 if self._watching and silence < self._timings.idle_timeout else silence,
            lists=self._lists,
            watches=self._watches,
            error=self._error,
            forbidden=bool(self._error) and self._forbidden,
            absent=bool(self._error) and self._absent,
            failures=self._failures,
        )

    def subscribe(self, listener: Listener[T]) -> Callable[[], None]:
        """Call `listener` with the current objects and then with every change; return a function that unsubscribes."""
        return self.cache.subscribe(listener)

    async def synced(self) -> None:
        """Wait until the first list is complete."""
        await self._synced.wait()

    async def run(self) -> None:
        """List and watch until cancelled."""
        failures = 0
        while True:
            opened_at, absent = self._timing.monotonic(), False
            try:
                if not self._version:
                    await self._list()
                opened_at = self._timing.monotonic()
                await self._watch()
                if self.cache.left_out:  # there may be room now
                    self._version = ""
            except Gone as error:
                self._version = ""
                self._set_error(error)
            except TooLarge as error:
                # Not at the same version again: the watch would send the same events.
                self._version = ""
                self._set_error(error)
            except ObjectNotFound as error:
                absent = self._optional
                self._set_error(error, absent=absent)
            except (KubernetesUnavailable, KubernetesRefused) as error:
                self._set_error(error)
            finally:
                self._watching = False
            if absent:
                await self._try_next_version()
                continue
            healthy = self._timing.monotonic() - opened_at >= self._timings.healthy_after
            failures = 1 if healthy else failures + 1
            await self._timing.sleep(self._timings.backoff.delay(failures, self._timing.random()))

    async def _try_next_version(self) -> None:
        """Forget what was listed and turn to the next version of the kind; after the last one, wait."""
        self._version = ""
        self.cache.notify(self.cache.remove(self.cache.keys()))
        at = (self._versions.index(self.resource) + 1) % len(self._versions)
        self.resource = self._versions[at]
        if at == 0:
            await self._timing.sleep(self._timings.absent)

    def _set_error(self, error: Exception, *, absent: bool = False) -> None:
        message = str(error)
        if absent:
            if not self._error:
                _log.debug("kind_not_served", kind=self.resource.kind, api_version=self.resource.api_version)
        elif message != self._error:
            _log.warning("watch_interrupted", kind=self.resource.kind, error=message)
        self._error = message
        self._failures += not absent
        self._forbidden, self._absent = isinstance(error, Forbidden), absent

    async def _list(self) -> None:
        self._lists += 1
        self.cache.left_out.clear()
        before = set(self.cache.keys())
        try:
            try:
                version, seen = await self._store_pages(self._page_size)
            except Gone:
                # The continue token expired between two pages. A list in one page has none.
                version, seen = await self._store_pages(0)
        except TooLarge:
            # Its objects must not accumulate over several attempts.
            self.cache.notify(self.cache.remove(self.cache.keys() - before))
            raise
        self.cache.notify(self.cache.remove(self.cache.keys() - seen))
        self._version = version
        self._updated_at = self._timing.monotonic()
        if not self._synced.is_set():
            if self._freeze:
                gc.collect()
                gc.freeze()
            self._synced.set()

    async def _store_pages(self, size: int) -> tuple[str, set[Key]]:
        version, seen = "", set[Key]()
        async with aclosing(self._client.pages(self.resource, self._select, limit=size)) as pages:
            async for page in pages:
                version = version or page.resource_version
                seen.update(key_of(item) for item in page.items)
                changes = self.cache.put(page.items)
                try:
                    self._check_size("list")
                except TooLarge:
                    self.cache.undo(changes)
                    raise
                self.cache.notify(changes)
        return version, seen

    async def _watch(self) -> None:
        self._watches += 1
        watch = self._client.watch(
            self.resource,
            self._select,
            resource_version=self._version,
            seconds=self._timings.duration * (1 + 0.5 * self._timing.random()),
            idle=self._timings.idle_timeout,
        )
        async with aclosing(watch) as batches:
            async for batch in batches:
                self._updated_at = self._timing.monotonic()
                self._watching, self._error = True, ""
                changes = self._apply(batch)
                try:
                    self._check_size("watch")
                except TooLarge:
                    self.cache.undo(changes)
                    deleted = [key_of(change.object) for change in changes if change.after is None]
                    self.cache.notify(self.cache.remove(deleted))
                    raise
                self.cache.notify(changes)
                self._version = batch.resource_version

    def _check_size(self, verb: str) -> None:
        budget = self._client.cache_budget
        kind = f"{verb} of {self.resource.plural}"
        if len(self.cache) > self._client.max_objects:
            raise TooLarge(f"{kind}: there are more than {self._client.max_objects} objects")
        if budget.used > budget.max_bytes:
            raise TooLarge(
                f"{kind}: all objects together need more than {budget.max_bytes} bytes; "
                "raise kubernetes.max_cache_bytes if the cluster is that large"
            )

    def _apply(self, batch: WatchBatch[T]) -> list[CacheChange[T]]:
        changes: list[CacheChange[T]] = []
        for event in batch.changes:
            if isinstance(event, Deleted):
                changes += self.cache.remove((key_of(event.object),))
            else:
                changes += self.cache.put((event.object,))
        return changes
