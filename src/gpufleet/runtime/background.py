"""Work that goes on beside the server until it stops.

Each task is watched: one that breaks or ends is logged and begun again after a wait that doubles,
so that a fault costs one part for a while and never the server. All are cancelled, and waited
for, when the server stops.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import TracebackType
from typing import Self

from gpufleet.runtime.logs import get_logger

FIRST_WAIT, LONGEST_WAIT = 1.0, 60.0
STEADY = 60.0
"""Seconds after which a task counts as healthy again and its next fault as the first."""

_log = get_logger("background")


class Background:
    """The tasks of one server; `async with` ends them all at its end."""

    def __init__(self, first_wait: float = FIRST_WAIT) -> None:
        self._first_wait = first_wait
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        """Run `work` over and over until the end; it is called anew after each fault."""
        self._tasks[name] = asyncio.create_task(self._keep(name, work), name=name)

    def once(self, name: str, work: Awaitable[None]) -> None:
        """Run `work` once; if it breaks, that is logged."""
        self._tasks[name] = asyncio.create_task(self._try(name, work), name=name)

    def running(self) -> list[str]:
        """The names of the tasks that have not ended."""
        return sorted(name for name, task in self._tasks.items() if not task.done())

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for task in self._tasks.values():
            task.cancel()
        for task in self._tasks.values():
            with suppress(asyncio.CancelledError):
                await task

    async def _keep(self, name: str, work: Callable[[], Awaitable[None]]) -> None:
        wait = self._first_wait
        while True:
            began = time.monotonic()
            try:
                await work()
                _log.warning("task ended, beginning again", task=name, wait_s=wait)
            except Exception:  # noqa: BLE001  (whatever it is, it must not end the server)
                _log.exception("task broke, beginning again", task=name, wait_s=wait)
            if time.monotonic() - began > STEADY:
                wait = self._first_wait
            await asyncio.sleep(wait)
            wait = min(2 * wait, LONGEST_WAIT)

    async def _try(self, name: str, work: Awaitable[None]) -> None:
        try:
            await work
        except Exception:  # noqa: BLE001  (as above)
            _log.exception("task broke", task=name)
