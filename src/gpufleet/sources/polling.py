"""Refresh a source periodically and remember the outcome.

Slurm, container engines and this machine are polled. Each refresh either updates the fleet completely or
raises, in which case the fleet keeps its state. A failure is logged when its message changes, not on every
attempt.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import UTC, datetime

from gpufleet.errors import GpufleetError
from gpufleet.fleet.state import Fleet
from gpufleet.model.workload import FleetPod
from gpufleet.runtime.logs import get_logger

_log = get_logger("sources")


class Polling:
    """The refreshes of one source: when the last one succeeded, and why the newest one failed."""

    def __init__(self, source: str, cluster: str, clock: Callable[[], float] = time.time) -> None:
        self.succeeded: float | None = None
        self.error = ""
        self.failures = 0
        """Refreshes that failed since the start."""
        self._fields = {"source": source, "cluster": cluster}
        self._clock = clock
        self._attempted = asyncio.Event()
        self._synced = asyncio.Event()

    @property
    def problem(self) -> str:
        """The current error and the time of the last success; empty without an error."""
        if not self.error or self.succeeded is None:
            return self.error
        since = datetime.fromtimestamp(self.succeeded, UTC).isoformat(timespec="seconds")
        return f"{self.error} (last success at {since})"

    async def synced(self) -> None:
        """Wait for the first successful refresh."""
        await self._synced.wait()

    async def first_attempt(self) -> None:
        """Wait until the first refresh succeeded or failed."""
        await self._attempted.wait()

    async def run_once(self, refresh: Callable[[], Awaitable[None]]) -> bool:
        """Refresh once and return whether it succeeded."""
        try:
            await refresh()
        except GpufleetError as error:
            if str(error) != self.error:
                _log.warning("source_unavailable", **self._fields, error=str(error))
            self.error = str(error)
            self.failures += 1
        else:
            if self.error:
                _log.info("source_recovered", **self._fields)
            self.error, self.succeeded = "", self._clock()
            self._synced.set()
        self._attempted.set()
        return not self.error

    async def run(self, refresh: Callable[[], Awaitable[None]], period: float) -> None:
        """Refresh every `period` seconds until cancelled."""
        while True:
            await self.run_once(refresh)
            await asyncio.sleep(period)


def replace_pods(
    fleet: Fleet, before: Mapping[str, FleetPod], pods: Iterable[FleetPod], at: float
) -> dict[str, FleetPod]:
    """Update the pods of a source in the fleet: drop missing ones, put changed ones. Return the new pods by uid."""
    after = {pod.uid: pod for pod in pods}
    for uid in before.keys() - after.keys():
        fleet.drop_pod(uid, at)
    for uid, pod in after.items():
        if before.get(uid) != pod:
            fleet.put_pod(pod)
    return after
