"""Run the application: listen, serve, stop without dropping a request.

SIGTERM and SIGINT stop the listening; requests in flight get the grace period of the settings,
and what is still running then is cancelled.
"""

import asyncio
import gc
import math
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn
from litestar.types import ASGIApp

from gpufleet.server.health import Lifecycle
from gpufleet.server.http.protocol import BoundedProtocol

SWITCH_SECONDS = 0.001
"""How long a thread may work on while the event loop waits for its turn.

Python's 5 ms come again at each system call of the loop; while readings of 100,000 GPUs were decoded in
threads, that held requests up for 70 ms at the most, and does for 30 ms with this.
"""

_HURRY = 1.0
"""Seconds that cancelled requests get for their last word when the server has to stop at once."""


class Server(uvicorn.Server):
    """uvicorn's server without its signal handling, which would end the process before cleaning up."""

    def __init__(self, app: ASGIApp, lifecycle: Lifecycle, shutdown_grace: float) -> None:
        super().__init__(
            uvicorn.Config(
                app,
                http=BoundedProtocol,
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                timeout_graceful_shutdown=math.ceil(shutdown_grace),
            )
        )
        self._lifecycle = lifecycle
        self.on_started: Callable[[], None] = lambda: None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen, and say so."""
        await super().startup(sockets)
        # What is there now stays: the collector need not look through all the code of the program
        # again and again while requests come and go.
        gc.collect()
        gc.freeze()
        sys.setswitchinterval(SWITCH_SECONDS)
        self.on_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop to listen, let requests finish, and end the application."""
        await super().shutdown(sockets)
        if self.force_exit:
            # uvicorn leaves everything running then, and the end of the loop would cancel it with tracebacks.
            tasks = set(self.server_state.tasks)
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks, timeout=_HURRY)
            await self.lifespan.shutdown()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to `stop_on_signals`."""
        yield

    def stop(self) -> None:
        """Finish what is in flight and return from `serve`; a second call returns at once."""
        self.force_exit = self.should_exit
        self.should_exit = True
        self._lifecycle.stop()


@contextmanager
def stop_on_signals() -> "Iterator[Stopper]":
    """Within this, SIGTERM and SIGINT cancel the task that entered it, or stop its server once it has one."""
    loop = asyncio.get_running_loop()
    task = asyncio.current_task()
    assert task is not None
    stopper = Stopper(task)
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopper.stop)
    try:
        yield stopper
    finally:
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.remove_signal_handler(number)
            if stopper.asked:
                # Everything is closed; who asks again now would make a clean end look like a kill.
                signal.signal(number, signal.SIG_IGN)


class Stopper:
    """Knows what a signal has to stop."""

    def __init__(self, task: "asyncio.Task[object]") -> None:
        self._task = task
        self.server: Server | None = None
        self.asked = False

    def stop(self) -> None:
        """Stop the server, or the start of it; a second time it makes the server hurry."""
        first, self.asked = not self.asked, True
        if self.server is not None:
            self.server.stop()
        elif first:
            # Once only: what is already being closed must not be interrupted, it may be a database.
            self._task.cancel()
