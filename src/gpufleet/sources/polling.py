"""Look at something again and again, and remember how that goes.

Slurm, container engines and this machine are asked in turns: each turn is one look that either
tells the fleet all it found or raises, in which case the fleet keeps what it knows. A look that
fails is logged when it begins to fail and when it says something new, not every time.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime

from gpufleet.errors import GpufleetError
from gpufleet.runtime.logs import get_logger

_log = get_logger("sources")


class Polling:
    """The turns of one source: when the last one succeeded, and why the newest failed."""

    def __init__(self, what: str, clock: Callable[[], float] = time.time) -> None:
        self.succeeded: float | None = None
        self.error = ""
        self._what = what
        self._clock = clock
        self._tried = asyncio.Event()
        self._synced = asyncio.Event()

    @property
    def problem(self) -> str:
        """What is wrong now, and since when the picture is old; empty if nothing is."""
        if not self.error or self.succeeded is None:
            return self.error
        since = datetime.fromtimestamp(self.succeeded, UTC).isoformat(timespec="seconds")
        return f"{self.error} (last heard of at {since})"

    async def synced(self) -> None:
        """Wait until one look succeeded."""
        await self._synced.wait()

    async def tried(self) -> None:
        """Wait until one look is over, whichever way it went."""
        await self._tried.wait()

    async def look(self, look: Callable[[], Awaitable[None]]) -> bool:
        """Take one turn; whether it succeeded."""
        try:
            await look()
        except GpufleetError as error:
            if str(error) != self.error:
                _log.warning("source not readable", source=self._what, error=str(error))
            self.error = str(error)
        else:
            if self.error:
                _log.info("source readable again", source=self._what)
            self.error, self.succeeded = "", self._clock()
            self._synced.set()
        self._tried.set()
        return not self.error

    async def forever(self, look: Callable[[], Awaitable[None]], period: float) -> None:
        """Take a turn every `period` seconds until cancelled."""
        while True:
            await self.look(look)
            await asyncio.sleep(period)
