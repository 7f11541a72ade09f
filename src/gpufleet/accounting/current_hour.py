"""Compute the hour that is not over yet, on request.

Nothing is stored. Any server computes it from the same data as a finished hour, cut off at the present.
The result is shared for half a minute, because an hour of a large cluster takes seconds to compute.
"""

import asyncio
import time
from collections.abc import Callable

from gpufleet.accounting.loop import AccountedCluster
from gpufleet.accounting.roll_hour import compute_hour, statuses
from gpufleet.model.hours import Hour, WorkloadHour
from gpufleet.model.statistics import HoursQuery
from gpufleet.store import Store
from gpufleet.store.hours.current_rows import NO_ROWS, CurrentRows, current_rows

MAX_AGE = 30.0
"""Seconds for which a computed hour is returned again."""


class CurrentHour:
    """The running hour of one cluster."""

    def __init__(
        self, account: AccountedCluster, store: Store, clock: Callable[[], float] = time.time
    ) -> None:
        self._account = account
        self._store = store
        self._clock = clock
        self._computing = asyncio.Lock()
        self._computed: tuple[float, Hour | None] | None = None
        self._status: Callable[[WorkloadHour], str] = lambda _: ""

    async def rows(self, query: HoursQuery) -> CurrentRows:
        """Return the rows of the hour so far; none before its first sample or snapshot."""
        async with self._computing:
            now = self._clock()
            if self._computed is None or not self._fresh(self._computed[0], now):
                self._computed = now, await self._compute(now)
        at, hour = self._computed
        return current_rows(query, hour, at, self._status) if hour is not None else NO_ROWS

    @staticmethod
    def _fresh(at: float, now: float) -> bool:
        return 0 <= now - at < MAX_AGE and at // 3600 == now // 3600

    async def _compute(self, now: float) -> Hour | None:
        account, store, number = self._account, self._store, int(now // 3600)
        fleet = account.recorder.fleet
        rolled = await compute_hour(
            fleet.cluster, number, account.step, store, account.metrics, account.plan, until=now
        )
        self._status = await statuses(fleet.cluster, number, rolled.hour, store, fleet.final_status)
        return rolled.hour
