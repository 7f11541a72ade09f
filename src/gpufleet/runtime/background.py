"""Background tasks of a process, restarted when they fail.

A task that fails or returns is logged and restarted after a backoff that doubles, so that a fault in
one component does not stop the process. All tasks are cancelled and awaited when the process stops.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

from gpufleet.runtime.logs import get_logger

FIRST_BACKOFF, MAX_BACKOFF = 1.0, 60.0
STEADY = 60.0
"""Seconds of running after which the next fault starts again with the first backoff."""

_log = get_logger("background")


class Background:
    """The tasks of one process; the end of `async with` cancels them all."""

    def __init__(self, first_backoff: float = FIRST_BACKOFF) -> None:
        self._first_backoff = first_backoff
        self._tasks: dict[str, asyncio.Task[None]] = {}

    def start(self, name: str, work: Callable[[], Awaitable[None]], *, cluster: str = "") -> None:
        """Run `work`, and run it again whenever it fails or returns."""
        self._add(name, cluster, self._restart(work, _fields(name, cluster)))

    def once(self, name: str, work: Awaitable[None], *, cluster: str = "") -> None:
        """Run `work` once and log it if it fails."""
        self._add(name, cluster, self._run_once(work, _fields(name, cluster)))

    def _add(self, name: str, cluster: str, work: Coroutine[Any, Any, None]) -> None:
        name = f"{name}/{cluster}" if cluster else name
        self._tasks[name] = asyncio.create_task(work, name=name)

    def running(self) -> list[str]:
        """Return the tasks that have not ended: `name`, or `name/cluster`."""
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

    async def _restart(self, work: Callable[[], Awaitable[None]], fields: Mapping[str, str]) -> None:
        backoff = self._first_backoff
        while True:
            started = time.monotonic()
            try:
                await work()
                _log.warning("task_ended", **fields, restart_in_s=backoff)
            except Exception:  # noqa: BLE001  (no fault of a task may stop the process)
                _log.exception("task_failed", **fields, restart_in_s=backoff)
            if time.monotonic() - started > STEADY:
                backoff = self._first_backoff
            await asyncio.sleep(backoff)
            backoff = min(2 * backoff, MAX_BACKOFF)

    async def _run_once(self, work: Awaitable[None], fields: Mapping[str, str]) -> None:
        try:
            await work
        except Exception:  # noqa: BLE001  (as above)
            _log.exception("task_failed", **fields)


def _fields(name: str, cluster: str) -> dict[str, str]:
    return {"task": name, "cluster": cluster} if cluster else {"task": name}
