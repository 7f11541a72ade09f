"""The time that a request may take, kept for all of them by one timer.

As `asyncio.timeout`, at a tenth of its cost, which every request pays: all have the same time, so the
first to begin is the first to end, and one timer that waits for that one serves for all.
"""

import asyncio
from collections.abc import Callable


class Deadline:
    """Of one task: cancels it when its time is up, until lifted."""

    __slots__ = ("_passed", "_running", "_task")

    def __init__(self, task: "asyncio.Task[object] | None", running: "dict[Deadline, float]") -> None:
        self._task = task
        self._running = running
        self._passed = False

    def lift(self) -> None:
        """Let the task go on."""
        self._running.pop(self, None)

    def reason(self, error: BaseException) -> BaseException:
        """What ended the task: a timeout if it was this, else `error`."""
        if self._passed and isinstance(error, asyncio.CancelledError) and self._task is not None:
            self._task.uncancel()
            return TimeoutError()
        return error

    def expire(self) -> None:
        """Cancel the task."""
        self._passed = True
        if self._task is not None:
            self._task.cancel()


class Deadlines:
    """Of all tasks of one loop, each `seconds` after its beginning."""

    def __init__(self, seconds: float, loop: asyncio.AbstractEventLoop, clock: Callable[[], float]) -> None:
        self._seconds = seconds
        self._loop = loop
        self._clock = clock
        self._running: dict[Deadline, float] = {}
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, started: float) -> Deadline:
        """The deadline of the task in hand, which began at `started` by the clock."""
        deadline = Deadline(asyncio.current_task(self._loop), self._running)
        self._running[deadline] = started + self._seconds
        if self._timer is None:
            self._timer = self._loop.call_later(self._seconds, self._expire)
        return deadline

    def unlimited(self) -> Deadline:
        """For a task that may take as long as it likes."""
        return Deadline(asyncio.current_task(self._loop), self._running)

    def _expire(self) -> None:
        self._timer = None
        now = self._clock()
        while self._running:
            first = next(iter(self._running))
            left = self._running[first] - now
            if left > 0:
                self._timer = self._loop.call_later(left, self._expire)
                return
            del self._running[first]
            first.expire()
