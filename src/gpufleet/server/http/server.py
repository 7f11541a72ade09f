"""Run the ASGI application: listen, serve, and stop without dropping a request.

A stop closes the listening socket. Requests in flight get the grace period of the settings; then they are
cancelled. A second stop cancels them immediately.
"""

import asyncio
import gc
import math
import socket
import sys
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import AsyncExitStack, contextmanager

import uvicorn
from starlette.types import ASGIApp

from gpufleet.runtime.listening import address_of, bind
from gpufleet.runtime.process import Stopper
from gpufleet.runtime.stalled_connections import StallLimits
from gpufleet.server.health import Lifecycle
from gpufleet.server.limits.connection import MAX_HEAD_BYTES, connection_class

SWITCH_SECONDS = 0.001
"""Python's thread switch interval while the server runs.

With the default of 5 ms, threads that decode the readings of 100,000 GPUs delayed requests by up to 70 ms;
with 1 ms by up to 30 ms.
"""

_CANCEL_SECONDS = 1.0
"""Seconds for cancelled requests to send an answer when the server must stop immediately."""


SHUTDOWN_GRACE_S = 20.0
"""Time for requests in flight to finish after SIGTERM, shorter than the 30 s that Kubernetes gives a pod."""


class Server(uvicorn.Server):
    """uvicorn's server without its signal handling, which would end the process before cleanup."""

    def __init__(
        self,
        app: ASGIApp,
        lifecycle: Lifecycle,
        shutdown_grace: float = SHUTDOWN_GRACE_S,
        *,
        trusted_proxies: Sequence[str] = (),
        stalls: StallLimits = StallLimits(),  # noqa: B008  (frozen)
    ) -> None:
        """`trusted_proxies` are addresses and networks whose `X-Forwarded-For` names the client."""
        super().__init__(
            uvicorn.Config(
                app,
                http=connection_class(stalls),
                h11_max_incomplete_event_size=MAX_HEAD_BYTES,
                ws="none",
                lifespan="on",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=bool(trusted_proxies),
                forwarded_allow_ips=list(trusted_proxies),
                timeout_graceful_shutdown=math.ceil(shutdown_grace),
            )
        )
        self._lifecycle = lifecycle
        self.on_started: Callable[[], None] = lambda: None

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen, then call `on_started`."""
        await super().startup(sockets)
        # Code and long-lived objects stay; the garbage collector need not visit them again.
        gc.collect()
        gc.freeze()
        sys.setswitchinterval(SWITCH_SECONDS)
        self.on_started()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop listening, let requests finish, and end the application."""
        await super().shutdown(sockets)
        if self.force_exit:
            # uvicorn leaves requests running then, and closing the loop would log them as faults.
            tasks = set(self.server_state.tasks)
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks, timeout=_CANCEL_SECONDS)
            await self.lifespan.shutdown()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave the signals to `gpufleet.runtime.process`."""
        yield

    def stop(self) -> None:
        """Finish requests in flight and return from `serve`; a second call cancels them."""
        self.force_exit = self.should_exit
        self.should_exit = True
        self._lifecycle.stop()


async def run_server(
    host: str,
    port: int,
    build: Callable[[AsyncExitStack], Awaitable[Server]],
    on_started: Callable[[str], None],
    stopper: Stopper,
) -> None:
    """Bind the address, build the server and run it until stopped; `on_started` gets its URL.

    `build` enters what has to be closed after the server into the exit stack.
    """
    with bind(host, port) as listening:
        async with AsyncExitStack() as closing:
            server = await build(closing)
            server.on_started = lambda: on_started(address_of(listening))
            stopper.on_stop = server.stop
            await server.serve(sockets=[listening])
