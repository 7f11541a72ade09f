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

from gpufleet.api.ports import Probe
from gpufleet.errors import Unavailable
from gpufleet.logs import get_logger

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
        self._known = {name: _UNKNOWN if name in probes else _OFF for name in (*NAMES, *probes)}

    def verdicts(self) -> dict[str, DependencyHealth]:
        """The last verdict on each."""
        return dict(self._known)

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
        except Unavailable as error:
            verdict = DependencyHealth("down", str(error))
        if verdict.state != self._known[name].state:
            log = _log.info if verdict.state == "ok" else _log.warning
            log("dependency changed", dependency=name, state=verdict.state, message=verdict.message)
        self._known[name] = verdict


class Lifecycle:
    """Where the server is between its start and its end."""

    def __init__(self) -> None:
        self.started = False
        self.stopping = False

    @property
    def unready(self) -> str | None:
        """Why no traffic should be sent here, or None."""
        if self.stopping:
            return "the server is shutting down"
        return None if self.started else "the server is starting"


def health_now(
    dependencies: Dependencies, version: str, simulated: bool, now: Callable[[], datetime]
) -> tuple[Health, str]:
    """The state of the service and a sentence about it."""
    verdicts = dependencies.verdicts()
    down = [name for name, verdict in verdicts.items() if verdict.state == "down"]
    health = Health(
        status="degraded" if down else "healthy",
        timestamp=now().astimezone(UTC).replace(microsecond=0),
        version=version,
        dependencies=verdicts,
        simulated=simulated,
    )
    if down:
        return health, f"Service is degraded: {', '.join(down)} not available"
    return health, "Service is healthy"
