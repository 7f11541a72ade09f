"""Read the accounted use of namespaces from the server.

While the server does not answer, the scheduler goes on with the last reading; the status of GpuQueues and a metric say so.
"""

import asyncio
from contextlib import suppress
from datetime import datetime

import aiohttp
import msgspec

from gpufleet.errors import ServerUnavailable
from gpufleet.kubernetes import Timing
from gpufleet.runtime.logs import RepeatedWarnings, get_logger
from gpufleet.runtime.settings import SchedulerSettings
from gpufleet.scheduler.queues.gpu_queues import GpuQueues
from gpufleet.scheduler.queues.recent_use import PeriodUse, UseReading
from gpufleet.scheduler.queues.server_api import ServerApi

_log = get_logger("scheduler")

PATH = "/api/v1/gpu-aggregation/namespaces/use"
FIRST_TIMEOUT = 5.0
"""Seconds for which a new leader waits for its first reading."""


class _Amount(msgspec.Struct):
    gpu_hours: float = 0.0
    cost: float = 0.0


class _Namespace(msgspec.Struct):
    namespace: str
    decayed_gpu_hours: float
    day: _Amount
    week: _Amount
    month: _Amount


class _Use(msgspec.Struct):
    """The fields of the server's response that are read."""

    until: datetime | None
    day_start: datetime
    week_start: datetime
    month_start: datetime
    namespaces: list[_Namespace]
    prices: dict[str, float]


class _Envelope(msgspec.Struct):
    data: _Use


class UseReader:
    """Reads the use again and again; `run` it while leading."""

    def __init__(self, queues: GpuQueues, settings: SchedulerSettings, timing: Timing) -> None:
        self._queues = queues
        self._settings = settings
        self._server = ServerApi(settings)
        self._timing = timing
        self._warnings = RepeatedWarnings(_log, timing.monotonic)
        self.problem = ""
        """Why the last reading failed."""

    async def read_first(self) -> None:
        """Read the use before the first unit is planned, if the server answers soon."""
        if self._settings.server_url and self._queues.active:
            with suppress(TimeoutError):
                async with asyncio.timeout(FIRST_TIMEOUT), self._server.session() as session:
                    await self.read(session)

    async def run(self) -> None:
        """Read until cancelled, as long as there are queues."""
        if not self._settings.server_url:
            return
        async with self._server.session() as session:
            while True:
                if self._queues.active:
                    await self.read(session)
                await self._timing.sleep(self._settings.server_refresh)

    async def read(self, session: aiohttp.ClientSession) -> None:
        """Read the use once; keep the last reading if that fails."""
        query = {"half_life": f"{self._settings.share_half_life:.0f}"}
        try:
            reading = parse(await self._server.get(session, PATH, query), self._timing.now())
        except ServerUnavailable as error:
            self.problem = str(error)
            self._warnings.warn("", "use_not_read", error=self.problem)
            return
        self.problem = ""
        self._warnings.clear("")
        self._queues.set_reading(reading)


def parse(body: bytes, now: datetime) -> UseReading:
    """Return the reading in a response."""
    try:
        use = msgspec.json.decode(body, type=_Envelope).data
    except msgspec.MsgspecError as error:
        raise ServerUnavailable(f"the server's response is not valid: {error}") from None
    if use.until is None:
        return UseReading(read_at=now.timestamp(), prices=use.prices)
    rows = use.namespaces
    return UseReading(
        until=use.until.timestamp(),
        read_at=now.timestamp(),
        decayed={row.namespace: row.decayed_gpu_hours * 3600 for row in rows},
        periods={
            "Day": {row.namespace: PeriodUse(row.day.gpu_hours, row.day.cost) for row in rows},
            "Week": {row.namespace: PeriodUse(row.week.gpu_hours, row.week.cost) for row in rows},
            "Month": {row.namespace: PeriodUse(row.month.gpu_hours, row.month.cost) for row in rows},
        },
        starts={
            "Day": use.day_start.timestamp(),
            "Week": use.week_start.timestamp(),
            "Month": use.month_start.timestamp(),
        },
        prices=use.prices,
    )
