"""The metric source at one moment: the same evaluation time for all that belongs together.

Answers are decoded, and columns computed, in one worker thread. It shares the interpreter
with the event loop, but in slices of milliseconds, so that requests are served in between.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import ParamSpec, TypeVar

from gpufleet.exporters.prometheus.client import PrometheusClient
from gpufleet.exporters.prometheus.responses import Labels, decode_instant, decode_names
from gpufleet.model.reading import Column

P = ParamSpec("P")
R = TypeVar("R")


@dataclass(frozen=True)
class QuerySnapshot:
    """Asks a client, always for the same time."""

    client: PrometheusClient
    worker: Executor
    at: float
    shortfalls: list[str] = field(default_factory=list)
    """Why some of the answers may not be all that there is."""

    async def vector(self, expression: str, names: tuple[str, ...]) -> tuple[list[Labels], Column]:
        """The label sets (only the labels named) and values of an instant query."""
        body = await self.client.instant(expression, self.at)
        return await self.work(decode_instant, body, names, self.shortfalls.append)

    async def names(self, start: float, end: float) -> list[str]:
        """The names of all metrics that there were from `start` to `end`."""
        body = await self.client.names(start, end)
        return await self.work(decode_names, body, self.shortfalls.append)

    async def work(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Compute something in the worker thread."""
        return await asyncio.get_running_loop().run_in_executor(
            self.worker, lambda: function(*args, **kwargs)
        )
