"""Run work in background tasks; log failures."""

import asyncio
from collections.abc import Coroutine, Iterator
from typing import Any

from gpufleet.runtime.logs import get_logger

_log = get_logger("scheduler")


class BackgroundTasks:
    """Tasks that nothing waits for; iterate over those that still run."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()

    def __iter__(self) -> Iterator[asyncio.Task[None]]:
        return iter(set(self._tasks))

    def __len__(self) -> int:
        return len(self._tasks)

    def start(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run `work` in a background task."""
        task = asyncio.ensure_future(_logged(work))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


async def _logged(work: Coroutine[Any, Any, Any]) -> None:
    try:
        await work
    except Exception as error:  # noqa: BLE001  a background task must not fail silently
        _log.warning("background_task_failed", error=str(error))
