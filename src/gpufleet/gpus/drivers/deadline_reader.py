"""Ask a driver that may hang, and never hang with it.

A call into a driver can't be cancelled, only abandoned. So driver calls run in a daemon thread;
the asker waits with a deadline. When it passes, the thread is left behind, the reader says since
when the driver is silent, and after a pause that doubles each time a fresh thread tries again.
Threads left behind are counted and never more than `max_stuck`: past that, nothing is tried until
one comes back, and `stuck` tells whoever watches that only a new process can help.

Readings and events run in two lanes, because waiting for an event must not hold up a reading.
"""

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from datetime import UTC, datetime
from queue import SimpleQueue
from typing import Any, Generic, TypeVar

from gpufleet.errors import DevicesUnavailable
from gpufleet.gpus.drivers.reader import DeviceReader
from gpufleet.gpus.known_gpus import call_the_roll
from gpufleet.model.device import Device, DeviceEvent, DeviceProcess, DeviceReading

T = TypeVar("T")


class DeadlineReader:
    """The GPUs of this machine for async callers, with a deadline on every question."""

    def __init__(
        self,
        open_reader: Callable[[], DeviceReader],
        *,
        deadline: float = 5.0,
        first_pause: float = 5.0,
        longest_pause: float = 300.0,
        max_stuck: int = 4,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`open_reader` runs in the worker thread, for it too may hang; times are in seconds."""
        self._deadline = deadline
        self._readings = _Lane(open_reader, first_pause, longest_pause, max_stuck, now)
        self._events = _Lane(open_reader, first_pause, longest_pause, max_stuck, now)
        self._known: tuple[Device, ...] = ()

    @property
    def silent_since(self) -> float | None:
        """Unix time of the first question without an answer; None while the driver answers."""
        return self._readings.silent_since

    @property
    def stuck(self) -> int:
        """How many threads sit in a driver call that does not return."""
        return self._readings.stuck + self._events.stuck

    async def describe(self) -> tuple[str, bool]:
        """The reader's name, and whether its devices are simulated."""
        return await self._readings.ask(lambda reader: (reader.name, reader.simulated), self._deadline)

    async def inventory(self) -> tuple[Device, ...]:
        """Every GPU by index, with those that the machine had before and that are gone or lost."""
        found = await self._readings.ask(lambda reader: reader.inventory(), self._deadline)
        self._known = call_the_roll(self._known, found)
        return self._known

    async def readings(self) -> tuple[DeviceReading, ...]:
        """One reading for each GPU that the driver lists, by index."""
        return await self._readings.ask(lambda reader: reader.readings(), self._deadline)

    async def processes(self, identify: bool = False) -> tuple[DeviceProcess, ...]:
        """Every program on a GPU, by GPU then pid; user and command only if asked to `identify`."""
        return await self._readings.ask(lambda reader: reader.processes(identify), self._deadline)

    async def events(self, timeout: float) -> tuple[DeviceEvent, ...]:  # noqa: ASYNC109 - the driver waits
        """Errors since the last call; waits up to `timeout` seconds for the first one."""
        return await self._events.ask(lambda reader: reader.events(timeout), timeout + self._deadline)

    async def close(self) -> None:
        """Let go of the driver, unless it hangs; threads that hang end with the process."""
        for lane in (self._readings, self._events):
            await lane.close(self._deadline)


class _Lane:
    """One worker at a time, replaced when it hangs."""

    def __init__(
        self,
        open_reader: Callable[[], DeviceReader],
        first_pause: float,
        longest_pause: float,
        max_stuck: int,
        now: Callable[[], float],
    ) -> None:
        self.silent_since: float | None = None
        self._open = open_reader
        self._first_pause = first_pause
        self._longest_pause = longest_pause
        self._max_stuck = max_stuck
        self._now = now
        self._pause = first_pause
        self._next_try = 0.0
        self._worker: _Worker | None = None
        self._left_behind: list[_Worker] = []
        self._turn = asyncio.Lock()

    @property
    def stuck(self) -> int:
        return sum(worker.alive for worker in self._left_behind)

    async def ask(self, question: Callable[[DeviceReader], T], deadline: float) -> T:
        async with self._turn:
            worker = self._worker or self._hire()
            answer = asyncio.wrap_future(worker.put(question))
            try:
                async with asyncio.timeout(deadline):  # wait_for of Python 3.11 may swallow a cancellation
                    result = await answer
            except TimeoutError:
                self._leave_behind(worker)
                raise self._silence() from None
            except DevicesUnavailable:  # it refuses, but it speaks
                self.silent_since = None
                raise
            self.silent_since = None
            self._pause = self._first_pause
            return result

    async def close(self, deadline: float) -> None:
        async with self._turn:
            worker, self._worker = self._worker, None
            if worker is not None:
                try:
                    async with asyncio.timeout(deadline):
                        await asyncio.wrap_future(worker.end())
                except TimeoutError:
                    self._left_behind.append(worker)

    def _hire(self) -> "_Worker":
        came_back = len(self._left_behind) > self.stuck
        self._left_behind = [worker for worker in self._left_behind if worker.alive]
        # A wait longer than the longest is a clock that was set back.
        waits = 0 < self._next_try - self._now() <= self._longest_pause
        if not came_back and (waits or len(self._left_behind) >= self._max_stuck):
            raise self._silence()
        self._worker = _Worker(self._open)
        return self._worker

    def _leave_behind(self, worker: "_Worker") -> None:
        worker.abandon()
        self._left_behind.append(worker)
        self._worker = None
        if self.silent_since is None:
            self.silent_since = self._now()
        self._next_try = self._now() + self._pause
        self._pause = min(2 * self._pause, self._longest_pause)

    def _silence(self) -> DevicesUnavailable:
        since = datetime.fromtimestamp(self.silent_since or self._now(), UTC).isoformat(timespec="seconds")
        advice = (
            "tries are used up; restart this process once the driver is well"
            if self.stuck >= self._max_stuck
            else f"next try in {max(0.0, self._next_try - self._now()):.0f} s"
        )
        return DevicesUnavailable(f"the GPU driver does not answer since {since}; {advice}")


class _Job(Generic[T]):
    """A question and the place for its answer."""

    def __init__(self, question: Callable[[DeviceReader], T] | None) -> None:
        self.question = question
        self.answer: Future[T] = Future()


class _Worker:
    """A daemon thread that owns one reader, opened at its first question and after each failure."""

    def __init__(self, open_reader: Callable[[], DeviceReader]) -> None:
        self._open = open_reader
        self._jobs: SimpleQueue[_Job[Any]] = SimpleQueue()
        self._reader: DeviceReader | None = None
        self._abandoned = False
        self._thread = threading.Thread(target=self._work, name="gpu-driver", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def put(self, question: Callable[[DeviceReader], T]) -> "Future[T]":
        job = _Job(question)
        self._jobs.put(job)
        return job.answer

    def end(self) -> "Future[None]":
        job: _Job[None] = _Job(None)
        self._jobs.put(job)
        return job.answer

    def abandon(self) -> None:
        self._abandoned = True
        self.end()

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            if job.question is None or self._abandoned:
                self._drop_reader()
                if job.answer.set_running_or_notify_cancel():
                    job.answer.set_result(None)
                return
            if not job.answer.set_running_or_notify_cancel():
                continue
            try:
                self._reader = self._reader or self._open()
                job.answer.set_result(job.question(self._reader))
            except BaseException as error:  # noqa: BLE001 - it belongs to the asker
                self._drop_reader()
                job.answer.set_exception(error)

    def _drop_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            try:
                reader.close()
            except DevicesUnavailable:
                pass
