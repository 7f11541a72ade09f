"""Run queries that belong together at the same evaluation time.

Responses are decoded and columns computed in one worker thread. It shares the interpreter with the
event loop in slices of milliseconds, so that requests are served in between.
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
    """Queries a client, always at the same time."""

    client: PrometheusClient
    worker: Executor
    at: float
    warnings: list[str] = field(default_factory=list)
    """Why some of the responses may be partial."""

    async def vector(self, expression: str, names: tuple[str, ...]) -> tuple[list[Labels], Column]:
        """Run an instant query. Return label sets with the labels `names`, and the values."""
        body = await self.client.instant(expression, self.at)
        return await self.work(decode_instant, body, names, self.warnings.append)

    async def names(self, start: float, end: float) -> list[str]:
        """Return the names of all metrics between `start` and `end`."""
        body = await self.client.names(start, end)
        return await self.work(decode_names, body, self.warnings.append)

    async def work(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Call a function in the worker thread."""
        return await asyncio.get_running_loop().run_in_executor(
            self.worker, lambda: function(*args, **kwargs)
        )
