"""Whether the server lives, is ready, and what its dependencies do.

Dependencies are probed in the background and the last verdict is handed out, so that asking for
health costs nothing and a slow database can't make the health check hang. A lost dependency makes
the service degraded, not dead: live views work without the store, history without Prometheus.
"""

import asyncio
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import Literal

import msgspec

from gpufleet.runtime.logs import get_logger
from gpufleet.server.auth.caller import Probe
from gpufleet.server.http.answers import Prepared

NAMES = ("metrics", "store", "kubernetes")
_log = get_logger("health")


class DependencyHealth(msgspec.Struct, frozen=True):
    """One dependency: `ok`, `down`, or `off` where none is configured."""

    state: Literal["ok", "down", "off"]
    message: str


class Health(msgspec.Struct, frozen=True):
    """What `/api/healthz` tells."""

    status: Literal["healthy", "degraded"]
    timestamp: datetime
    version: str
    dependencies: dict[str, DependencyHealth]
    simulated: bool = False
    """Whether the fleet shown is a simulated one."""


_OFF = DependencyHealth("off", "not configured")
_UNKNOWN = DependencyHealth("down", "not asked yet")


class Dependencies:
    """The last verdict on each dependency, renewed by `watch`."""

    def __init__(self, probes: Mapping[str, Probe], *, every: float = 5.0, timeout: float = 3.0) -> None:
        self._probes = dict(probes)
        self._every = every
        self._timeout = timeout
        self.verdicts: Mapping[str, DependencyHealth] = {
            name: _UNKNOWN if name in probes else _OFF for name in (*NAMES, *probes)
        }
        """The last verdict on each; replaced, never changed."""

    async def check(self) -> None:
        """Ask all of them once, at the same time."""
        await asyncio.gather(*(self._ask(name, probe) for name, probe in self._probes.items()))

    async def watch(self) -> None:
        """Ask again and again, until cancelled."""
        while True:
            await self.check()
            await asyncio.sleep(self._every)

    async def _ask(self, name: str, probe: Probe) -> None:
        try:
            async with asyncio.timeout(self._timeout):
                verdict = DependencyHealth("ok", await probe())
        except TimeoutError:
            verdict = DependencyHealth("down", f"no answer within {self._timeout:g} s")
        except Exception as error:  # noqa: BLE001  (whatever it is, it is asked again, and so are the others)
            verdict = DependencyHealth("down", str(error) or type(error).__name__)
        if verdict.state != self.verdicts[name].state:
            log = _log.info if verdict.state == "ok" else _log.warning
            log("dependency changed", dependency=name, state=verdict.state, message=verdict.message)
        if verdict != self.verdicts[name]:
            self.verdicts = {**self.verdicts, name: verdict}


class Lifecycle:
    """Where the server is between its start and its end."""

    def __init__(self) -> None:
        self.started = False
        self.stopping = False
        self._waiting: list[Callable[[], None]] = []

    def stop(self) -> None:
        """The server ends: tell everybody who waits for that."""
        self.stopping = True
        for wake in list(self._waiting):
            wake()

    def when_stopping(self, wake: Callable[[], None]) -> Callable[[], None]:
        """Call `wake` when the server ends; what is returned takes that back."""
        self._waiting.append(wake)
        return lambda: self._waiting.remove(wake)

    @property
    def unready(self) -> str | None:
        """Why no traffic should be sent here, or None."""
        if self.stopping:
            return "the server is shutting down"
        return None if self.started else "the server is starting"


class HealthAnswers:
    """What `/api/healthz` answers, encoded once a second: its timestamp knows no less."""

    def __init__(
        self, dependencies: Dependencies, version: str, simulated: bool, clock: Callable[[], float]
    ) -> None:
        self._dependencies = dependencies
        self._version = version
        self._simulated = simulated
        self._clock = clock
        self._made: tuple[int, object, Prepared[Health]] | None = None

    def now(self) -> Prepared[Health]:
        """The state of the service and a sentence about it."""
        verdicts = self._dependencies.verdicts
        second = int(self._clock())
        if self._made is None or self._made[0] != second or self._made[1] is not verdicts:
            self._made = (second, verdicts, self._answer(datetime.fromtimestamp(second, UTC), verdicts))
        return self._made[2]

    def _answer(self, timestamp: datetime, verdicts: Mapping[str, DependencyHealth]) -> Prepared[Health]:
        down = [name for name, verdict in verdicts.items() if verdict.state == "down"]
        health = Health(
            status="degraded" if down else "healthy",
            timestamp=timestamp,
            version=self._version,
            dependencies=dict(verdicts),
            simulated=self._simulated,
        )
        sentence = f"Service is degraded: {', '.join(down)} not available" if down else "Service is healthy"
        return Prepared.of(health, sentence)
