"""Call a GPU driver with a deadline, because drivers may hang.

A call into a driver cannot be cancelled, only abandoned. So driver calls run in a daemon thread, and the
caller waits with a deadline. After a timeout the thread is abandoned, and a new thread retries with
exponential backoff. At most `max_stuck` abandoned threads may hang at a time; then nothing is retried
until one of them returns, and only a restart of the process helps if none does.

Readings and events have separate threads, because waiting for an event must not delay a reading.
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
from gpufleet.gpus.known_gpus import merge_known_gpus
from gpufleet.model.device import Device, DeviceEvent, DeviceProcess, DeviceReading
from gpufleet.runtime.settings import DevicesSettings

T = TypeVar("T")


class DeadlineReader:
    """Read the GPUs of this machine from async code, with a deadline for every call."""

    def __init__(
        self,
        open_reader: Callable[[], DeviceReader],
        *,
        deadline: float = DevicesSettings.deadline,
        min_backoff: float = 5.0,
        max_backoff: float = 300.0,
        max_stuck: int = 4,
        now: Callable[[], float] = time.time,
    ) -> None:
        """`open_reader` also runs in the thread, because it may hang too; times are in seconds."""
        self._deadline = deadline
        self._readings = _Caller(open_reader, min_backoff, max_backoff, max_stuck, now)
        self._events = _Caller(open_reader, min_backoff, max_backoff, max_stuck, now)
        self._known: tuple[Device, ...] = ()

    @property
    def silent_since(self) -> float | None:
        """Unix time of the first unanswered call; None while the driver answers."""
        return self._readings.silent_since

    @property
    def stuck(self) -> int:
        """The number of threads that hang in a driver call."""
        return self._readings.stuck + self._events.stuck

    async def describe(self) -> tuple[str, bool]:
        """Return the name of the reader and whether its devices are simulated."""
        return await self._readings.call(lambda reader: (reader.name, reader.simulated), self._deadline)

    async def inventory(self) -> tuple[Device, ...]:
        """Return all GPUs by index, including earlier ones that are now missing or lost."""
        found = await self._readings.call(lambda reader: reader.inventory(), self._deadline)
        self._known = merge_known_gpus(self._known, found)
        return self._known

    async def readings(self) -> tuple[DeviceReading, ...]:
        """Return one reading per GPU, by index."""
        return await self._readings.call(lambda reader: reader.readings(), self._deadline)

    async def health(self) -> tuple[object, ...]:
        """Return what the driver says of the GPUs' health, for comparison with an earlier answer."""
        return await self._readings.call(lambda reader: reader.health(), self._deadline)

    async def processes(self, identify: bool = False) -> tuple[DeviceProcess, ...]:
        """Return the processes on all GPUs by GPU and pid; user and command only with `identify`."""
        return await self._readings.call(lambda reader: reader.processes(identify), self._deadline)

    async def events(self, timeout: float) -> tuple[DeviceEvent, ...]:  # noqa: ASYNC109 - the driver waits
        """Return errors since the last call; wait up to `timeout` seconds for the first one."""
        return await self._events.call(lambda reader: reader.events(timeout), timeout + self._deadline)

    async def close(self) -> None:
        """Release the driver; threads that hang end with the process."""
        for caller in (self._readings, self._events):
            await caller.close(self._deadline)


class _Caller:
    """Call the driver in one thread at a time, and replace the thread when it hangs."""

    def __init__(
        self,
        open_reader: Callable[[], DeviceReader],
        min_backoff: float,
        max_backoff: float,
        max_stuck: int,
        now: Callable[[], float],
    ) -> None:
        self.silent_since: float | None = None
        self._open = open_reader
        self._min_backoff = min_backoff
        self._max_backoff = max_backoff
        self._max_stuck = max_stuck
        self._now = now
        self._backoff = min_backoff
        self._retry_at = 0.0
        self._worker: _Worker | None = None
        self._abandoned: list[_Worker] = []
        self._lock = asyncio.Lock()

    @property
    def stuck(self) -> int:
        return sum(worker.alive for worker in self._abandoned)

    async def call(self, function: Callable[[DeviceReader], T], deadline: float) -> T:
        async with self._lock:
            worker = self._worker or self._start_worker()
            pending = asyncio.wrap_future(worker.submit(function))
            try:
                async with asyncio.timeout(deadline):  # wait_for of Python 3.11 may swallow a cancellation
                    result = await pending
            except TimeoutError:
                self._abandon(worker)
                raise self._unavailable() from None
            except DevicesUnavailable:  # an error, but an answer
                self.silent_since = None
                raise
            self.silent_since = None
            self._backoff = self._min_backoff
            return result

    async def close(self, deadline: float) -> None:
        async with self._lock:
            worker, self._worker = self._worker, None
            if worker is not None:
                try:
                    async with asyncio.timeout(deadline):
                        await asyncio.wrap_future(worker.stop())
                except TimeoutError:
                    self._abandoned.append(worker)

    def _start_worker(self) -> "_Worker":
        returned = len(self._abandoned) > self.stuck
        self._abandoned = [worker for worker in self._abandoned if worker.alive]
        # A longer wait than the maximum means that the clock was set back.
        waiting = 0 < self._retry_at - self._now() <= self._max_backoff
        if not returned and (waiting or len(self._abandoned) >= self._max_stuck):
            raise self._unavailable()
        self._worker = _Worker(self._open)
        return self._worker

    def _abandon(self, worker: "_Worker") -> None:
        worker.abandon()
        self._abandoned.append(worker)
        self._worker = None
        if self.silent_since is None:
            self.silent_since = self._now()
        self._retry_at = self._now() + self._backoff
        self._backoff = min(2 * self._backoff, self._max_backoff)

    def _unavailable(self) -> DevicesUnavailable:
        since = datetime.fromtimestamp(self.silent_since or self._now(), UTC).isoformat(timespec="seconds")
        advice = (
            "all attempts hang; restart this process once the driver works again"
            if self.stuck >= self._max_stuck
            else f"retrying in {max(0.0, self._retry_at - self._now()):.0f} s"
        )
        return DevicesUnavailable(f"the GPU driver has not answered since {since}; {advice}")


class _Call(Generic[T]):
    """A function to call in the thread (None to stop) and the future of its result."""

    def __init__(self, function: Callable[[DeviceReader], T] | None) -> None:
        self.function = function
        self.future: Future[T] = Future()


class _Worker:
    """A daemon thread that owns one reader, opened at the first call and after each failure."""

    def __init__(self, open_reader: Callable[[], DeviceReader]) -> None:
        self._open = open_reader
        self._calls: SimpleQueue[_Call[Any]] = SimpleQueue()
        self._reader: DeviceReader | None = None
        self._abandoned = False
        self._thread = threading.Thread(target=self._run, name="gpu-driver", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._thread.is_alive()

    def submit(self, function: Callable[[DeviceReader], T] | None) -> "Future[T]":
        call = _Call(function)
        self._calls.put(call)
        return call.future

    def stop(self) -> "Future[None]":
        return self.submit(None)

    def abandon(self) -> None:
        self._abandoned = True
        self.stop()

    def _run(self) -> None:
        while True:
            call = self._calls.get()
            if call.function is None or self._abandoned:
                self._close_reader()
                if call.future.set_running_or_notify_cancel():
                    call.future.set_result(None)
                return
            if not call.future.set_running_or_notify_cancel():
                continue
            try:
                self._reader = self._reader or self._open()
                call.future.set_result(call.function(self._reader))
            except BaseException as error:  # noqa: BLE001 - the caller handles it
                self._close_reader()
                call.future.set_exception(error)

    def _close_reader(self) -> None:
        reader, self._reader = self._reader, None
        if reader is not None:
            try:
                reader.close()
            except DevicesUnavailable:
                pass
