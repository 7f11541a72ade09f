"""Liveness, readiness and the state of the server's dependencies.

Dependencies are probed in the background and requests get the last result, so that a health check is cheap
and a slow database cannot make it hang. A lost dependency makes the service degraded, not dead: live views
work without the store, history works without Prometheus.

The messages of dependencies may name internal addresses and repeat what an upstream answered. So the public
answer has their states only.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, datetime
from typing import Literal

import msgspec

from gpufleet.runtime.logs import get_logger
from gpufleet.server.http.answers import Prepared

NAMES = ("metrics", "store", "kubernetes")
_log = get_logger("health")

Probe = Callable[[], Awaitable[str]]
"""Return a text about a dependency ("PostgreSQL 18.1"), or raise Unavailable."""


class DependencyHealth(msgspec.Struct, frozen=True):
    """The state of one dependency: `ok`, `down`, or `off` if it is not configured."""

    state: Literal["ok", "down", "off"]
    message: str


class Health(msgspec.Struct, frozen=True):
    """The data of `/api/healthz`."""

    status: Literal["healthy", "degraded"]
    timestamp: datetime
    version: str
    dependencies: dict[str, DependencyHealth]
    simulated: bool = False
    """Whether the fleet is simulated."""


_OFF = DependencyHealth("off", "not configured")
_PUBLIC = {
    "ok": DependencyHealth("ok", "available"),
    "down": DependencyHealth("down", "not available; log in to see why"),
    "off": _OFF,
}
_NOT_PROBED = DependencyHealth("down", "not probed yet")


class Dependencies:
    """Probe the dependencies periodically and keep the last result of each."""

    def __init__(self, probes: Mapping[str, Probe], *, interval: float = 5.0, timeout: float = 3.0) -> None:
        self._probes = dict(probes)
        self._interval = interval
        self._timeout = timeout
        self.states: Mapping[str, DependencyHealth] = {
            name: _NOT_PROBED if name in probes else _OFF for name in (*NAMES, *probes)
        }
        """The last result of each probe; replaced, never changed."""

    async def check(self) -> None:
        """Run all probes once, concurrently."""
        await asyncio.gather(*(self._probe(name, probe) for name, probe in self._probes.items()))

    async def watch(self) -> None:
        """Run all probes at each interval, until cancelled."""
        while True:
            await self.check()
            await asyncio.sleep(self._interval)

    async def _probe(self, name: str, probe: Probe) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                state = DependencyHealth("ok", await probe())
        except TimeoutError:
            state = DependencyHealth("down", f"no answer within {self._timeout:g} s")
        except Exception as error:  # noqa: BLE001  (a broken probe must not stop the others)
            state = DependencyHealth("down", str(error) or type(error).__name__)
        if state.state != self.states[name].state:
            log = _log.info if state.state == "ok" else _log.warning
            log("dependency_changed", dependency=name, state=state.state, message=state.message)
        if state != self.states[name]:
            self.states = {**self.states, name: state}


class Lifecycle:
    """Whether the server has started and whether it is stopping."""

    def __init__(self) -> None:
        self.started = False
        self.stopping = False
        self.nothing_known: Callable[[], str] = str
        """Return why there is no data to serve yet; empty once there is."""
        self._callbacks: list[Callable[[], None]] = []

    def stop(self) -> None:
        """Mark the server as stopping and run the callbacks."""
        self.stopping = True
        for callback in list(self._callbacks):
            callback()

    def when_stopping(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback` when the server stops. Return a function that removes it."""
        self._callbacks.append(callback)
        return lambda: self._callbacks.remove(callback)

    @property
    def unready(self) -> str | None:
        """Why the server should get no traffic, or None if it is ready."""
        if self.stopping:
            return "the server is shutting down"
        if not self.started:
            return "the server is starting"
        return (
            "nothing was read yet; log in and read /api/healthz to see why" if self.nothing_known() else None
        )


class HealthAnswers:
    """The response of `/api/healthz`, encoded at most once a second."""

    def __init__(
        self, dependencies: Dependencies, version: str, simulated: bool, clock: Callable[[], float]
    ) -> None:
        self._dependencies = dependencies
        self._version = version
        self._simulated = simulated
        self._clock = clock
        self._last: dict[bool, tuple[int, object, Prepared[Health]]] = {}

    def current(self, *, detailed: bool) -> Prepared[Health]:
        """Return the health of the service with a message; `detailed` with those of the dependencies."""
        states = self._dependencies.states
        second = int(self._clock())
        last = self._last.get(detailed)
        if last is None or last[0] != second or last[1] is not states:
            shown = states if detailed else {name: _PUBLIC[state.state] for name, state in states.items()}
            last = second, states, self._prepare(datetime.fromtimestamp(second, UTC), shown)
            self._last[detailed] = last
        return last[2]

    def _prepare(self, timestamp: datetime, states: Mapping[str, DependencyHealth]) -> Prepared[Health]:
        down = [name for name, state in states.items() if state.state == "down"]
        health = Health(
            status="degraded" if down else "healthy",
            timestamp=timestamp,
            version=self._version,
            dependencies=dict(states),
            simulated=self._simulated,
        )
        message = f"Service is degraded: {', '.join(down)} not available" if down else "Service is healthy"
        return Prepared.of(health, message)
