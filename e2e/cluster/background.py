"""An event loop in a thread, for parts of the harness that run while a test does something else."""

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Background:
    """Runs coroutines in its own thread: `call` waits for the result, `start` does not."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    @property
    def running(self) -> bool:
        """Whether it is still open."""
        return self._thread.is_alive()

    def call(self, work: Coroutine[Any, Any, T], timeout: float = 60) -> T:
        """Run `work` in the loop and return its result."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout)

    def start(self, work: Coroutine[Any, Any, Any]) -> None:
        """Run `work` in the loop until it ends or the loop is closed."""
        asyncio.run_coroutine_threadsafe(work, self._loop)

    def call_function(self, function: Callable[[], object]) -> None:
        """Call a function in the loop and wait until it returns."""

        async def run() -> None:
            function()

        self.call(run())

    def close(self) -> None:
        """Cancel all tasks, close the loop and end the thread."""
        if not self.running:
            return
        self.call(self._cancel())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()

    async def _cancel(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        await self._loop.shutdown_asyncgens()
