"""Wait for a condition instead of a fixed time."""

import asyncio
import inspect
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar, overload

T = TypeVar("T")


@overload
async def wait_until(
    condition: Callable[[], Awaitable[T]], seconds: float = ..., interval: float = ...
) -> T: ...
@overload
async def wait_until(condition: Callable[[], T], seconds: float = ..., interval: float = ...) -> T: ...
async def wait_until(condition: Callable[[], Any], seconds: float = 30.0, interval: float = 0.005) -> Any:
    """Poll `condition` until its result, awaited if needed, is true. Return that result."""
    async with asyncio.timeout(seconds):
        while True:
            result = condition()
            if inspect.isawaitable(result):
                result = await result
            if result:
                return result
            await asyncio.sleep(interval)


def block_until(condition: Callable[[], T], seconds: float = 30.0) -> T:
    """Poll `condition` until its result is true, without an event loop. Return that result."""
    deadline = time.monotonic() + seconds
    while not (result := condition()):
        assert time.monotonic() < deadline, f"not true within {seconds:g} s; last result: {result!r}"
        time.sleep(0.05)
    return result


def listens(port: int) -> bool:
    """Return whether a local TCP port accepts connections."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
