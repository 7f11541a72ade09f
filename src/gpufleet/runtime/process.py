"""Run a process until SIGTERM or SIGINT, and stop it in an orderly way.

The first signal cancels the main task, so that its `async with` blocks close what they opened, in
reverse order. A main task that has a gentler way to stop, such as finishing requests in flight, sets
`Stopper.on_stop`; then every signal calls that instead, and the second call may hurry.

If the process still runs `stop_seconds` after the first signal, a watchdog ends it: cleanup may wait for
something that never answers.
"""

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager

from gpufleet.runtime.logs import get_logger

STOP_SECONDS = 20.0
"""Seconds for cleanup after the time that requests in flight get."""

SIGNALS = (signal.SIGTERM, signal.SIGINT)


_log = get_logger("process")


class Stopper:
    """Stops the main task of a process."""

    def __init__(self, task: "asyncio.Task[object]", watchdog: threading.Timer | None = None) -> None:
        """Start `watchdog` with the first signal."""
        self._task = task
        self._watchdog = watchdog
        self.on_stop: Callable[[], None] | None = None
        self.requested = False
        """Whether a signal has arrived."""

    def stop(self) -> None:
        """Call `on_stop`, or cancel the main task if there is none."""
        first, self.requested = not self.requested, True
        if first and self._watchdog is not None:
            self._watchdog.start()
        if self.on_stop is not None:
            self.on_stop()
        elif first:
            # Only once: a second cancellation would interrupt cleanup, such as the stop of a database.
            self._task.cancel()


@contextmanager
def stop_on_signals(watchdog: threading.Timer | None = None) -> Iterator[Stopper]:
    """Stop the current task on SIGTERM and SIGINT for the duration of the block."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    stopper = Stopper(task, watchdog)
    for number in SIGNALS:
        loop.add_signal_handler(number, stopper.stop)
    try:
        yield stopper
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)
            if stopper.requested:
                # Everything is closed. Another signal now would turn a clean exit into a kill.
                signal.signal(number, signal.SIG_IGN)


def run_until_stopped(
    main: Callable[[Stopper], Coroutine[object, object, None]],
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
    *,
    stop_seconds: float | None = None,
) -> int:
    """Run `main` until it returns or a signal stops it, and return exit status 0.

    With `stop_seconds` exit with status 1 if a stop takes longer.
    """
    with asyncio.Runner(loop_factory=loop_factory) as runner:
        watchdog = None
        if stop_seconds is not None:
            watchdog = threading.Timer(stop_seconds, _exit, (runner.get_loop(), stop_seconds))
            watchdog.daemon = True

        async def guarded() -> None:
            with stop_on_signals(watchdog) as stopper:
                try:
                    await main(stopper)
                except asyncio.CancelledError:
                    if not stopper.requested:
                        raise

        runner.run(guarded())
    if watchdog is not None:
        watchdog.cancel()
    return 0


def _exit(loop: asyncio.AbstractEventLoop, seconds: float) -> None:
    """End the process at once and log what still runs."""
    tasks = sorted(task.get_name() for task in asyncio.all_tasks(loop))
    threads = sorted(each.name for each in threading.enumerate() if not each.daemon)
    _log.error("stop_timed_out", seconds=seconds, tasks=tasks, threads=threads)
    os._exit(1)
