"""Read from the server when waiting claims are expected to start, for the status of claims.

The server knows the run times of the last weeks. A status must not change with every reading: times are rounded, the
coarser the further away they are, and a written one is kept until it is passed or clearly wrong.
"""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import aiohttp
import msgspec

from gpufleet.errors import ServerUnavailable
from gpufleet.kubernetes import Timing
from gpufleet.runtime.logs import RepeatedWarnings, get_logger
from gpufleet.runtime.settings import SchedulerSettings
from gpufleet.scheduler.queues.server_api import ServerApi
from gpufleet.scheduler.state.indexes import Key

_log = get_logger("scheduler")

PATH = "/api/queue"
_STEPS = (
    (timedelta(hours=1), 5 * 60),
    (timedelta(hours=6), 15 * 60),
    (timedelta(days=1), 3600),
    (timedelta.max, 6 * 3600),
)
"""To how many seconds a time is rounded that is nearer than this."""
_CLEARLY_WRONG = 0.5
"""A change by this part of the remaining time is written."""


class _Estimate(msgspec.Struct, rename="camel"):
    expected_start: datetime | None = None


class _Unit(msgspec.Struct):
    namespace: str
    estimate: _Estimate
    claims: list[str] = []


class _Page(msgspec.Struct):
    data: list[_Unit]


class _Envelope(msgspec.Struct):
    data: _Page


class StartReader:
    """Keeps the expected starts of waiting claims; `run` it while leading."""

    def __init__(
        self,
        settings: SchedulerSettings,
        timing: Timing,
        waiting: Callable[[], bool],
        changed: Callable[[str, str], None],
    ) -> None:
        """`waiting` returns whether any unit waits; `changed` is called with each claim whose time has changed."""
        self._settings = settings
        self._server = ServerApi(settings)
        self._timing = timing
        self._waiting = waiting
        self._changed = changed
        self._warnings = RepeatedWarnings(_log, timing.monotonic)
        self._expected: dict[Key, datetime] = {}

    def expected(self, claim: Key) -> datetime | None:
        """Return when a waiting claim is expected to start; None if that is unknown or passed."""
        found = self._expected.get(claim)
        return found if found is not None and found > self._timing.now() else None

    async def run(self) -> None:
        """Read until cancelled, while units wait."""
        if not self._settings.server_url:
            return
        async with self._server.session() as session:
            while True:
                if self._waiting():
                    await self.read(session)
                await self._timing.sleep(self._settings.server_refresh)

    async def read(self, session: aiohttp.ClientSession) -> None:
        """Read the queue once; keep what is known if that fails."""
        try:
            body = await self._server.get(session, PATH, {})
            units = msgspec.json.decode(body, type=_Envelope).data.data
        except (ServerUnavailable, msgspec.MsgspecError) as error:
            self._warnings.warn("", "expected_starts_not_read", error=str(error))
            return
        self._warnings.clear("")
        self.update(
            {(unit.namespace, claim): unit.estimate.expected_start for unit in units for claim in unit.claims}
        )

    def update(self, starts: dict[Key, datetime | None]) -> None:
        """Use new estimates; claims that are not among them do not wait any more."""
        now = self._timing.now()
        for key in self._expected.keys() - starts.keys():
            del self._expected[key]
        for key, start in starts.items():
            known = self._expected.get(key)
            if start is None or start <= now:
                new = None
            elif known is not None and known > now and not _differs(known, start, now):
                continue
            else:
                new = rounded(start, now)
            if new != known:
                if new is None:
                    del self._expected[key]
                else:
                    self._expected[key] = new
                self._changed(*key)


def rounded(start: datetime, now: datetime) -> datetime:
    """Return a time rounded up, the coarser the further away it is."""
    step = next(step for limit, step in _STEPS if start - now < limit)
    return datetime.fromtimestamp(-(-start.timestamp() // step) * step, UTC)


def _differs(known: datetime, start: datetime, now: datetime) -> bool:
    remaining = max((known - now).total_seconds(), 600.0)
    return abs((start - known).total_seconds()) > _CLEARLY_WRONG * remaining
