"""Run a process until SIGTERM or SIGINT, and stop it in an orderly way.

The first signal cancels the main task, so that its `async with` blocks close what they opened, in
reverse order. A main task that has a gentler way to stop, such as finishing requests in flight, sets
`Stopper.on_stop`; then every signal calls that instead, and the second call may hurry.
"""

import asyncio
import signal
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager

SIGNALS = (signal.SIGTERM, signal.SIGINT)


class Stopper:
    """Stops the main task of a process."""

    def __init__(self, task: "asyncio.Task[object]") -> None:
        self._task = task
        self.on_stop: Callable[[], None] | None = None
        self.requested = False
        """Whether a signal has arrived."""

    def stop(self) -> None:
        """Call `on_stop`, or cancel the main task if there is none."""
        first, self.requested = not self.requested, True
        if self.on_stop is not None:
            self.on_stop()
        elif first:
            # Only once: a second cancellation would interrupt cleanup, such as the stop of a database.
            self._task.cancel()


@contextmanager
def stop_on_signals() -> Iterator[Stopper]:
    """Stop the current task on SIGTERM and SIGINT for the duration of the block."""
    loop, task = asyncio.get_running_loop(), asyncio.current_task()
    assert task is not None
    stopper = Stopper(task)
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
) -> int:
    """Run `main` until it returns or a signal stops it, and return exit status 0."""

    async def guarded() -> None:
        with stop_on_signals() as stopper:
            try:
                await main(stopper)
            except asyncio.CancelledError:
                if not stopper.requested:
                    raise

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(guarded())
    return 0
